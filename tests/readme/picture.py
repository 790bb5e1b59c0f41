"""A picture of a terminal of 80 columns: what a command shows at a moment, as SVG.

    python -m tests.readme.picture OUT.svg "iteration 20 of 30" aac run recipes/quickstart.yaml

The moment is when these words are first on the screen; "" is the end. The command goes on to its
end in any case. Nothing in the picture asks another machine for anything.
"""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from tests.terminal import COLUMNS, Terminal, shown

THEME = TerminalTheme(
    (13, 17, 23),
    (230, 237, 243),
    [(72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34), (88, 166, 255), (188, 140, 255),
     (57, 197, 207), (177, 186, 196)],
    [(110, 118, 129), (255, 161, 152), (86, 211, 100), (227, 179, 65), (121, 192, 255),
     (210, 168, 255), (86, 212, 221), (255, 255, 255)],
)  # fmt: skip
"""Light on dark, readable beside light text and dark."""
FONTS = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def at(pieces: Iterable[str | int], words: str) -> tuple[list[str], int]:
    """The screen with its colours when ``words`` first stand there, and the exit code."""
    screen, seen, code = Terminal(), [], -1
    for piece in pieces:
        if isinstance(piece, int):
            code = piece
            continue
        screen.feed(piece)
        if words and not seen and any(words in line for line in screen.lines):
            seen = list(screen.styled)
    if words and not seen:
        raise SystemExit(f"{words!r} was never on the screen")
    return seen or screen.styled, code


def svg(lines: Sequence[str], title: str) -> str:
    """A drawing of lines with their colours."""
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, legacy_windows=False
    )
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=True)
    drawn = console.export_svg(title=title, theme=THEME, unique_id="terminal")
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # they are elsewhere
    drawn = re.sub(r"font-family: Fira Code[^;]*;", f"font-family: {FONTS};", drawn)
    drawn = re.sub(r"<!--.*?-->\s*", "", drawn)
    return re.sub(r"[ \t]+$", "", drawn, flags=re.MULTILINE)


def main(out: str, words: str, *command: str) -> int:
    """Record, draw, write."""
    typed = [sys.executable, "-m", "aacli", *command[1:]] if command[0] == "aac" else command
    lines, code = at(shown(typed, Path.cwd()), words)
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    prompt = f"$ {shlex.join(command)}"
    Path(out).write_text(svg([prompt, *lines], "aac"), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
