"""What breaks while a run is under way, by real mechanisms: one sentence, and nothing lost."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stages.common.files import write_json
from stages.common.manifest import build_manifest
from stages.common.trl_trainer import RunLog
from stages.interaction.environments.sql.environment import SqlEnvironment
from stages.rl.player import Player
from tests.adapted import World, rows, tensors
from tests.disks import largest_file, small_disk

RL = {"rl__iterations": 4, "rl__checkpoint_every": 1, "rl__evaluate_every": 0}
SFT = {"sft__steps": 4, "sft__checkpoint_every": 1}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(tmp_path_factory.mktemp("faults"))
    made.aac("sft", "sft")
    made.aac("train-reward", "reward", "--sft", made.root / "sft")
    made.rl("rl-whole", **RL)
    made.aac("sft", "sft-whole", **SFT)
    return made


def begun(world: World, folder: Path, then: Callable[[], Any], *words: Any) -> Any:
    """``aac rl`` in which something happens before its third iteration."""
    real = Player.collect

    def collect(self: Player, iteration: int, version: int) -> Any:
        if iteration == 2:
            then()
        return real(self, iteration, version)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Player, "collect", collect)
        return world.call("rl", "--output-dir", folder, *words, **RL)


def stop() -> None:
    raise KeyboardInterrupt


def cut(world: World, stage: str, folder: Path) -> None:
    """A run that is interrupted with two checkpoints written."""
    if stage == "rl":
        result = begun(world, folder, stop, "--sft", world.root / "sft")
    else:
        real = RunLog.on_step_end

        def on_step_end(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            real(self, args, state, control, **kwargs)
            if state.global_step == 3:
                stop()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunLog, "on_step_end", on_step_end)
            result = world.call("sft", "--output-dir", folder, **SFT)
    assert result.exit_code == 130, result.stderr
    assert names(folder) == ["checkpoint-1", "checkpoint-2"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def again(world: World, stage: str, folder: Path) -> Any:
    words = ("--sft", world.root / "sft") if stage == "rl" else ()
    return world.call(stage, "--output-dir", folder, *words, **(RL if stage == "rl" else SFT))


def assert_whole(world: World, stage: str, folder: Path) -> None:
    whole = world.root / f"{stage}-whole"
    for name, tensor in tensors(whole).items():
        assert torch.equal(tensors(folder)[name], tensor)
    timeless = [
        [{k: v for k, v in row.items() if k[:5] != "time/"} for row in rows(place)]
        for place in (folder, whole)
    ]
    assert timeless[0] == timeless[1]


# ---- the environment


class Flaky:
    """Steps of which every tenth raises and every hundredth never returns, each noted before."""

    def __init__(self) -> None:
        self.calls, self.notes, self.lock = 0, list[str](), threading.Lock()
        self.real, self.over, self.cured = SqlEnvironment.step, threading.Event(), False

    def step(self, environment: SqlEnvironment, action: Any) -> Any:
        with self.lock:
            self.calls += not self.cured
            hangs = self.calls % 100 == 50 and not self.cured
            raises = self.calls % 10 == 3 and not self.cured
            self.notes += ["hangs"] * hangs + ["raises"] * raises
        if hangs:
            self.over.wait()
        if raises:
            raise OSError("the line is dead")
        return self.real(environment, action)


def test_a_world_that_breaks_and_hangs_costs_its_episodes_and_invents_no_reward(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that came to their end are what they are in a world that is well."""
    options = {"rl__iterations": 1, "rl__episodes": 64, "rl__critic__kind": "none"}
    world.rl("well", **options)
    flaky = Flaky()
    monkeypatch.setattr(SqlEnvironment, "step", lambda self, action: flaky.step(self, action))
    threads = {"workers": 16, "isolation": "thread", "step_timeout_s": 5.0}
    options |= {f"environment__{name}": value for name, value in threads.items()}
    evaluate = Player.evaluate

    def cured(self: Player, version: int) -> Any:
        flaky.cured = True
        return evaluate(self, version)

    monkeypatch.setattr(Player, "evaluate", cured)
    (row,) = world.rl("flaky", **options)
    flaky.over.set()
    well, kept = (
        {tuple(e["key"]): e for e in map(json.loads, lines(world.root / name))}
        for name in ("well", "flaky")
    )
    assert flaky.notes.count("raises") > 10 and "hangs" in flaky.notes
    assert row["episode/dropped"] == len(flaky.notes)
    assert len(kept) == 64 - len(flaky.notes)
    for key, episode in kept.items():
        assert paid(episode) == paid(well[key])
    (healthy,) = rows(world.root / "well")
    assert row["reward/format"] / mean_paid(kept) == pytest.approx(
        healthy["reward/format"] / mean_paid(well)
    )


def paid(episode: Any) -> list[Any]:
    """What was said and what it got. (Log-probs differ in digits, as batches were smaller.)"""
    ends = [episode[name] for name in ("success", "terminated", "truncated")]
    return [*ends, *([turn["action"]["text"], turn["rewards"]] for turn in episode["turns"])]


def mean_paid(episodes: dict[Any, Any]) -> float:
    """Raw ``format`` components per episode."""
    sums = [sum(t["rewards"].get("format", 0.0) for t in e["turns"]) for e in episodes.values()]
    return sum(sums) / len(sums)


def lines(folder: Path) -> list[str]:
    return (folder / "pool/00000.jsonl").read_text().splitlines()


# ---- the disk


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_a_checkpoint_that_cannot_be_written(stage: str, world: World, tmp_path: Path) -> None:
    folder = tmp_path / stage
    cut(world, stage, folder)
    # What is small (metrics, the pool) can still be written, a checkpoint's largest file cannot.
    files = (folder / "checkpoints/checkpoint-2").iterdir()
    with largest_file(max(file.stat().st_size for file in files) - 1):
        result = again(world, stage, folder)
    assert result.exit_code == 1, result.stderr
    assert_no_room(result.stderr, "File too large")
    assert names(folder) == ["checkpoint-1", "checkpoint-2"]
    assert again(world, stage, folder).exit_code == 0
    assert_whole(world, stage, folder)


def test_a_disk_that_is_full(world: World, tmp_path: Path) -> None:
    with small_disk(tmp_path, "24m"):
        folder = tmp_path / "rl"
        cut(world, "rl", folder)
        room = sum(f.stat().st_size for f in (folder / "checkpoints/checkpoint-2").iterdir())
        ballast = tmp_path / "ballast"
        ballast.write_bytes(bytes(shutil.disk_usage(tmp_path).free - room // 2))
        result = again(world, "rl", folder)
        assert result.exit_code == 1, result.stderr
        assert_no_room(result.stderr, "No space left on device")
        assert names(folder) == ["checkpoint-1", "checkpoint-2"]
        ballast.unlink()
        assert again(world, "rl", folder).exit_code == 0
        assert_whole(world, "rl", folder)


def assert_no_room(said: str, why: str) -> None:
    line = said.splitlines()[-1]
    assert re.match(r"aac: \S+checkpoint-\d could not be written \(" + why, line), said
    assert "run the same command again: it goes on from the last checkpoint" in line
    assert "Traceback" not in said


# ---- checkpoints


def test_a_damaged_checkpoint(world: World, tmp_path: Path) -> None:
    """The one before it is taken, and that is said; where there is none, that is said, too."""
    folder = tmp_path / "rl"
    cut(world, "rl", folder)
    with (folder / "checkpoints/checkpoint-2/state.pt").open("r+b") as file:
        file.seek(5000)
        file.write(b"rubbish")
    (folder / "checkpoints/.writing/checkpoint-3").mkdir(parents=True)
    shutil.copytree(folder, tmp_path / "both")
    result = again(world, "rl", folder)
    assert result.exit_code == 0
    said = " ".join(result.stderr.split())
    assert "checkpoint-2 is not whole (state.pt has changed since it was written)" in said
    assert "going on from checkpoint-1 instead" in said
    assert_whole(world, "rl", folder)

    both = tmp_path / "both"
    (both / "checkpoints/checkpoint-1/state.pt").unlink()
    result = again(world, "rl", both)
    assert result.exit_code == 2 and "state.pt is missing" in result.stderr
    assert "start anew with --resume never" in result.stderr
    named = world.call(
        "rl", "--output-dir", both, "--sft", world.root / "sft",
        "--resume", both / "checkpoints/checkpoint-2", **RL,
    )  # fmt: skip
    assert named.exit_code == 2 and "is no whole checkpoint" in named.stderr


# ---- parents


def altered(folder: Path) -> None:
    with (folder / "config.json").open("a") as file:
        file.write(" ")


def exchanged(world: World, folder: Path) -> None:
    """Another run of the same stage, in order in itself."""
    shutil.rmtree(folder)
    shutil.copytree(world.root / "sft-whole", folder)


CHANGES: dict[str, tuple[str, str]] = {
    "deleted": ("does not exist", "the sft folder .*/sft does not exist"),
    "altered": ("was altered", r"/sft was altered after its run finished \(config.json differs"),
    "exchanged": ("was replaced by another run", "was made with another sft than there is now"),
}


def change(kind: str, world: World, folder: Path) -> None:
    {
        "deleted": lambda: shutil.rmtree(folder),
        "altered": lambda: altered(folder),
        "exchanged": lambda: exchanged(world, folder),
    }[kind]()


@pytest.mark.parametrize("kind", CHANGES)
def test_a_parent_that_changes_under_way_harms_nothing_and_is_told(
    kind: str, world: World, tmp_path: Path
) -> None:
    """The run holds what was there; its manifest names that, and what has become of it."""
    sft = shutil.copytree(world.root / "sft", tmp_path / "sft")
    folder = tmp_path / "rl"
    result = begun(world, folder, lambda: change(kind, world, sft), "--sft", sft)
    assert result.exit_code == 0, result.stderr
    assert_whole(world, "rl", folder)
    parent = json.loads((folder / "manifest.json").read_text())["parents"]["sft"]
    was = json.loads((world.root / "sft/manifest.json").read_text())["content_hash"]
    assert parent["hash"] == was and CHANGES[kind][0] in parent["changed"]
    assert f"since this run began, {parent['changed']}" in " ".join(result.stderr.split())


@pytest.mark.parametrize("kind", CHANGES)
def test_a_run_does_not_go_on_with_a_parent_that_changed(
    kind: str, world: World, tmp_path: Path
) -> None:
    sft = shutil.copytree(world.root / "sft", tmp_path / "sft")
    folder = tmp_path / "rl"
    assert begun(world, folder, stop, "--sft", sft).exit_code == 130
    change(kind, world, sft)
    result = world.call("rl", "--output-dir", folder, "--sft", sft, **RL)
    assert result.exit_code == 2
    assert re.search(CHANGES[kind][1], " ".join(result.stderr.split())), result.stderr
    assert names(folder) == ["checkpoint-1", "checkpoint-2"]


# ---- a reward model that says nothing


def sick(world: World, folder: Path, value: float) -> Path:
    """A finished reward run whose head holds this everywhere."""
    shutil.copytree(world.root / "reward", folder)
    weights = load_file(folder / "model.safetensors")
    weights["score.weight"][:] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    recipe = json.loads((folder / "manifest.json").read_text())["recipe"]
    made = build_manifest(folder, "reward", recipe=recipe, parents={"sft": world.root / "sft"})
    write_json(folder / "manifest.json", made.with_score(0.0, 1.0).to_json())
    return folder


def test_a_reward_model_of_nan_is_refused_before_anything(world: World, tmp_path: Path) -> None:
    reward = sick(world, tmp_path / "reward", float("nan"))
    words = ("--sft", world.root / "sft", "--reward", reward)
    said = world.refused("rl", *words, rl__rewards__reward_model=0.5)
    assert "score.weight of the reward model" in said and "is not finite" in said
    assert "aac train-reward again with --overwrite" in said


def test_scores_that_overflow_end_the_run_before_they_reach_a_weight(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finite weights, infinite scores."""
    from stages.rl.critic.learner import CriticLearner
    from stages.rl.learner import ActorLearner

    learnt: list[Any] = []
    for kind, name in ((CriticLearner, "fit"), (ActorLearner, "update")):
        monkeypatch.setattr(kind, name, lambda *_, **__: learnt.append(1))
    reward = sick(world, tmp_path / "reward", 3.4e38)
    words = ("--sft", world.root / "sft", "--reward", reward, "--output-dir", tmp_path / "rl")
    result = world.call("rl", *words, rl__rewards__reward_model=0.5)
    assert result.exit_code == 1 and learnt == []
    said = " ".join(result.stderr.split())
    assert re.search(r"gives a score of (-?inf|nan) to turn \d+ of an episode of task", said), said
    assert not (tmp_path / "rl/model.safetensors").exists()
