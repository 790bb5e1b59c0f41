"""One side of a comparison in a process of its own: what one does to the allocator, to torch or to
a library cannot help or harm the other."""

from __future__ import annotations

import importlib
import os
import time
import warnings
from collections.abc import Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from stages.bench.measure import Times
from stages.common.errors import RunError


class Side:
    """``entry`` (module:function) is called once with the arguments and gives what is timed: a
    function without arguments that returns figures."""

    def __init__(self, entry: str, arguments: Mapping[str, Any], *, threads: int) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._name = entry
        self._process = context.Process(
            target=_serve, args=(theirs, entry, dict(arguments), threads), daemon=True
        )
        self._process.start()
        theirs.close()
        self._answer()

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __call__(self) -> Times:
        """Once more; RunError where it fails."""
        self._pipe.send("run")
        times: Times = self._answer()
        return times

    def ask(self, question: str, *arguments: Any) -> Any:
        """What the timed object's method ``question`` says."""
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


def _serve(pipe: Connection, entry: str, arguments: dict[str, Any], threads: int) -> None:
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads)))
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    warnings.simplefilter("ignore")
    try:
        _quiet()
        module, _, name = entry.partition(":")
        made = getattr(importlib.import_module(module), name)(**arguments)
    except Exception as error:
        pipe.send((False, _sentence(error)))
        return
    pipe.send((True, None))
    while True:
        try:
            asked = pipe.recv()
        except EOFError:
            return
        try:
            answer = _timed(made) if asked == "run" else getattr(made, asked[0])(*asked[1])
        except Exception as error:
            pipe.send((False, _sentence(error)))
            return
        pipe.send((True, answer))


def _timed(run: Any) -> Times:
    wall, cpu = time.perf_counter(), time.process_time()
    figures = run()
    return Times(time.perf_counter() - wall, time.process_time() - cpu, figures or {})


def _quiet() -> None:
    """Libraries say nothing while they are measured."""
    import torch
    from datasets.utils.logging import disable_progress_bar
    from transformers.utils import logging

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    disable_progress_bar()


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}".rstrip(".: ")
