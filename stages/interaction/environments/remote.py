"""An environment in a process of its own: it can hang or crash, and nobody else notices.

What goes through the pipe is JSON. The process is forked from a small server that has loaded the
environments and nothing else, so that it is cheap and shares no thread or lock with training.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
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
        self.name = local.name
        self.max_turns = int(getattr(local, "max_turns", 0))
        self._process: Any = None
        self._pipe: Connection | None = None
        self._folder = ""

    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """``count`` distinct tasks of a split."""
        return self._local.tasks(split, count, seed)

    def __getattr__(self, name: str) -> Any:
        """What an environment offers beyond the contract (experts, ...) needs no episode."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._local, name)

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
        return Step(**{**row, "messages": tuple(row["messages"]), "checklist": checklist})

    def close(self) -> None:
        """End the process and remove the files it made."""
        if self._pipe is not None:
            self._pipe.close()
            self._process.join(_FAREWELL_S)
        self._kill()
        self._local.close()

    def _ask(self, method: str, argument: Any) -> dict[str, Any]:
        pipe = self._pipe or self._start()
        try:
            pipe.send_bytes(json.dumps([method, argument]).encode())
            if not pipe.poll(self._options.step_timeout_s):
                self._kill()
                seconds = self._options.step_timeout_s
                raise StepTimeout(f"the environment took longer than {seconds:g} s and was killed")
            reply: dict[str, Any] = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            self._kill()
            raise RemoteFault("the environment's process died") from None
        if "usage" in reply:
            raise UsageError(reply["usage"])
        if "fault" in reply:
            raise RemoteFault(reply["fault"])
        result: dict[str, Any] = reply["result"]
        return result

    def _start(self) -> Connection:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
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
        here.recv_bytes()
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
    kind, made = ENVIRONMENTS[name]
    environment = made(kind.model_validate_json(options))
    methods = {"reset": (_task, environment.reset), "step": (_action, environment.step)}
    try:
        pipe.send_bytes(b"ready")
        while True:
            method, argument = json.loads(pipe.recv_bytes())
            read, call = methods[method]
            pipe.send_bytes(json.dumps(_answer(call, read(argument))).encode())
    except (EOFError, OSError):
        return
    finally:
        environment.close()


def _answer(call: Callable[[Any], Any], argument: Any) -> dict[str, Any]:
    try:
        return {"result": asdict(call(argument))}
    except UsageError as error:
        return {"usage": str(error)}
    except Exception as fault:
        return {"fault": f"{type(fault).__name__}: {fault}"}


def _task(row: dict[str, Any]) -> Task:
    return Task(**row)


def _action(row: dict[str, Any]) -> Action:
    return Action(row["text"], tuple(ToolCall(**call) for call in row["calls"]), row["error"])
