"""What a person sees in a terminal of 80 columns while a stage trains."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.aacli.test_trackers import furnished
from tests.terminal import Terminal, in_terminal

NOISE = "warnings.warn, print and logging of a library"
LOUD = f"""
import logging, sys, warnings
from transformers import TrainerCallback
from stages.common import trl_trainer
real = trl_trainer.RunLog.on_step_end
def noisy(self, *args, **kwargs):
    print({NOISE!r}); print({NOISE!r}, file=sys.stderr)
    warnings.warn({NOISE!r}, FutureWarning)
    logging.getLogger("transformers.trainer").warning({NOISE!r})
    return real(self, *args, **kwargs)
trl_trainer.RunLog.on_step_end = noisy
from aacli.__main__ import main
main()
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return furnished(tmp_path)


def check(screen: Terminal, log: Path) -> None:
    """No line is too long, and other libraries speak in the log only."""
    assert [line for line in screen.lines if cell_len(line) > 80 and "aac " not in line] == []
    assert not [line for line in screen.lines if "library" in line or "Warning" in line]
    assert log.read_text().count(NOISE) >= 4 * 2


def test_a_stage_in_a_terminal_of_80_columns(place):
    code, screen = in_terminal(place, "sft", "tiny.yaml", program=LOUD)
    text = "\n".join(screen.lines)
    assert code == 0, text
    check(screen, place / "runs/tiny/sft/log.txt")
    assert text.count("╭─ sft ") == 1, text  # one frame is left, and it is whole
    assert re.search(r"loss +\d", text) and "step 2 of 2, done in" in text
    assert "sft: done; " in text and "next: aac train-reward tiny.yaml" in text


@pytest.mark.full
def test_all_stages_in_a_terminal_say_which_they_are(place):
    words = ("--set", "evaluation.episodes=2", "--set", "evaluation.readiness=false")
    code, screen = in_terminal(place, "run", "tiny.yaml", *words, program=LOUD)
    text = "\n".join(screen.lines)
    assert code == 0, text
    check(screen, place / "runs/tiny/sft/log.txt")
    assert text.count("╭─ sft  stage 1 of 2 ") == 1 == text.count("╭─ rl  stage 2 of 2 ")
    assert "iteration 2 of 2, done in" in text
    for shown in ("success ", "reward ", "KL ", "parts ", "alarm ", "goal: ", "turn 2: "):
        assert shown in text, shown
