"""Stages that train for real, by the words a person types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_models import tiny_llama

RECIPE = """
name: tiny
threads: 1
model: {{actor: {actor}}}
environment: {{name: sql}}
state: {{tool_prompt: none}}
sft: {{data: dialogues.jsonl, steps: 4, batch_size: 2, checkpoint_every: 2}}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with tiny.yaml and its data in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(RECIPE.format(actor=tiny_llama(tmp_path / "actor")))
    rows = [{"prompt": f"say {k}", "completion": f"the answer is {k}"} for k in range(8)]
    (tmp_path / "dialogues.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """``done``: the steps that were made; the person interrupts before ``cut`` is saved."""
    from stages.common import trl_trainer

    seen: dict[str, Any] = {"done": [], "cut": None}
    real = trl_trainer.RunLog.on_step_end

    def counted(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        real(self, args, state, control, **kwargs)
        seen["done"].append(state.global_step)
        if state.global_step == seen["cut"]:
            raise KeyboardInterrupt

    monkeypatch.setattr(trl_trainer.RunLog, "on_step_end", counted)
    return seen


def test_resume_goes_on_from_the_named_checkpoint(place, aac, steps):
    steps["cut"] = 3
    cut = aac("sft", "tiny.yaml")
    assert cut.exit_code == 130 and "interrupted" in cut.stderr
    checkpoint = Path("runs/tiny/sft/checkpoints/checkpoint-2")
    steps |= {"done": [], "cut": None}
    resumed = aac("sft", "tiny.yaml", "--resume", checkpoint, "--output-dir", "other")
    assert resumed.exit_code == 0, resumed.stderr
    assert steps["done"] == [3, 4]
    nowhere = aac("sft", "tiny.yaml", "--resume", "nowhere", "--output-dir", "third")
    assert nowhere.exit_code == 2
    assert "--resume nowhere is no checkpoint folder" in nowhere.stderr


def test_advice_is_shown_under_quiet(place, aac):
    words = ("--dry-run", "--quiet", "--set", "sft.learning_rate=1", "--set", "rl.ppo.kl_coef=1")
    lines = aac("sft", "tiny.yaml", *words).stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("sft.learning_rate = 1 is outside")
