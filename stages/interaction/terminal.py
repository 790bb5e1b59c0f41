"""The keyboard and screen of the person who takes part in an episode (F8)."""

from __future__ import annotations

import sys

from stages.common.console import show

LEAVE = ("exit", "quit")


class Terminal:
    """Shows lines and takes typed ones, from a keyboard or a pipe."""

    def show(self, text: str) -> None:
        """Show something to the person."""
        show(text)

    def ask(self, prompt: str = "> ") -> str | None:
        """The next line that is not blank; None at exit, quit or an end of input."""
        while True:
            if sys.stdin.isatty():
                print(prompt, end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            if not line or line.strip().lower() in LEAVE:
                return None
            if line.strip():
                return line.strip()
