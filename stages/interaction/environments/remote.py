"""An environment in a process of its own: it can hang or crash, and nobody else notices.

What goes through the pipe is JSON. The process is forked from a small server that has loaded the
environments and what their options ask for: it is cheap and shares no thread with training.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from stages.common.errors import UsageError
from stages.interaction.crew import StepTimeout
from stages.interaction.environments.base import Environment, Reset, Step, Task
from stages.interaction.trajectory import Action, ToolCall

_WELCOME_S = 120.0
"""How long a process may take to start; a busy machine is no fault of the environment's."""
_FAREWELL_S = 2.0
"""How long a process may take to close its environment before it is killed."""


class RemoteFault(RuntimeError):
    """What the environment raised in its process, or that the process died."""


class RemoteEnvironment:
    """The environment of ``options``, elsewhere. A call that takes too long kills it."""

    def __init__(self, options: Any, local: Environment) -> None:
        """``local`` is an instance here that never begins an episode: it draws the tasks."""
        self._options = options
        self._local = local
        # What an environment offers beyond the contract (experts, ...) needs no episode. As plain
        # attributes, since from Python 3.12 on isinstance() with a protocol sees no others.
        for name in dir(local):
            if not name.startswith("_") and not hasattr(type(self), name):
                setattr(self, name, getattr(local, name))
        self.name = local.name
        self.max_turns = int(getattr(local, "max_turns", 0))
        self._process: Any = None
        self._pipe: Connection | None = None
        self._folder = ""

    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """``count`` distinct tasks of a split."""
        return self._local.tasks(split, count, seed)

    def reset(self, task: Task) -> Reset:
        """Start an episode. Raises StepTimeout, RemoteFault."""
        row = self._ask("reset", asdict(task))
        checklist = tuple((str(goal), bool(done)) for goal, done in row["checklist"])
        lists = {"messages": tuple(row["messages"]), "tools": tuple(row["tools"])}
        return Reset(**{**row, **lists, "checklist": checklist})

    def step(self, action: Action) -> Step:
        """Carry out one action. Raises StepTimeout, RemoteFault."""
        row = self._ask("step", asdict(action))
        checklist = tuple((str(goal), bool(done)) for goal, done in row["checklist"])
        history = None if row["history"] is None else tuple(row["history"])
        lists = {"messages": tuple(row["messages"]), "history": history}
        return Step(**{**row, **lists, "checklist": checklist})

    def close(self) -> None:
        """End the process and remove the files it made."""
        if self._pipe is not None:
            self._pipe.close()
            self._process.join(_FAREWELL_S)
        self._kill()
        self._local.close()

    def _ask(self, method: str, argument: Any) -> dict[str, Any]:
        sent = json.dumps([method, argument]).encode()
        try:
            pipe = self._pipe or self._start()
            pipe.send_bytes(sent)
            if not pipe.poll(self._options.step_timeout_s):
                self._kill()
                seconds = self._options.step_timeout_s
                raise StepTimeout(f"the environment took longer than {seconds:g} s and was killed")
            return _result(pipe.recv_bytes())
        except (EOFError, OSError):
            self._kill()
            raise RemoteFault("the environment's process died") from None

    def _start(self) -> Connection:
        context = multiprocessing.get_context("forkserver")
        # Loaded once, by the server, for all processes to come.
        heavy = getattr(self._options, "preloaded", ())
        context.set_forkserver_preload([__name__, *heavy])
        here, there = context.Pipe()
        self._folder = tempfile.mkdtemp(prefix="aac-")
        options = self._options.model_dump_json()
        self._process = context.Process(
            target=_serve, args=(there, self._options.name, options, self._folder), daemon=True
        )
        self._process.start()
        there.close()
        self._pipe = here
        if not here.poll(_WELCOME_S):
            self._kill()
            raise StepTimeout(f"the environment's process did not start within {_WELCOME_S:g} s")
        _result(here.recv_bytes())
        return here

    def _kill(self) -> None:
        if self._pipe is None:
            return
        self._pipe.close()
        self._pipe = None
        self._process.kill()
        self._process.join()
        self._process.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _serve(pipe: Connection, name: str, options: str, folder: str) -> None:
    """In the process: answer calls until the pipe ends."""
    from stages.interaction.environments import ENVIRONMENTS

    # A terminal sends Ctrl-C here, too; the command that a person started decides what comes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What it leaves behind when it is killed is removed with this folder.
    tempfile.tempdir = folder
    kind, make = ENVIRONMENTS[name]
    made: list[Environment] = []

    def start() -> dict[str, Any]:
        # In here it is alone.
        made.append(make(kind.model_validate_json(options).model_copy(update={"workers": 0})))
        return {}

    try:
        pipe.send_bytes(_answer(start))
        methods = {
            "reset": lambda row: asdict(made[0].reset(Task(**row))),
            "step": lambda row: asdict(made[0].step(_action(row))),
        }
        while made:
            method, argument = json.loads(pipe.recv_bytes())
            pipe.send_bytes(_answer(partial(methods[method], argument)))
    except (EOFError, OSError):
        return
    finally:
        for environment in made:
            environment.close()


def _answer(call: Callable[[], dict[str, Any]]) -> bytes:
    """In the process: what came of a call, also that its result is no JSON."""
    try:
        return json.dumps({"result": call()}).encode()
    except UsageError as error:
        return json.dumps({"usage": str(error)}).encode()
    except Exception as fault:
        return json.dumps({"fault": f"{type(fault).__name__}: {fault}"}).encode()


def _result(answer: bytes) -> dict[str, Any]:
    """Here: what the process answered, or the error that it tells of."""
    reply: dict[str, dict[str, Any]] = json.loads(answer)
    if "usage" in reply:
        raise UsageError(str(reply["usage"]))
    if "fault" in reply:
        raise RemoteFault(str(reply["fault"]))
    return reply["result"]


def _action(row: dict[str, Any]) -> Action:
    return Action(row["text"], tuple(ToolCall(**call) for call in row["calls"]), row["error"])
