"""The process that runs an agent's programs: one forked child each, supervised to its end.

Started as ``python -I -S -B server.py`` by ``sandbox.py``, with an empty environment. It imports
nothing of this project, so that a child that breaks out of its interpreter finds nothing here.
Requests and replies are single JSON lines; the end of the requests ends the server and its child.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import prison  # type: ignore[import-not-found]

_USUAL = (
    "bisect collections copy dataclasses datetime decimal fractions functools heapq itertools math "
    "operator random re statistics string typing"
)
"""What programs usually import is loaded once, before the walls are up."""
_CHUNK = 65_536


def main() -> None:
    """Answer requests until there are no more."""
    for name in _USUAL.split():
        importlib.import_module(name)
    prison.adopt_orphans()
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    with os.fdopen(requests, "rb", buffering=0) as lines:
        while line := _line(lines):
            reply = supervise(json.loads(line), lines.fileno())
            os.write(replies, json.dumps(reply).encode() + b"\n")


def _line(stream: Any) -> bytes:
    parts: list[bytes] = []
    while not parts or not parts[-1].endswith(b"\n"):
        part = stream.readline()
        if not part:
            return b""
        parts.append(part)
    return b"".join(parts)


def supervise(request: dict[str, Any], requests: int) -> dict[str, Any]:
    """Run one program in a child and say what came of it; nothing of it is left alive."""
    said, results = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(requests)
        _run_and_exit(request, said[1], results[1])
    os.close(said[1])
    os.close(results[1])
    texts = {said[0]: bytearray(), results[0]: bytearray()}
    limit = int(request["output_bytes"])
    ended = _listen(texts, requests, limit, time.monotonic() + float(request["wall_s"]))
    status = _finish(child)
    for pipe in texts:
        os.close(pipe)
    if ended == "orphaned":
        os._exit(0)
    code = os.waitstatus_to_exitcode(status)
    return {
        "output": texts[said[0]][:limit].decode("utf-8", "replace"),
        "results": texts[results[0]].decode("utf-8", "replace"),
        "ended": "cpu" if code == -signal.SIGXCPU else ended,
        "code": code,
    }


def _listen(texts: dict[int, bytearray], requests: int, limit: int, deadline: float) -> str:
    """Read what the child writes until ``done``, ``wall`` (time), ``output`` or ``orphaned``."""
    open_pipes = set(texts)
    while open_pipes:
        left = deadline - time.monotonic()
        if left <= 0:
            return "wall"
        ready, _, _ = select.select([*open_pipes, requests], [], [], left)
        if requests in ready:
            # The client asks one thing at a time: what comes now is its end.
            return "orphaned"
        for pipe in ready:
            part = os.read(pipe, _CHUNK)
            if not part:
                open_pipes.discard(pipe)
            texts[pipe] += part
            if len(texts[pipe]) > limit:
                return "output"
    return "done"


def _finish(child: int) -> int:
    """Kill the child, its process group and whatever it left; its exit status."""
    for victim in (child, -child):
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            continue
    _, status = os.waitpid(child, 0)
    for _ in range(1000):
        orphans = prison.children()
        for orphan in orphans:
            os.kill(orphan, signal.SIGKILL)
        if not orphans:
            break
        os.waitpid(orphans[0], 0)
    return status


def _run_and_exit(request: dict[str, Any], said: int, results: int) -> None:
    """In the child: no way out of this function but ``_exit``."""
    code = 1
    try:
        os.setsid()
        os.dup2(said, 1)
        os.dup2(said, 2)
        results = os.dup2(results, 3)
        os.closerange(4, 256)
        os.chdir(request["folder"])
        sys.path[:] = [path for path in sys.path if path.endswith(("lib-dynload", prison.STDLIB))]
        prison.lock(request)
        code = _run(request, results)
    except BaseException as error:
        _say(f"{type(error).__name__}: {str(error)[:500]}")
    finally:
        os._exit(code)


def _run(request: dict[str, Any], results: int) -> int:
    """Run the program, then each call; one JSON line of results for each."""
    space: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    for name in ("program", "code"):
        try:
            exec(compile(request.get(name) or "", f"<{name}>", "exec"), space)
        except BaseException as error:
            _say(_described(error, f"<{name}>"))
            return 1
    for call in request.get("calls") or ():
        os.write(results, _called(space, request["function"], call) + b"\n")
    sys.stdout.flush()
    return 0


def _called(space: dict[str, Any], function: str, arguments: list[Any]) -> bytes:
    try:
        result: dict[str, Any] = {"value": space[function](*arguments)}
        return json.dumps(result, allow_nan=False).encode()
    except BaseException as error:
        return json.dumps({"error": _described(error, "<program>")}).encode()


def _say(text: str) -> None:
    try:
        sys.stdout.flush()
        os.write(1, text.encode("utf-8", "replace") + b"\n")
    except BaseException:
        return


def _described(error: BaseException, source: str) -> str:
    """``NameError: name 'x' is not defined (line 2)``."""
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == source:
            line = trace.tb_lineno
        trace = trace.tb_next
    words = error.msg if isinstance(error, SyntaxError) else str(error)
    told = f"{type(error).__name__}: {words[:300]}" if words else type(error).__name__
    return f"{told} (line {line})" if line else told


if __name__ == "__main__":
    main()
