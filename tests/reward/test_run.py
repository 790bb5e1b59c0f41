"""The whole stage on its folders: hand-over, figures, resume, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from stages.common import trackers
from stages.common.errors import HandoffError, RunError, UsageError
from stages.common.libraries import quiet_libraries
from stages.common.manifest import verify_parent
from stages.common.run_folder import RunRequest, read_rows
from stages.interaction.rewards.scorer import RewardModelScorer
from stages.interaction.trajectory import Action, Trajectory, Turn
from stages.recipe.models import Recipe
from stages.reward import run as stage
from stages.reward.run import run
from stages.sft.run import run as run_sft
from tests.tiny_models import tiny_llama, tiny_qwen3


def recipe(actor: Path, sft_data: Path | None = None, **reward: Any) -> Recipe:
    section = {"batch_size": 4, "held_out_fraction": 0.25, "max_length": 200} | reward
    return Recipe.model_validate(
        {
            "name": "test",
            "model": {"actor": str(actor), "frozen": ["embed_tokens"]},
            "environment": {"name": "sql"},
            "state": {"tool_prompt": "none"},
            "sft": {"data": sft_data, "steps": 1, "batch_size": 4, "max_length": 200},
            "reward": section,
        }
    )


@pytest.fixture(scope="module")
def preferences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = Path(tmp_path_factory.mktemp("data")) / "preferences.jsonl"
    rows = [
        {"prompt": f"say {k}", "chosen": f"the answer is {k}", "rejected": f"error {k}"}
        for k in range(24)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture(scope="module", params=[tiny_llama, tiny_qwen3])
def sft(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = Path(tmp_path_factory.mktemp("sft"))
    base = request.param(root / "base")
    file = root / "d.jsonl"
    rows = [{"prompt": f"say {k}", "completion": f"the answer is {k}"} for k in range(4)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_sft(recipe(base, file), RunRequest(root / "sft"))
    return root / "sft"


def ask(sft: Path, out: Path, **changes: Any) -> RunRequest:
    return RunRequest(out, parents={"sft": sft}, **changes)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    with quiet_libraries(None):
        model = AutoModelForSequenceClassification.from_pretrained(folder)
    state: dict[str, torch.Tensor] = model.state_dict()
    return state


def test_a_persons_pairs_to_a_verified_scorer(sft: Path, preferences: Path, tmp_path: Path) -> None:
    out = tmp_path / "reward"
    summary = run(recipe(sft, data=preferences, epochs=8), ask(sft, out))
    assert summary["pairs"] == 24 and summary["held_out"] == 6 and summary["dropped"] == 0
    assert summary["accuracy"] == 1.0 and summary["margin"] > 0.5
    assert sum(part["pairs"] for part in summary["accuracy_by_length"].values()) == 6
    manifest = verify_parent(out, "reward")
    assert manifest.parents["sft"]["path"] == str(sft)
    assert manifest.parents["sft"]["hash"] == verify_parent(sft).content_hash
    assert manifest.tokenizer_hash == verify_parent(sft).tokenizer_hash
    assert manifest.chat_template_hash == verify_parent(sft).chat_template_hash
    assert manifest.score == {"mean": summary["score_mean"], "std": summary["score_std"]}
    with quiet_libraries(None):
        scorer = RewardModelScorer(out)
    assert (scorer.mean, scorer.std) == (summary["score_mean"], summary["score_std"])
    assert torch.equal(
        weights(out)["model.embed_tokens.weight"], weights(sft)["model.embed_tokens.weight"]
    )
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert {"reward/loss", "reward/accuracy", "reward/margin"} <= set(lines[0])
    assert lines[-1]["reward/held_out_accuracy"] == 1.0
    assert len(read_rows(out)) == 24 and not (out / "checkpoints").exists()


def episodes(count: int = 12) -> list[Trajectory]:
    """Tasks played twice: the reply "answer" succeeds, the reply "error" does not."""
    made = []
    for k in range(count):
        for reply, success in (("answer", True), ("error", False)):
            shown = ({"role": "user", "content": f"How many orders {k}?"},)
            turn = Turn(0, shown, Action(f"{reply} {k}"), rewards={"success": float(success)})
            made.append(
                Trajectory(
                    f"task {k}", "count", "shop", "goal", turns=(turn,), terminated=True,
                    success=success,
                )
            )  # fmt: skip
    return made


def test_preferences_of_the_actors_play(
    sft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def play(recipe: Any, arena: Any, actor: Path, _: Any) -> list[Trajectory]:
        asked.append(actor)
        return episodes()

    monkeypatch.setattr(stage, "play", play)
    summary = run(recipe(sft, epochs=8, tasks=12, samples_per_task=2), ask(sft, tmp_path / "r"))
    assert asked == [sft]
    assert summary["pairs"] == 12 and summary["accuracy"] == 1.0
    # The statistics are those of the actor's turns, under the trained model.
    with quiet_libraries(None):
        scored = RewardModelScorer(tmp_path / "r").score(episodes())
    found = np.array([t.rewards["reward_model"] for e in scored for t in e.turns])
    assert summary["score_mean"] == pytest.approx(found.mean(), rel=1e-5, abs=1e-6)
    assert summary["score_std"] == pytest.approx(found.std(), rel=1e-5)
    assert read_rows(tmp_path / "r")[0]["task_id"].startswith("task")


def test_play_without_differences_is_told(
    sft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "play", lambda *a, **k: episodes()[::2])
    with pytest.raises(RunError, match=r"12 episodes of the SFT actor gave no preferences"):
        run(recipe(sft), ask(sft, tmp_path / "r"))


def test_an_untrained_actor_plays_for_real(sft: Path, tmp_path: Path) -> None:
    """A random actor never differs in outcome; that it played at all is in the message."""
    section = recipe(sft, tasks=2, samples_per_task=2)
    rl = section.rl.model_copy(
        update={"actor": section.rl.actor.model_copy(update={"max_new_tokens": 3})}
    )
    section = section.model_copy(update={"rl": rl})
    with pytest.raises(RunError, match="4 episodes of the SFT actor gave no preferences"):
        run(section, ask(sft, tmp_path / "r"))


# Of nine steps a quarter is two.
@pytest.mark.parametrize(("every", "kept"), [(0, "checkpoint-4"), (3, "checkpoint-3")])
def test_same_seed_same_scores_and_resume_is_exact(
    sft: Path,
    preferences: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    every: int,
    kept: str,
) -> None:
    section = recipe(sft, data=preferences, epochs=2, checkpoint_every=every)
    run(section, ask(sft, tmp_path / "whole"))

    from stages.common import trl_trainer

    real = trl_trainer.RunLog.on_step_end

    def killed(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        real(self, args, state, control, **kwargs)
        if state.global_step == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(trl_trainer.RunLog, "on_step_end", killed)
    with pytest.raises(KeyboardInterrupt):
        run(section, ask(sft, tmp_path / "cut"))
    monkeypatch.undo()
    assert max(p.name for p in (tmp_path / "cut/checkpoints").iterdir()) == kept
    run(section, ask(sft, tmp_path / "cut"))
    one, two = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_best_weights_are_kept_and_survive_a_kill(
    sft: Path, preferences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"epochs": 2, "checkpoint_every": 2, "learning_rate": 0.3, "keep": "best"}
    section = recipe(sft, data=preferences, **options)
    summary = run(section, ask(sft, tmp_path / "best"))
    rows = map(json.loads, (tmp_path / "best/metrics.jsonl").read_text().splitlines())
    losses = [row["reward/held_out_loss"] for row in rows if "reward/held_out_loss" in row]
    assert min(losses[:-1]) == summary["best_loss"] == pytest.approx(losses[-1])
    assert summary["held_out_loss"] == losses[-1] and summary["best_step"] < 12

    from stages.common import trl_trainer

    real = trl_trainer.RunLog.on_step_end

    def killed(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        real(self, args, state, control, **kwargs)
        if state.global_step == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(trl_trainer.RunLog, "on_step_end", killed)
    with pytest.raises(KeyboardInterrupt):
        run(section, ask(sft, tmp_path / "cut"))
    monkeypatch.undo()
    again = run(section, ask(sft, tmp_path / "cut"))
    assert (again["best_step"], again["best_loss"]) == (summary["best_step"], summary["best_loss"])
    one, two = weights(tmp_path / "best"), weights(tmp_path / "cut")
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_accumulation_equals_large_batches(sft: Path, preferences: Path, tmp_path: Path) -> None:
    for name, size, pieces in (("a", 4, 1), ("b", 2, 2), ("c", 2, 1)):
        section = recipe(sft, data=preferences, batch_size=size, gradient_accumulation=pieces)
        run(section, ask(sft, tmp_path / name))
    one, two, other = (weights(tmp_path / name) for name in "abc")
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)
    assert not all(torch.allclose(one[n], other[n], rtol=1e-4, atol=1e-5) for n in one)


def test_parents_are_proved_before_anything_else(
    sft: Path, preferences: Path, tmp_path: Path
) -> None:
    section = recipe(sft, data=preferences)
    with pytest.raises(HandoffError, match="there is no SFT folder"):
        run(section, RunRequest(tmp_path / "r"))
    with pytest.raises(HandoffError, match="does not exist"):
        run(section, ask(tmp_path / "none", tmp_path / "r"))
    other = recipe(sft, data=preferences, base="actor", epochs=0.2)
    assert run(other, RunRequest(tmp_path / "r"))["steps"] == 1
    assert verify_parent(tmp_path / "r", "reward").parents == {}
    with pytest.raises(HandoffError, match="already holds a finished run"):
        run(other, RunRequest(tmp_path / "r"))


def test_a_tracker_that_is_not_there_is_refused(
    sft: Path, preferences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "_installed", lambda module: False)
    content = recipe(sft, data=preferences).model_dump()
    section = Recipe.model_validate(content | {"tracking": {"report_to": ["tensorboard"]}})
    with pytest.raises(UsageError, match="run pip install tensorboard, or take the name"):
        run(section, ask(sft, tmp_path / "r"))
    assert not (tmp_path / "r").exists()


def test_dry_run_checks_the_data_and_writes_nothing(sft: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps({"prompt": "a", "chosen": "b", "rejected": "b"}) + "\n")
    section = recipe(sft, data=file)
    with pytest.raises(UsageError, match=r"p\.jsonl line 1: chosen and rejected are the same"):
        run(section, ask(sft, tmp_path / "r", dry_run=True))
    assert not (tmp_path / "r").exists()
    assert run(recipe(sft), ask(sft, tmp_path / "r", dry_run=True)) == {}
