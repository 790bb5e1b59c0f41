"""A person at a real keyboard: pastes come whole, and leaving is polite."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE = 60
"""Seconds without a word after which it is given up."""
CTRL_C = "\x03"
READ = """
from stages.interaction.terminal import Terminal
terminal = Terminal()
while (text := terminal.ask()) is not None:
    print("GOT", repr(text), flush=True)
print("LEFT", flush=True)
"""


def at_its_terminal() -> None:
    """In the child: the terminal is its own, and Ctrl-C is heard even where these tests run in the
    background of a shell, which has its jobs ignore it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def typed(*pieces: str) -> list[str]:
    """What is read of pieces, each typed once there is a prompt for it."""
    main, child = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "PYTHONPATH": str(ROOT)}
    reader = subprocess.Popen(
        [sys.executable, "-c", READ],
        stdin=child, stdout=child, stderr=child, env=environment, start_new_session=True,
        preexec_fn=at_its_terminal,
    )  # fmt: skip
    os.close(child)
    shown, left = b"", list(pieces)
    while True:
        heard = select.select([main], [], [], 2)[0]
        if not heard and not left and pieces[-1] == CTRL_C:
            # readline misses a signal that comes just before it waits: a person presses again.
            os.write(main, CTRL_C.encode())
        if not heard and not select.select([main], [], [], PATIENCE)[0]:
            reader.kill()
            pytest.fail(f"nothing more came after {shown!r}; not typed yet: {left}")
        try:
            shown += os.read(main, 65536)
        except OSError:  # Linux: the other end is closed
            break
        # What was typed before has been read, and there is a prompt for the next.
        read = shown.count(b"GOT") == len(pieces) - len(left)
        if left and read and b"> " in shown.rpartition(b"GOT")[2]:
            os.write(main, left.pop(0).encode())
    os.close(main)
    assert reader.wait() == 0
    assert b"Traceback" not in shown
    lines = shown.decode().replace("\r", "").split("\n")
    return [line for line in lines if line.startswith(("GOT", "LEFT"))]


@pytest.mark.parametrize("leave", ["\x04", CTRL_C, "exit\n"])
def test_lines_pastes_and_ways_to_leave(leave):
    pasted = "\x1b[200~first line\nsecond line\x1b[201~\n"
    found = typed("a question\n", "one\ntwo\nthree\n", pasted, leave)
    assert found == [
        "GOT 'a question'",
        r"GOT 'one\ntwo\nthree'",
        r"GOT 'first line\nsecond line'",
        "LEFT",
    ]
