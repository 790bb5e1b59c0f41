"""The whole stage on its run folder: what it leaves, what it refuses, and an exact resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.integrations import integration_utils

from stages.common import trackers
from stages.common.errors import HandoffError, UsageError
from stages.common.manifest import verify_parent
from stages.common.run_folder import RunRequest, read_rows
from stages.recipe.models import Recipe
from stages.sft.run import run
from tests.tiny_models import tiny_llama, tiny_qwen3


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(Path(tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def dialogues(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = Path(tmp_path_factory.mktemp("data")) / "dialogues.jsonl"
    rows = [
        {"instruction": f"say {word}", "history": [["hi", "hello"]], "reply": f"{word} {word}"}
        for word in ("orders", "query", "answer", "error", "table", "goal", "done", "unit")
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def recipe(actor: Path, frozen: tuple[str, ...] = ("embed_tokens",), **sft: Any) -> Recipe:
    section = {"demonstrations": 6, "steps": 4, "batch_size": 2, "max_length": 800} | sft
    return Recipe.model_validate(
        {
            "name": "test",
            "model": {"actor": str(actor), "frozen": frozen},
            "environment": {"name": "sql"},
            "state": {"tool_prompt": "none"},
            "sft": section,
        }
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    return state


def test_demonstrations_to_a_plain_verified_folder(llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "sft"
    summary = run(recipe(llama), RunRequest(out))
    manifest = verify_parent(out, "sft")
    assert manifest.stage == "sft" and manifest.metrics["dialogues"] == 6
    assert manifest.state["tool_prompt"] == "none" and list(manifest.data) == ["demonstrations"]
    assert summary["steps"] == 4 and summary["seconds"] > 0 and 0 <= summary["data_success"] <= 1
    before, after = weights(llama), weights(out)
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name]) == (name in FROZEN), name
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(llama).chat_template
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["step"] == 4 and lines[0]["sft/loss"] > 0
    assert lines[-1]["sft/validation_loss"] == pytest.approx(summary["validation_loss"])
    rows = read_rows(out)
    assert len(rows) == summary["rows"] and len(rows[0]["input_ids"]) == len(rows[0]["action_mask"])
    assert not (out / "checkpoints").exists()


FROZEN = ("model.embed_tokens.weight", "lm_head.weight")


@pytest.mark.parametrize("build", [tiny_llama, tiny_qwen3])
def test_a_persons_file_is_learned(build: Any, dialogues: Path, tmp_path: Path) -> None:
    """A memorised reply comes back greedily, stop token and all, from the plain folder."""
    actor = build(tmp_path / "base", initializer_range=0.1)
    sft = {"data": dialogues, "steps": 75, "batch_size": 8, "validation_fraction": 0}
    section = recipe(actor, (), **sft, learning_rate=0.01)
    summary = run(section, RunRequest(tmp_path / "out"))
    assert summary["loss"] < 0.1 and "data_success" not in summary
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "say error"},
    ]
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**inputs, max_new_tokens=20, do_sample=False)
    reply = out[0, inputs["input_ids"].shape[1] :]
    assert tokenizer.decode(reply) == "error error" + tokenizer.eos_token


def test_same_seed_same_weights_and_another_seed_others(
    llama: Path, dialogues: Path, tmp_path: Path
) -> None:
    section = recipe(llama, data=dialogues)
    for name in ("a", "b"):
        run(section, RunRequest(tmp_path / name))
    run(section.model_copy(update={"seed": 1}), RunRequest(tmp_path / "c"))
    one, two, other = (weights(tmp_path / name) for name in "abc")
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_accumulation_equals_large_batches(llama: Path, dialogues: Path, tmp_path: Path) -> None:
    for name, size, pieces in (("a", 4, 1), ("b", 2, 2), ("c", 1, 4)):
        section = recipe(llama, data=dialogues, batch_size=size, gradient_accumulation=pieces)
        run(section, RunRequest(tmp_path / name))
    one, *others = (weights(tmp_path / name) for name in "abc")
    for other in others:
        for name in one:
            # Four steps of Adam: where a gradient is all but zero, its sign is rounding's.
            torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-5)


def test_half_precision_weights_are_kept_as_asked(
    llama: Path, dialogues: Path, tmp_path: Path
) -> None:
    section = recipe(llama, data=dialogues)
    model = section.model.model_copy(update={"dtype": "bfloat16"})
    run(section.model_copy(update={"model": model}), RunRequest(tmp_path / "half"))
    kinds = {tensor.dtype for tensor in weights(tmp_path / "half").values()}
    assert kinds == {torch.bfloat16}


@contextmanager
def cut_after(monkeypatch: pytest.MonkeyPatch, step: int) -> Iterator[None]:
    """The person interrupts training once this step is done."""
    from stages.common import trl_trainer

    real = trl_trainer.RunLog.on_step_end

    def killed(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        real(self, args, state, control, **kwargs)
        if state.global_step == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(trl_trainer.RunLog, "on_step_end", killed)
    with pytest.raises(KeyboardInterrupt):
        yield
    monkeypatch.undo()


def test_killed_and_resumed_equals_uninterrupted(
    llama: Path, dialogues: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = recipe(llama, data=dialogues, steps=8)
    run(section, RunRequest(tmp_path / "whole"))

    with cut_after(monkeypatch, 7):
        run(section, RunRequest(tmp_path / "cut"))
    kept = sorted(path.name for path in (tmp_path / "cut" / "checkpoints").iterdir())
    assert (
        kept == ["checkpoint-4", "checkpoint-6"]
        and not (tmp_path / "cut" / "manifest.json").exists()
    )
    run(section, RunRequest(tmp_path / "cut"))
    one, two = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(one[name], two[name]) for name in one)
    steps = [
        json.loads(line)["step"]
        for line in (tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()
    ]
    assert steps == sorted(steps) and steps.count(8) == 2  # the last loss, and the validation


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"checkpoint_every": 3}, [3]),  # a quarter of eight steps would be two
        ({"checkpoint_every": 1, "checkpoints_kept": 3}, [2, 3, 4]),
        ({"checkpoint_every": 100, "checkpoint_minutes": 1e-6}, [3, 4]),
        ({"checkpoint_every": 100, "checkpoint_minutes": 0}, []),
    ],
)
def test_checkpoints_come_as_often_as_asked(
    llama: Path,
    dialogues: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    kept: list[int],
) -> None:
    section = recipe(llama, data=dialogues, steps=8, **options)
    with cut_after(monkeypatch, 5):
        run(section, RunRequest(tmp_path / "cut"))
    found = sorted(path.name for path in (tmp_path / "cut" / "checkpoints").glob("checkpoint-*"))
    assert found == [f"checkpoint-{step}" for step in kept]


def test_when_state_was_saved_changes_nothing(
    llama: Path, dialogues: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be saved at other times when the run goes on: that is not another recipe."""
    section = recipe(llama, data=dialogues, steps=8)
    run(section, RunRequest(tmp_path / "whole"))
    with cut_after(monkeypatch, 5):
        run(
            recipe(llama, data=dialogues, steps=8, checkpoint_every=3), RunRequest(tmp_path / "cut")
        )
    assert run(section, RunRequest(tmp_path / "cut"))["steps"] == 8
    one, two = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(one[name], two[name]) for name in one)
    with cut_after(monkeypatch, 5):
        run(section, RunRequest(tmp_path / "other"))
    for change in ({"learning_rate": 1e-4}, {"batch_size": 4}):
        with pytest.raises(UsageError, match="checkpoint-4 was made with another recipe"):
            run(recipe(llama, data=dialogues, steps=8, **change), RunRequest(tmp_path / "other"))
    fewer = tmp_path / "fewer.jsonl"
    fewer.write_text("".join(dialogues.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(UsageError, match="was made with other training data"):
        run(recipe(llama, data=fewer, steps=8), RunRequest(tmp_path / "other"))


def test_the_best_weights_are_kept_and_survive_a_kill(
    llama: Path, dialogues: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate that learns the training rows by heart makes the held-out ones worse in the end."""
    options = {"steps": 12, "checkpoint_every": 2, "learning_rate": 0.03}
    last = run(recipe(llama, data=dialogues, **options), RunRequest(tmp_path / "last"))
    section = recipe(llama, data=dialogues, keep="best", **options)
    summary = run(section, RunRequest(tmp_path / "best"))
    rows = map(json.loads, (tmp_path / "best/metrics.jsonl").read_text().splitlines())
    losses = [row["sft/validation_loss"] for row in rows if "sft/validation_loss" in row]
    assert len(losses) == 7 and min(losses) == summary["best_loss"] < last["validation_loss"]
    assert summary["best_step"] == 2 * (losses.index(min(losses)) + 1) < 12
    assert losses[-1] == pytest.approx(min(losses))  # of what is handed over
    assert losses[-2] == pytest.approx(last["validation_loss"])  # training noticed nothing
    with cut_after(monkeypatch, summary["best_step"] + 3):
        run(section, RunRequest(tmp_path / "cut"))
    run(section, RunRequest(tmp_path / "cut"))
    one, two = weights(tmp_path / "best"), weights(tmp_path / "cut")
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not (tmp_path / "cut/best").exists()
    with pytest.raises(ValueError, match="validation_fraction is 0"):
        recipe(llama, data=dialogues, keep="best", validation_fraction=0)


def test_finished_folder_and_dry_run(llama: Path, dialogues: Path, tmp_path: Path) -> None:
    out = tmp_path / "sft"
    summary = run(recipe(llama, data=dialogues), RunRequest(out, dry_run=True))
    assert summary["rows"] == 7 and not out.exists()
    run(recipe(llama, data=dialogues), RunRequest(out))
    with pytest.raises(HandoffError, match="already holds a finished run"):
        run(recipe(llama, data=dialogues), RunRequest(out))
    with pytest.raises(UsageError):  # found late, yet the finished run is still there
        run(recipe(llama, data=dialogues, trainer={"x": 1}), RunRequest(out, overwrite=True))
    assert verify_parent(out).metrics["steps"] == 4
    run(recipe(llama, data=dialogues, steps=1), RunRequest(out, overwrite=True))
    assert verify_parent(out).metrics["steps"] == 1


def test_cloning_successes_of_an_episode_file(llama: Path, tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    file = tmp_path / "d.jsonl"
    file.write_text("".join(json.dumps(row | {"success": k % 2 == 0}) + "\n" for k in range(6)))
    section = recipe(llama, data=file, only_successful=True, steps=1)
    assert run(section, RunRequest(tmp_path / "out"))["dialogues"] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"frozen": ["wte"]}}, "model.frozen has 'wte'"),
        ({"sft": {"max_length": 8}}, "a reply alone is longer than sft.max_length"),
        ({"sft": {"trainer": {"packing": True}}}, r"sft\.trainer\.packing"),
    ],
)
def test_mistakes_are_usage_errors(
    llama: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text(
        json.dumps({"prompt": "hi", "completion": "a long answer to a question"}) + "\n"
    )
    content = recipe(llama, data=file).model_dump()
    for section, values in change.items():
        content[section] |= values
    with pytest.raises(UsageError, match=message):
        run(Recipe.model_validate(content), RunRequest(tmp_path / "out"))
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_warm_up_is_a_share_of_the_steps(llama: Path, dialogues: Path, tmp_path: Path) -> None:
    often = {"logging_steps": 1}
    for name, share, expected in (("none", 0.0, [8, 6, 4, 2]), ("half", 0.5, [0, 4, 8, 4])):
        section = recipe(
            llama, data=dialogues, warmup_fraction=share, learning_rate=8e-4, trainer=often
        )
        run(section, RunRequest(tmp_path / name))
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        rates = [row["sft/learning_rate"] for row in map(json.loads, lines) if "sft/loss" in row]
        assert rates == pytest.approx([1e-4 * rate for rate in expected])


def tracked(report_to: list[str], section: Recipe) -> Recipe:
    return Recipe.model_validate(section.model_dump() | {"tracking": {"report_to": report_to}})


def test_a_tracker_is_told_the_losses(
    llama: Path, dialogues: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []

    class Tracker(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            assert (args.run_name, args.project) == ("test-sft", "aac")
            told.extend(value for name, value in kwargs["logs"].items() if name == "sft/loss")

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "mlflow", Tracker)
    monkeypatch.setattr(trackers, "_installed", lambda module: True)
    section = tracked(["mlflow"], recipe(llama, data=dialogues))
    summary = run(section, RunRequest(tmp_path / "out"))
    assert told[-1] == pytest.approx(summary["loss"], abs=1e-3)


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_tracker_that_is_not_there_is_refused(
    llama: Path, dialogues: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    monkeypatch.setattr(trackers, "_installed", lambda module: False)
    request = RunRequest(tmp_path / "out", dry_run=dry_run)
    with pytest.raises(UsageError, match="run pip install tensorboard, or take the name"):
        run(tracked(["tensorboard"], recipe(llama, data=dialogues)), request)
    assert not (tmp_path / "out").exists()


def test_a_rate_outside_the_usual_range_is_told(
    llama: Path, dialogues: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = RunRequest(tmp_path / "out", dry_run=True)
    run(recipe(llama, data=dialogues, learning_rate=0.5), request)
    assert "sft.learning_rate = 0.5 is outside the usual" in capsys.readouterr().err
    run(recipe(llama, data=dialogues), request)
    assert capsys.readouterr().err == ""
