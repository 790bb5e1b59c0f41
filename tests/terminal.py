"""A terminal of 80 columns: what a command leaves on it, line by line, with its colours."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
COLUMNS, LINES = 80, 40
ASKS = ("> ", ": ", "? ")
"""How a line ends that waits for a person."""


class Terminal:
    """Keeps what is on the screen and above it."""

    def __init__(self) -> None:
        self.styled: list[str] = [""]
        """Lines with their colours, as codes."""
        self.row = 0

    @property
    def lines(self) -> list[str]:
        """Lines as they read."""
        return [COLOUR.sub("", line) for line in self.styled]

    def feed(self, text: str) -> None:
        """Text, line ends, and the moves of the cursor that boards are drawn with."""
        for piece in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)", text):
            if piece == "\n":
                self.row += 1
                self.styled += [""] * (self.row + 1 - len(self.styled))
            elif CONTROL.fullmatch(piece):
                self._control(piece)
            elif piece not in ("", "\r"):
                self.styled[self.row] += piece

    def _control(self, code: str) -> None:
        count = int(re.sub(r"\D", "", code) or 1)
        if code.endswith("m"):
            self.styled[self.row] += code
        elif code.endswith("A"):
            assert count <= self.row, "the cursor leaves the screen"
            self.row -= count
        elif code.endswith("K"):
            self.styled[self.row] = ""


def shown(command: Sequence[str], folder: Path, typed: Sequence[str] = ()) -> Iterator[str | int]:
    """Run a command on a pseudo-terminal: what it shows, piece by piece, then its exit code.

    ``typed``: a line for each time it asks; then the end of input.
    """
    lines = [*(f"{line}\n" for line in typed), "\x04"]
    main, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment = kept | {"TERM": "xterm", "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    process = subprocess.Popen(
        command,
        stdin=child, stdout=child, stderr=child, cwd=folder, env=environment, close_fds=True,
    )  # fmt: skip
    os.close(child)
    rest, line = b"", ""
    while piece := _read(main):
        rest += piece
        whole = rest.decode(errors="ignore")  # a character may be cut in two
        if whole.encode() == rest:
            rest = b""
            yield whole
            line = (line + CONTROL.sub("", whole)).rpartition("\n")[2]
            if lines and line.endswith(ASKS):
                os.write(main, lines.pop(0).encode())
                line = ""
    os.close(main)
    yield process.wait()


def _read(main: int) -> bytes:
    try:
        return os.read(main, 65536)
    except OSError:  # Linux: the other end is closed
        return b""


def in_terminal(
    folder: Path, *words: str, program: str | None = None, typed: Sequence[str] = ()
) -> tuple[int, Terminal]:
    """Run ``aac`` with these words, or a program of Python; its exit code and the screen."""
    start = ["-m", "aacli"] if program is None else ["-c", program]
    screen, code = Terminal(), -1
    for piece in shown([sys.executable, *start, *words], folder, typed):
        if isinstance(piece, int):
            code = piece
        else:
            screen.feed(piece)
    return code, screen
