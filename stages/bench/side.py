"""One side of a comparison in a process of its own: what one does to the allocator, to torch or to
a library cannot help or harm the other."""

from __future__ import annotations

import importlib
import os
import time
import traceback
from collections.abc import Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from stages.bench.measure import Times
from stages.common.errors import RunError


class Side:
    """``entry`` (module:function) is called once with the arguments and gives what is timed: a
    function without arguments that returns figures.

    Sides start beside each other: the first question to one waits until it is ready, and ``wait``
    does where nothing may be asked before all are.
    """

    def __init__(
        self, entry: str, arguments: Mapping[str, Any], *, threads: int, log: Path
    ) -> None:
        """``threads``: of torch. ``log``: takes what is printed."""
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._name = entry
        self._process = context.Process(
            target=_serve, args=(theirs, entry, dict(arguments), threads, log), daemon=True
        )
        self._process.start()
        theirs.close()
        self._ready = False

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def wait(self) -> None:
        """Until it is ready; RunError where it cannot be."""
        if not self._ready:
            self._answer()
            self._ready = True

    def __call__(self) -> Times:
        """Once more; RunError where it fails."""
        self.wait()
        self._pipe.send((None, ()))
        times: Times = self._answer()
        return times

    def ask(self, question: str, *arguments: Any) -> Any:
        """What the timed object's method ``question`` says."""
        self.wait()
        self._pipe.send((question, arguments))
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()

    def _answer(self) -> Any:
        try:
            fine, answer = self._pipe.recv()
        except EOFError:
            fine, answer = False, "its process ended"
        if not fine:
            raise RunError(f"{self._name} could not be measured: {answer}.")
        return answer


def _serve(
    pipe: Connection, entry: str, arguments: dict[str, Any], threads: int, log: Path
) -> None:
    """The other process. What it prints goes to the log."""
    with log.open("a", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    try:
        made = _made(entry, arguments, threads)
        pipe.send((True, None))
        while True:
            asked, given = pipe.recv()
            pipe.send((True, _timed(made) if asked is None else getattr(made, asked)(*given)))
    except EOFError:
        return
    except Exception as error:
        traceback.print_exc()
        pipe.send((False, _sentence(error)))


def _made(entry: str, arguments: dict[str, Any], threads: int) -> Any:
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads)))
    import torch

    torch.set_num_threads(threads)
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)(**arguments)


def _timed(run: Any) -> Times:
    start = time.perf_counter()
    figures = run()
    return Times(time.perf_counter() - start, figures)


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}".rstrip(".: ")
