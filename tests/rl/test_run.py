"""The whole RL stage on real parents: every option moves something, every bad parent is refused."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.common.errors import HandoffError, RunError, UsageError
from stages.common.files import write_json
from stages.common.manifest import build_manifest, verify_parent
from stages.common.run_folder import RunFolder, RunRequest
from stages.recipe.models import Recipe
from stages.reward.run import run as train_reward
from stages.rl.pool import read_trajectories
from stages.rl.run import run
from stages.sft.run import run as train_sft
from tests.rl.worlds import score
from tests.tiny_models import tiny_llama, tiny_qwen3

BASE = {
    "name": "test",
    "environment": {"name": "sql", "max_turns": 3},
    "state": {"tool_prompt": "none", "max_tokens": 700},
    "sft": {"demonstrations": 4, "steps": 2, "batch_size": 2, "max_length": 900},
    "reward": {"batch_size": 2, "max_length": 300, "held_out_fraction": 0.3},
}
RL = {
    "iterations": 2,
    "episodes": 4,
    "evaluate_every": 0,
    "evaluation_episodes": 2,
    "actor": {"max_new_tokens": 8, "learning_rate": 1e-3},
    "critic": {"steps": 2, "batch_size": 4, "hidden_size": 8, "warm_up": {"max_iterations": 0}},
    "ppo": {"epochs": 1, "minibatch_episodes": 2},
    "rewards": {"reward_model": 0},
}


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = merged(out[key], value) if both else value
    return out


class Lab:
    """Parents of one actor family, made by the real stages, and a shorthand to run RL on them."""

    def __init__(self, root: Path, build: Any) -> None:
        self.root = root
        self.actor = build(root / "actor")
        self.sft, self.reward = root / "sft", root / "reward"
        train_sft(self.recipe(), RunRequest(self.sft))
        pairs = root / "pairs.jsonl"
        rows = [
            {"prompt": f"how many {w}?", "chosen": f"there are {w}", "rejected": f"no {w} {w}"}
            for w in ("orders", "tables", "goals", "units", "answers", "errors", "users", "prices")
        ]
        pairs.write_text("".join(json.dumps(r) + "\n" for r in rows))
        recipe = self.recipe(reward={"data": str(pairs)})
        train_reward(recipe, RunRequest(self.reward, parents={"sft": self.sft}))

    def recipe(self, **over: Any) -> Recipe:
        own = {"model": {"actor": str(self.actor)}, "rl": RL}
        return Recipe.model_validate(merged(merged(BASE, own), over))

    def request(self, out: Path, **options: Any) -> RunRequest:
        parents = {"sft": self.sft, "reward": self.reward}
        return RunRequest(out, **({"parents": parents} | options))

    def rl(self, out: Path, *, environment: dict[str, Any] | None = None, **rl: Any) -> list[Any]:
        """Run and return the rows of metrics.jsonl."""
        recipe = self.recipe(rl=rl, **({"environment": environment} if environment else {}))
        run(recipe, self.request(out))
        return rows_of(out)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Llama: pad equals eos, template with generation markers, no tool role."""
    return Lab(tmp_path_factory.mktemp("llama"), tiny_llama)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Qwen3: template without generation markers, pad apart from eos."""
    return Lab(tmp_path_factory.mktemp("qwen"), tiny_qwen3)


def test_what_a_run_leaves_behind(lab: Lab, tmp_path: Path) -> None:
    rows = lab.rl(tmp_path / "rl", evaluate_every=1, rewards={"reward_model": 0.5})
    assert [row["step"] for row in rows] == [1, 2]
    promised = [
        "reward/total",
        "reward/success",
        "reward/reward_model",
        "reward/format",
        "episode/success",
        "episode/turns",
        "episode/out_of_budget",
        "episode/invalid_actions",
        "episode/repeated_calls",
        "episode/loops",
        "actor/kl",
        "actor/entropy",
        "actor/clip_fraction",
        "actor/approx_kl",
        "actor/grad_norm",
        "critic/explained_variance",
        "critic/loss",
        "critic/sample_age",
        "time/rollout_s",
        "time/actor_s",
        "time/critic_s",
        "time/tokens_per_s",
        "evaluation/success",
    ]
    assert not set(promised) - set(rows[-1])
    manifest = verify_parent(tmp_path / "rl", "rl")
    assert set(manifest.parents) == {"sft", "reward"}
    assert not torch.equal(weights(tmp_path / "rl"), weights(lab.sft))
    assert len((tmp_path / "rl/evaluations.jsonl").read_text().splitlines()) == 2
    files = {p.name for p in (tmp_path / "rl").iterdir()}
    assert {"critic", "pool", "trajectories", "summary.json", "README.md"} <= files
    assert not list((tmp_path / "rl").rglob("*.bin"))  # nothing pickled is handed over
    turn = read_trajectories(tmp_path / "rl/trajectories/00000.jsonl")[0].turns[0]
    assert {"value", "review", "advantage"} <= set(turn.info)
    assert "reward_model" in turn.rewards


@pytest.mark.parametrize("family", ["lab", "qwen"])
def test_tokens_trained_on_are_those_sampled(
    family: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Stored log-probs of the first iteration equal a plain forward of the SFT actor to 1e-4."""
    place: Lab = request.getfixturevalue(family)
    rows = place.rl(tmp_path / "rl", iterations=1)
    assert rows[0]["actor/updates"] == 2
    actor = AutoModelForCausalLM.from_pretrained(place.sft)
    for episode in read_trajectories(tmp_path / "rl/trajectories/00000.jsonl"):
        for turn in episode.turns:
            assert len(turn.action_ids) == len(turn.logprobs) > 0
            again = score(actor, list(turn.prompt_ids), list(turn.action_ids))
            assert again == pytest.approx(list(turn.logprobs), abs=1e-4)


def test_the_same_seed_gives_the_same_run(lab: Lab, tmp_path: Path) -> None:
    first, second = lab.rl(tmp_path / "a"), lab.rl(tmp_path / "b")
    assert torch.equal(weights(tmp_path / "a"), weights(tmp_path / "b"))
    timeless = [{k: v for k, v in r.items() if not k.startswith("time/")} for r in first]
    assert timeless == [{k: v for k, v in r.items() if not k.startswith("time/")} for r in second]
    recipe = lab.recipe(seed=1)
    run(recipe, lab.request(tmp_path / "c"))
    assert not torch.equal(weights(tmp_path / "a"), weights(tmp_path / "c"))


VARIANTS: dict[str, dict[str, Any]] = {
    "full KL": {"ppo": {"kl_loss": "full", "kl_coef": 1.0}},
    "KL in reward": {"ppo": {"kl_loss": "in_reward", "kl_coef": 1.0}},
    "no KL": {"ppo": {"kl_coef": 0.0}},
    "entropy": {"ppo": {"entropy_coef": 0.5}},
    "SFT mixing": {"ppo": {"sft_coef": 1.0}},
    "no critic": {"critic": {"kind": "none"}},
    "critic without facts": {"critic": {"view": {"privileged": False}}},
    "Monte-Carlo critic": {"critic": {"target": "monte_carlo"}, "iterations": 3},
    "reward model": {"rewards": {"reward_model": 5.0}},
    "other weights": {"rewards": {"weights": {"format": -3.0}}},
    "temperature": {"actor": {"temperature": 0.5}},
    "discount": {"ppo": {"discount": 0.5}},
    "lambda": {"ppo": {"gae_lambda": 0.0}},
    "epochs": {"ppo": {"epochs": 2}},
    "rate": {"actor": {"learning_rate": 1e-4}},
}


@pytest.fixture(scope="module")
def plain(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    """The weights of a run with nothing changed."""
    out = tmp_path_factory.mktemp("plain") / "rl"
    lab.rl(out, iterations=3)
    return weights(out)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_option_moves_the_actor(
    name: str, lab: Lab, plain: torch.Tensor, tmp_path: Path
) -> None:
    rows = lab.rl(tmp_path / "rl", **({"iterations": 3} | VARIANTS[name]))
    assert not torch.equal(weights(tmp_path / "rl"), plain)
    if name == "SFT mixing":
        assert rows[0]["actor/sft_loss"] > 0
    if name == "no critic":
        assert not (tmp_path / "rl/critic").exists() and "critic/loss" not in rows[0]


def test_an_encoder_of_another_family_is_the_critic(lab: Lab, qwen: Lab, tmp_path: Path) -> None:
    rows = lab.rl(tmp_path / "rl", critic={"trunk": str(qwen.actor), "learning_rate": 1e-3})
    assert rows[-1]["critic/loss"] >= 0
    assert (tmp_path / "rl/critic/encoder/config.json").is_file()


def test_preferences_of_the_reward_stage_teach_the_discriminator(lab: Lab, tmp_path: Path) -> None:
    """A random actor's episodes all fail: without the reward stage's pairs nothing is learnt."""
    critic = {"kind": "discriminative", "steps": 12}
    alone = lab.rl(tmp_path / "alone", critic=critic)
    taught = lab.rl(tmp_path / "taught", critic=critic, rewards={"reward_model": 0.1})
    assert [row["critic/pairs"] for row in alone] == [0.0, 0.0]
    assert "critic/discriminator_loss" not in alone[0]
    losses = [row["critic/discriminator_loss"] for row in taught]
    assert losses[1] < losses[0]
    assert alone[1]["critic/bonus"] == 0.0 < taught[1]["critic/bonus"]


def test_best_is_kept_where_asked(lab: Lab, tmp_path: Path) -> None:
    """A policy that never succeeds is best at its first evaluation: those weights come back."""
    lab.rl(tmp_path / "last", evaluate_every=1)
    lab.rl(tmp_path / "best", evaluate_every=1, keep="best")
    assert not torch.equal(weights(tmp_path / "best"), weights(tmp_path / "last"))
    summary = json.loads((tmp_path / "best/summary.json").read_text())
    assert summary["kept"] == "best" and summary["best"]["step"] == 1


def test_frozen_parameters_stay(lab: Lab, tmp_path: Path) -> None:
    recipe = lab.recipe(model={"actor": str(lab.actor), "frozen": ["embed_tokens"]})
    run(recipe, lab.request(tmp_path / "rl"))
    name = "model.embed_tokens.weight"
    before = AutoModelForCausalLM.from_pretrained(lab.sft).state_dict()
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "rl").state_dict()
    assert torch.equal(before[name], after[name])
    assert any(not torch.equal(before[k], after[k]) for k in before)


def test_a_run_that_is_cut_off_at_its_very_end_goes_on(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is saved but the manifest: what the pool holds no more, the last checkpoint needs."""
    options = {"iterations": 3, "checkpoint_every": 1, "pool": {"max_episodes": 4}}
    lab.rl(tmp_path / "whole", **options)
    assert [f.name for f in (tmp_path / "whole/pool").iterdir()] == ["00002.jsonl"]

    def killed(self: RunFolder, *_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RunFolder, "finish", killed)
        lab.rl(tmp_path / "cut", **options)
    lab.rl(tmp_path / "cut", **options)
    assert torch.equal(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


def test_an_interrupted_run_resumes_to_the_same_weights(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"iterations": 3, "checkpoint_every": 1, "evaluate_every": 1}
    whole = lab.rl(tmp_path / "whole", **options)
    from stages.rl.player import Player

    real = Player.collect

    def killed(self: Any, iteration: int, version: int) -> Any:
        if iteration == 2:
            raise KeyboardInterrupt
        return real(self, iteration, version)

    monkeypatch.setattr(Player, "collect", killed)
    with pytest.raises(KeyboardInterrupt):
        lab.rl(tmp_path / "cut", **options)
    monkeypatch.undo()
    rows = lab.rl(tmp_path / "cut", **options)
    assert torch.equal(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert [r["step"] for r in rows] == [r["step"] for r in whole] == [1, 2, 3]
    for a, b in zip(rows, whole, strict=True):
        assert {k: v for k, v in a.items() if k[:5] != "time/"} == {
            k: v for k, v in b.items() if k[:5] != "time/"
        }


def test_a_persons_own_database(lab: Lab, tmp_path: Path) -> None:
    database = tmp_path / "shop.sqlite"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE cakes (cake_id INTEGER, kind TEXT, price REAL)")
        cakes = [(1, "plum", 3.5), (2, "nut", 2.0)]
        connection.executemany("INSERT INTO cakes VALUES (?, ?, ?)", cakes)
    connection.close()
    questions = tmp_path / "questions.jsonl"
    asked = {
        "How many cakes are there?": "SELECT COUNT(*) FROM cakes",
        "What does the plum cake cost?": "SELECT price FROM cakes WHERE kind = 'plum'",
    }
    rows = [{"question": q, "sql": s} for q, s in asked.items()]
    questions.write_text("".join(json.dumps(r) + "\n" for r in rows))
    own = {"database": str(database), "questions": str(questions)}
    rows = lab.rl(tmp_path / "rl", environment=own, iterations=1)
    assert rows[0]["actor/updates"] > 0
    episodes = read_trajectories(tmp_path / "rl/trajectories/00000.jsonl")
    assert {e.goal for e in episodes} == set(asked)


# ---- parents that do not fit


def copy(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


def refused(lab: Lab, tmp_path: Path, parents: dict[str, Path]) -> str:
    recipe = lab.recipe(rl={"rewards": {"reward_model": 0.5}})
    with pytest.raises((HandoffError, UsageError)) as caught:
        run(recipe, lab.request(tmp_path / "rl", parents=parents))
    assert not (tmp_path / "rl").exists()  # nothing half-written
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_missing_parents(lab: Lab, tmp_path: Path) -> None:
    assert "aac sft" in refused(lab, tmp_path, {})
    assert "nowhere" in refused(lab, tmp_path, {"sft": tmp_path / "nowhere"})
    assert "--no-reward" in refused(lab, tmp_path, {"sft": lab.sft})


def test_altered_parents(lab: Lab, tmp_path: Path) -> None:
    sft = copy(lab.sft, tmp_path / "sft")
    with (sft / "model.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\x01\x02\x03\x04")
    assert "model.safetensors" in refused(lab, tmp_path, {"sft": sft, "reward": lab.reward})


def test_a_tokenizer_that_does_not_match(lab: Lab, qwen: Lab, tmp_path: Path) -> None:
    parents = {"sft": lab.sft, "reward": qwen.reward}
    assert "tokenizer" in refused(lab, tmp_path, parents)


def test_a_freshly_initialised_head(lab: Lab, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    reward = copy(lab.reward, tmp_path / "reward")
    tensors = load_file(reward / "model.safetensors")
    tensors = {k: v for k, v in tensors.items() if not k.startswith("score")}
    save_file(tensors, reward / "model.safetensors", metadata={"format": "pt"})
    recipe = lab.recipe().model_dump(mode="json")
    manifest = build_manifest(reward, "reward", recipe=recipe, parents={"sft": lab.sft})
    write_json(reward / "manifest.json", manifest.with_score(0.0, 1.0).to_json())
    sentence = refused(lab, tmp_path, {"sft": lab.sft, "reward": reward})
    assert "score" in sentence and "aac train-reward" in sentence


def test_a_finished_folder_is_not_overwritten(lab: Lab, tmp_path: Path) -> None:
    lab.rl(tmp_path / "rl", iterations=1)
    before = weights(tmp_path / "rl")
    with pytest.raises(HandoffError, match="--overwrite"):
        lab.rl(tmp_path / "rl", iterations=1)
    run(lab.recipe(rl={"iterations": 2}), lab.request(tmp_path / "rl", overwrite=True))
    assert not torch.equal(weights(tmp_path / "rl"), before)


def test_dry_run_checks_and_writes_nothing(lab: Lab, tmp_path: Path) -> None:
    run(lab.recipe(), lab.request(tmp_path / "rl", dry_run=True))
    assert not (tmp_path / "rl").exists()


@pytest.mark.parametrize(
    "trainer", [{"no_such_argument": 1}, {"vf_coef": 0.5}, {"gradient_accumulation_steps": 8}]
)
def test_trl_arguments_that_would_change_nothing_are_refused(
    lab: Lab, tmp_path: Path, trainer: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=r"rl\.trainer has"):
        lab.rl(tmp_path / "rl", trainer=trainer)
    assert not (tmp_path / "rl").exists()


def test_a_trl_argument_that_acts(lab: Lab, plain: torch.Tensor, tmp_path: Path) -> None:
    lab.rl(tmp_path / "rl", iterations=3, trainer={"weight_decay": 0.5})
    assert not torch.equal(weights(tmp_path / "rl"), plain)


def test_a_constant_rate(lab: Lab, plain: torch.Tensor, tmp_path: Path) -> None:
    lab.rl(tmp_path / "rl", iterations=3, actor={"final_rate_fraction": 1.0})
    assert not torch.equal(weights(tmp_path / "rl"), plain)


def test_without_a_cadence_it_evaluates_once_at_the_end(lab: Lab, tmp_path: Path) -> None:
    rows = lab.rl(tmp_path / "rl", evaluate_every=0)
    assert ["evaluation/success" in row for row in rows] == [False, True]


def test_a_rehearsal_finds_what_would_fail_later(lab: Lab, tmp_path: Path) -> None:
    recipe = lab.recipe(rl={"critic": {"trunk": str(tmp_path / "nothing")}})
    with pytest.raises(UsageError, match=r"rl\.critic\.trunk"):
        run(recipe, lab.request(tmp_path / "rl", dry_run=True))


def test_trackers_are_told(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``tracking.report_to`` installs hears every figure, under the same names."""
    from transformers import TrainerCallback
    from transformers.integrations import integration_utils

    from stages.common import trackers

    heard: list[tuple[int, set[str]]] = []

    class Tracker(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            heard.append((state.global_step, set(logs)))

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "mlflow", Tracker)
    monkeypatch.setattr(trackers, "_installed", lambda module: True)
    recipe = lab.recipe(tracking={"report_to": ["mlflow"]})
    run(recipe, lab.request(tmp_path / "rl"))
    lines = (tmp_path / "rl" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [step for step, _ in heard] == [1, 2]
    finite = {name for name, value in rows[-1].items() if value is not None}
    assert heard[-1][1] == finite - {"step"}


def interrupted(lab: Lab, out: Path, monkeypatch: pytest.MonkeyPatch, **rl: Any) -> None:
    """A run that ends by Ctrl-C in its second iteration, after the first checkpoint."""

    from stages.rl.player import Player

    real = Player.collect

    def killed(self: Any, iteration: int, version: int) -> Any:
        if iteration == 1:
            raise KeyboardInterrupt
        return real(self, iteration, version)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Player, "collect", killed)
        lab.rl(out, **({"checkpoint_every": 1} | rl))


def test_a_checkpoint_of_another_recipe_or_run_is_refused(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(lab, tmp_path / "rl", monkeypatch)
    with pytest.raises(UsageError, match="another recipe"):
        lab.rl(tmp_path / "rl", checkpoint_every=1, actor={"learning_rate": 1e-4})
    saved = tmp_path / "rl/checkpoints/checkpoint-1"
    recipe = lab.recipe(rl={"checkpoint_every": 1})
    with pytest.raises(UsageError, match="another run"):
        run(recipe, lab.request(tmp_path / "elsewhere", resume=str(saved)))
    with pytest.raises(UsageError, match="give one of them"):
        run(recipe, lab.request(tmp_path / "rl", resume=str(saved), overwrite=True))
    assert saved.is_dir() and not (tmp_path / "elsewhere").exists()
    assert [r["step"] for r in lab.rl(tmp_path / "rl", checkpoint_every=1)] == [1, 2]


def test_the_best_weights_outlive_a_kill(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"evaluate_every": 1, "keep": "best"}
    lab.rl(tmp_path / "whole", checkpoint_every=1, **options)
    interrupted(lab, tmp_path / "cut", monkeypatch, **options)
    shutil.rmtree(tmp_path / "cut/best")  # whatever was written after the checkpoint
    lab.rl(tmp_path / "cut", checkpoint_every=1, **options)
    assert torch.equal(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


def test_a_fresh_start_after_a_kill_without_checkpoint_repeats_nothing(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(lab, tmp_path / "rl", monkeypatch, evaluate_every=1, checkpoint_every=0)
    lab.rl(tmp_path / "rl", evaluate_every=1)
    lines = (tmp_path / "rl/evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_environment_faults_end_the_run_only_when_nothing_is_left(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stages.interaction.environments.sql.environment import SqlEnvironment

    real, calls = SqlEnvironment.step, []

    def faulty(self: Any, action: Any) -> Any:
        calls.append(1)
        if len(calls) % 5 == 0:
            raise OSError("disk gone")
        return real(self, action)

    monkeypatch.setattr(SqlEnvironment, "step", faulty)
    rows = lab.rl(tmp_path / "some", iterations=1, episodes=8)
    assert rows[0]["episode/dropped"] > 0 and rows[0]["reward/success"] == 0
    monkeypatch.setattr(SqlEnvironment, "step", lambda self, action: 1 / 0)
    with pytest.raises(RunError, match="ZeroDivisionError"):
        lab.rl(tmp_path / "none", iterations=1)
