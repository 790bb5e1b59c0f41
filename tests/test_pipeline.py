"""``aac run``: order, skipping, hand-over; stand-ins for the stages, real evaluations."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stages import pipeline
from stages.common.errors import HandoffError, UsageError
from stages.common.manifest import build_manifest
from stages.common.run_folder import RunFolder, RunRequest
from stages.recipe.models import Recipe
from tests.tiny_models import tiny_llama

SUMMARIES = {
    "sft": {"loss": 0.5},
    "reward": {"accuracy": 0.75, "pairs": 40},
    "rl": {"iterations": 3},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random actor."""
    return tiny_llama(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def recipe(base: Path) -> Recipe:
    """A recipe whose evaluations take a moment."""
    return Recipe.model_validate(
        {
            "name": "demo",
            "threads": 1,
            "model": {"actor": str(base)},
            "environment": {"name": "sql", "max_turns": 6},
            "state": {"tool_prompt": "none", "max_tokens": 512},
            "rl": {"actor": {"max_new_tokens": 4}},
            "evaluation": {"episodes": 4, "readiness_tasks": 1},
        }
    )


class FakeStages:
    """Stages that copy the base and write a manifest, as the real ones do."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.requests: list[tuple[str, RunRequest]] = []
        self.text = ""
        self.stop = ("", "")
        """(stage, moment) at which somebody interrupts: ``before`` it is opened, ``begun``."""

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.requests]

    def function(self, name: str) -> Any:
        def run(recipe: Recipe, request: RunRequest) -> dict[str, Any]:
            self.requests.append((name, request))
            if self.stop == (name, "before"):
                raise KeyboardInterrupt
            folder = RunFolder.open(request, name)
            if self.stop == (name, "begun"):
                raise KeyboardInterrupt
            if request.dry_run:
                return {}
            shutil.copytree(self.base, folder.path, dirs_exist_ok=True)
            template = folder.path / "chat_template.jinja"
            template.write_text(template.read_text() + f"{{# {name}{self.text} #}}")
            manifest = build_manifest(
                folder.path,
                name,
                recipe=recipe.model_dump(mode="json"),
                parents=request.parents,
            )
            folder.finish(manifest, SUMMARIES[name])
            return SUMMARIES[name]

        return run


@pytest.fixture
def fakes(base: Path, monkeypatch: pytest.MonkeyPatch) -> FakeStages:
    """The stages of the pipeline, replaced."""
    fakes = FakeStages(base)
    monkeypatch.setattr(pipeline, "stage_function", fakes.function)
    return fakes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where a new run goes."""
    return tmp_path / "runs" / "demo"


@pytest.fixture(scope="module")
def done(
    base: Path, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """A run that came to its end, and what it returned."""
    root = tmp_path_factory.mktemp("done") / "demo"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "stage_function", FakeStages(base).function)
        return root, pipeline.run(recipe, RunRequest(root))


@pytest.fixture
def finished(done: tuple[Path, dict[str, Any]], root: Path) -> Path:
    """A copy of the finished run."""
    shutil.copytree(done[0], root)
    return root


def test_all_stages_and_the_summary_the_readme_promises(recipe, fakes, root, capsys):
    summary = pipeline.run(recipe, RunRequest(root))
    assert fakes.names == ["sft", "reward", "rl"]
    sft, reward, rl = (request for _, request in fakes.requests)
    assert sft.output_dir == root / "sft" and sft.parents == {}
    assert reward.parents == {"sft": root / "sft"}
    assert rl.parents == {"sft": root / "sft", "reward": root / "reward"}

    written = json.loads((root / "summary.json").read_text())
    assert written == json.loads(json.dumps(summary))
    assert written["seconds"] > 0
    for name in ("sft", "rl"):
        row = written["stages"][name]
        assert {"seconds", "success_sampled", "success_greedy", "unseen"} <= row.keys()
        assert row["episodes"] == 4
        assert set(row["sampled"]["kinds"]) == set(row["greedy"]["kinds"])
    assert written["stages"]["rl"]["iterations"] == 3
    assert written["stages"]["reward"].items() >= SUMMARIES["reward"].items()
    assert set(written["baselines"]) == {"base", "null", "random", "most_frequent"}
    assert written["baselines"]["null"]["success_sampled"] == 0.0
    assert json.loads((root / "readiness.json").read_text()) == written["readiness"]

    shown = capsys.readouterr().out
    for words in ("most frequent answer", "accuracy 75.0 %", "repeated", "groups never seen"):
        assert words in shown
    assert written["readiness"]["advice"] in shown.replace("\n", " ")


def test_a_second_run_does_nothing_again(recipe, fakes, finished, done, monkeypatch):
    first = done[1]
    for name in ("measure_actor", "measure_policy", "readiness_check", "player"):
        monkeypatch.setattr(pipeline, name, None)
    second = pipeline.run(recipe, RunRequest(finished))
    assert fakes.names == []
    assert second["baselines"] == first["baselines"]
    assert second["stages"] == first["stages"]
    assert second["seconds"] >= first["stages"]["sft"]["seconds"]


def test_an_interrupted_run_goes_on_where_it_stopped(recipe, fakes, finished):
    shutil.rmtree(finished / "rl")
    pipeline.run(recipe, RunRequest(finished))
    assert fakes.names == ["rl"]


def test_overwrite_does_everything_anew(recipe, fakes, finished):
    pipeline.run(recipe, RunRequest(finished, overwrite=True))
    assert fakes.names == ["sft", "reward", "rl"]


@pytest.mark.parametrize(
    ("stop", "anew", "on"),
    [
        (("sft", "begun"), ["reward", "rl"], ["sft"]),
        (("reward", "before"), ["reward", "rl"], []),
        (("rl", "begun"), [], ["rl"]),
    ],
)
def test_an_interrupted_overwrite_goes_on_without_it(recipe, fakes, finished, stop, anew, on):
    """What it has not reached yet is overwritten, what it has begun goes on, what is new stays."""
    fakes.stop, fakes.text = stop, "anew"
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(recipe, RunRequest(finished, overwrite=True))
    fakes.stop = ("", "")
    fakes.requests.clear()
    pipeline.run(recipe, RunRequest(finished))
    assert [name for name, request in fakes.requests if request.overwrite] == anew
    assert [name for name, request in fakes.requests if not request.overwrite] == on
    for name in ("sft", "reward", "rl"):
        assert f"{name}anew" in (finished / name / "chat_template.jinja").read_text()
    left = {p.name for p in finished.iterdir() if p.name.startswith(".")}
    assert left == set()
    fakes.requests.clear()
    pipeline.run(recipe, RunRequest(finished))
    assert fakes.requests == []


def test_two_of_them_do_not_share_a_root(recipe, fakes, root, monkeypatch):
    def refuse(folder: Path) -> None:
        raise UsageError(f"{folder} is being written by process 7 of there.")

    monkeypatch.setattr("stages.common.lock.lock", refuse)
    with pytest.raises(UsageError, match="is being written by process 7"):
        pipeline.run(recipe, RunRequest(root))
    assert fakes.names == []


def test_another_parent_is_refused_in_one_sentence(recipe, fakes, finished):
    shutil.rmtree(finished / "sft")
    fakes.text = "retrained"
    with pytest.raises(HandoffError, match=r"reward was built on another sft than .*/sft holds"):
        pipeline.run(recipe, RunRequest(finished))


def test_an_altered_parent_is_refused(recipe, fakes, finished):
    (finished / "sft" / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(HandoffError, match="was altered after its run finished"):
        pipeline.run(recipe, RunRequest(finished))


def test_a_changed_recipe_is_said_and_the_stage_kept(recipe, fakes, finished, capsys):
    changed = recipe.model_copy(update={"sft": recipe.sft.model_copy(update={"steps": 7})})
    pipeline.run(changed, RunRequest(finished))
    assert fakes.names == []
    said = " ".join(capsys.readouterr().err.split())
    assert "sft was made with another recipe (changed: sft); it is kept" in said
    assert said.count("another recipe") == 1


def test_without_weight_there_is_no_reward_stage(recipe, fakes, root):
    rewards = recipe.rl.rewards.model_copy(update={"reward_model": 0.0})
    rl = recipe.rl.model_copy(update={"rewards": rewards})
    plain = recipe.model_copy(update={"rl": rl})
    summary = pipeline.run(plain, RunRequest(root))
    assert fakes.names == ["sft", "rl"]
    assert fakes.requests[1][1].parents == {"sft": root / "sft"}
    assert "reward" not in summary["stages"]


def test_dry_run_asks_what_can_be_asked_and_writes_nothing(recipe, fakes, root, capsys):
    pipeline.run(recipe, RunRequest(root, dry_run=True))
    assert fakes.names == ["sft"]
    assert fakes.requests[0][1].dry_run
    assert not root.exists()
    assert "rl: to be checked once sft and reward are finished" in capsys.readouterr().out


def test_a_stage_folder_is_no_root(recipe, fakes, finished):
    with pytest.raises(UsageError, match="is the folder of a single stage"):
        pipeline.run(recipe, RunRequest(finished / "sft"))


def test_one_stages_checkpoint_is_refused(recipe, fakes, root):
    with pytest.raises(UsageError, match="aac run takes auto or never"):
        pipeline.run(recipe, RunRequest(root, resume="runs/x/checkpoint-3"))


def test_the_real_stages_hand_over_to_each_other(base, tmp_path):
    """No stand-ins: a random actor through TRL's trainers, on a handful of rows."""
    pairs = tmp_path / "pairs.jsonl"
    question = [{"role": "user", "content": "how many orders are there?"}]
    rows = [
        {
            "prompt": question,
            "chosen": [{"role": "assistant", "content": f"there are {n} orders"}],
            "rejected": [{"role": "assistant", "content": "x" * (n + 1)}],
            "task_id": str(n),
        }
        for n in range(12)
    ]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = Recipe.model_validate(
        {
            "name": "real",
            "threads": 1,
            "model": {"actor": str(base)},
            "environment": {"name": "sql", "max_turns": 3},
            "state": {"tool_prompt": "none", "max_tokens": 512},
            "sft": {"demonstrations": 8, "steps": 2, "batch_size": 4, "max_length": 512},
            "reward": {"data": str(pairs), "held_out_fraction": 0.25, "batch_size": 4},
            "rl": {
                "iterations": 1,
                "episodes": 4,
                "evaluate_every": 0,
                "evaluation_episodes": 2,
                "actor": {"max_new_tokens": 4},
                "critic": {"steps": 1, "warm_up": {"max_iterations": 0}},
            },
            "evaluation": {"episodes": 2, "readiness_tasks": 1},
        }
    )
    root = tmp_path / "real"
    summary = pipeline.run(recipe, RunRequest(root, quiet=True))
    stages = summary["stages"]
    assert stages["sft"]["seconds"] > 0
    assert 0 <= stages["reward"]["accuracy"] <= 1 and stages["reward"]["pairs"] > 0
    assert stages["rl"]["iterations"] == 1
    parents = json.loads((root / "rl" / "manifest.json").read_text())["parents"]
    assert set(parents) == {"sft", "reward"}
    again = pipeline.run(recipe, RunRequest(root, quiet=True))
    assert again["stages"] == stages
