"""The keyboard and screen of the person who takes part in an episode (F8)."""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress

from stages.common.console import ask_for, show

LEAVE = ("exit", "quit")
PASTE_PAUSE = 0.05
"""Seconds within which the next line is there if it was pasted; nobody types so fast."""


class Terminal:
    """Shows lines and takes typed ones, from a keyboard or a pipe."""

    def show(self, text: str) -> None:
        """Show something to the person."""
        show(text)

    def ask(self, prompt: str = "> ") -> str | None:
        """The next text that is not blank: a line, or the lines of one paste.

        None at exit, quit, an end of input (Ctrl-D) or an interrupt (Ctrl-C).
        """
        while True:
            text = _typed(prompt) if sys.stdin.isatty() else sys.stdin.readline()
            if not text or text.strip().lower() in LEAVE:
                return None
            if text.strip():
                return text.strip()


def _typed(prompt: str) -> str:
    """What is typed at the keyboard; "" when the person leaves."""
    with suppress(ImportError):
        import readline  # noqa: F401 - arrows and earlier lines work, and pastes come whole
    try:
        if sys.stdout.isatty():
            line = input(prompt)
        else:
            ask_for(prompt)
            line = input()
    except (EOFError, KeyboardInterrupt):
        ask_for("\n")
        return ""
    return f"{line}\n{_pasted()}"


def _pasted() -> str:
    """Further lines that are there at once; read past Python's buffer, which hides them from
    ``select``."""
    rest = b""
    while select.select([sys.stdin], [], [], PASTE_PAUSE)[0]:
        piece = os.read(sys.stdin.fileno(), 65536)
        if not piece:
            break
        rest += piece
    return rest.decode(sys.stdin.encoding, "replace")
