"""What holds for every test: no network, one thread for numerics, a quiet and wide terminal."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

# Before anything imports numpy or torch. Tests share few cores, and hubs must not be asked.
for _name, _value in {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "COLUMNS": "100",
    "NO_COLOR": "1",
}.items():
    os.environ[_name] = _value

import pytest  # noqa: E402

_LOOPBACK = {"localhost", "::1", ""}


class NetworkBlocked(RuntimeError):
    """A test tried to reach another machine."""


def _allowed(family: int, address: Any) -> bool:
    if family == getattr(socket, "AF_UNIX", None):
        return True
    host = address[0] if isinstance(address, tuple) else address
    return str(host) in _LOOPBACK or str(host).startswith("127.")


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """Sockets reach this machine only."""
    patch = pytest.MonkeyPatch()

    def guard(name: str) -> None:
        real = getattr(socket.socket, name)

        def checked(self: socket.socket, address: Any) -> Any:
            if not _allowed(self.family, address):
                raise NetworkBlocked(f"a test tried to reach {address}; tests use no network.")
            return real(self, address)

        patch.setattr(socket.socket, name, checked)

    guard("connect")
    guard("connect_ex")
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def default_console() -> Iterator[None]:
    """A command's --quiet or --json must not leak into the next test."""
    yield
    from stages.common import console

    console.configure()
