"""Runs an agent's programs in a supervised process that is shared by all who ask in turn."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_SERVER = Path(__file__).with_name("server.py")
_MOST_SERVERS = 16
_GRACE_S = 10.0
"""How much longer than its limit a program's server may take before it is given up."""


@dataclass(frozen=True)
class Limits:
    """What one run of a program may use."""

    wall_s: float = 2.0
    cpu_s: int = 2
    memory_bytes: int = 256_000_000
    file_bytes: int = 1_000_000
    """Largest file it may write."""
    files: int = 32
    """Times it may open a file for writing."""
    output_bytes: int = 20_000
    """It is stopped when it has written more."""


@dataclass(frozen=True)
class Outcome:
    """What came of one run."""

    output: str
    """What it wrote to its standard output and error."""
    results: tuple[Mapping[str, Any], ...]
    """Per call that ended ``{"value": ...}`` or ``{"error": text}``."""
    stopped: str | None
    """Why it was stopped, in words; None if it ended by itself."""
    failed: bool
    """The program itself (not one of the calls) ended with an error."""

    @property
    def timed_out(self) -> bool:
        """It was stopped for the time it took."""
        return self.stopped is not None and "longer than" in self.stopped


class SandboxError(RuntimeError):
    """The sandbox itself failed: no fault of the program."""


class Sandbox:
    """A folder of its own for programs to work in. ``close`` removes it and what runs in it."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def run(
        self,
        program: str,
        code: str = "",
        *,
        function: str = "",
        calls: Sequence[Sequence[Any]] = (),
    ) -> Outcome:
        """Run ``program``, then ``code`` in the same names, then ``function`` on each call's list.

        Raises SandboxError if the sandbox itself fails.
        """
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="aac-")
            _SERVERS.enter()
        request: dict[str, Any] = {
            "program": _plain(program),
            "code": _plain(code),
            "function": function,
        }
        request |= {"calls": [list(call) for call in calls], "folder": self._folder.name}
        reply = _SERVERS.ask(request | asdict(self.limits), self.limits.wall_s + _GRACE_S)
        lines = str(reply["results"]).split("\n")[:-1]
        results = tuple(_parsed(line) for line in lines[: len(calls)])
        return Outcome(str(reply["output"]), results, self._why(reply), reply["code"] == 1)

    def clear(self) -> None:
        """Forget the files of the episode before."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = tempfile.TemporaryDirectory(prefix="aac-")

    def close(self) -> None:
        """Remove the folder; the process ends with the last sandbox that used it."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
            _SERVERS.leave()

    def _why(self, reply: Mapping[str, Any]) -> str | None:
        limits, code = self.limits, int(reply["code"])
        if reply["ended"] in ("wall", "cpu"):
            return f"took longer than {limits.wall_s:g} s"
        if reply["ended"] == "output":
            return f"wrote more than {limits.output_bytes} bytes"
        return f"was ended by signal {-code}" if code < 0 else None


class _Servers:
    """The servers of this process while any sandbox is open, as many as are asked at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seats = threading.Semaphore(_MOST_SERVERS)
        self._users = 0
        self._free: list[subprocess.Popen[bytes]] = []

    def enter(self) -> None:
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            idle = [] if self._users else self._free
            self._free = self._free if self._users else []
        for server in idle:
            _stop(server)

    def ask(self, request: Mapping[str, Any], patience_s: float) -> Mapping[str, Any]:
        with self._seats:
            with self._lock:
                server = self._free.pop() if self._free else None
            if server is None or server.poll() is not None:
                server = _start()
            try:
                reply = _exchange(server, request, patience_s)
            except BaseException:
                _stop(server)
                raise
            with self._lock:
                wanted = self._users > 0
                if wanted:
                    self._free.append(server)
            if not wanted:
                _stop(server)
            return reply


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", str(_SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
        start_new_session=True,
    )


def _exchange(
    server: subprocess.Popen[bytes], request: Mapping[str, Any], patience_s: float
) -> Mapping[str, Any]:
    # Reading has no time limit of its own: a watchdog ends a server that hangs.
    watchdog = threading.Timer(patience_s, server.kill)
    watchdog.start()
    try:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(request).encode() + b"\n")
        server.stdin.flush()
        reply: Mapping[str, Any] = json.loads(server.stdout.readline())
        return reply
    except (OSError, ValueError):
        raise SandboxError("the process that runs programs died") from None
    finally:
        watchdog.cancel()
        watchdog.join()


def _stop(server: subprocess.Popen[bytes]) -> None:
    for stream in (server.stdin, server.stdout):
        with suppress(OSError):
            if stream is not None:
                stream.close()
    try:
        server.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


_SERVERS = _Servers()


def _plain(text: str) -> str:
    """Text that any UTF-8 stream can hold."""
    return text.encode("utf-8", "replace").decode()


def _parsed(line: str) -> Mapping[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {"error": "no readable value"}
    return value if isinstance(value, dict) else {"error": "no readable value"}
