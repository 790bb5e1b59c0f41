"""What a person sees in a terminal of 80 columns while a stage trains."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.aacli.test_trackers import furnished

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
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A terminal of 80 columns and 40 lines that keeps what is on it, line by line."""

    def __init__(self) -> None:
        self.lines: list[str] = [""]
        self.row = 0

    def feed(self, text: str) -> None:
        """Text, line ends, and the moves of the cursor that boards are drawn with."""
        for piece in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)", text):
            if piece == "\n":
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif CONTROL.fullmatch(piece):
                self._control(piece)
            elif piece not in ("", "\r"):
                self.lines[self.row] += piece

    def _control(self, code: str) -> None:
        count = int(re.sub(r"\D", "", code) or 1)
        if code.endswith("A"):
            assert count <= self.row, "the cursor leaves the screen"
            self.row -= count
        elif code.endswith("K"):
            self.lines[self.row] = ""


def in_terminal(folder: Path, *words: str, program: str = LOUD) -> tuple[int, Terminal]:
    """Run the command on a pseudo-terminal; its exit code and what is left on the screen."""
    main, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    root = str(Path(__file__).parents[2])
    environment = kept | {"TERM": "xterm", "PYTHONPATH": root, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdin=child, stdout=child, stderr=child, cwd=folder, env=environment, close_fds=True,
    )  # fmt: skip
    os.close(child)
    shown = b""
    while True:
        try:
            piece = os.read(main, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(main)
    screen = Terminal()
    screen.feed(shown.decode())
    return done.wait(), screen


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return furnished(tmp_path)


def check(screen: Terminal, log: Path) -> None:
    """No line is too long, and other libraries speak in the log only."""
    assert [line for line in screen.lines if cell_len(line) > 80 and "aac " not in line] == []
    assert not [line for line in screen.lines if "library" in line or "Warning" in line]
    assert log.read_text().count(NOISE) >= 4 * 2


def test_a_stage_in_a_terminal_of_80_columns(place):
    code, screen = in_terminal(place, "sft", "tiny.yaml")
    text = "\n".join(screen.lines)
    assert code == 0, text
    check(screen, place / "runs/tiny/sft/log.txt")
    assert text.count("╭─ sft ") == 1, text  # one frame is left, and it is whole
    assert re.search(r"loss +\d", text) and "step 2 of 2, done in" in text
    assert "sft: done; " in text and "next: aac train-reward tiny.yaml" in text


@pytest.mark.full
def test_all_stages_in_a_terminal_say_which_they_are(place):
    words = ("--set", "evaluation.episodes=2", "--set", "evaluation.readiness=false")
    code, screen = in_terminal(place, "run", "tiny.yaml", *words)
    text = "\n".join(screen.lines)
    assert code == 0, text
    check(screen, place / "runs/tiny/sft/log.txt")
    assert text.count("╭─ sft  stage 1 of 2 ") == 1 == text.count("╭─ rl  stage 2 of 2 ")
    assert "iteration 2 of 2, done in" in text
    for shown in ("success ", "reward ", "KL ", "parts ", "alarm ", "goal: ", "turn 2: "):
        assert shown in text, shown
