"""Programs that own their loop: they ask an OpenAI-compatible endpoint and hand a reward back.

The loop is turned inside out: each request of the program is a state, the reply is the action, and
what the next request adds to the conversation is the observation. So token ids and log-probs are
recorded, and trained on, as in any other environment. A request that does not continue the
conversation (the program rewrote its history) starts a new segment: its prompt is encoded afresh.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from contextlib import suppress
from typing import Any

from stages.interaction.endpoint.mailbox import Asked, Ended, Mailbox, post, read_reward, told
from stages.interaction.endpoint.protocol import ChatReply, echoed
from stages.interaction.environments.adapters.adapter import Adapter, task_row
from stages.interaction.environments.adapters.entry import load_entry
from stages.interaction.environments.adapters.options import ProgramOptions
from stages.interaction.environments.base import Reset, Step, Task
from stages.interaction.trajectory import Action, Message

SEGMENT = "new_segment"
"""In a turn's info: the request after it did not continue the conversation."""


class ProgramEnvironment(Adapter):
    """Runs the program once per episode, beside us."""

    options: ProgramOptions

    def __init__(self, options: ProgramOptions) -> None:
        super().__init__(options)
        self.options = options
        self._box: Mailbox | None = None
        self._process: subprocess.Popen[str] | None = None
        entry = options.program
        self._function = load_entry(entry, "program") if isinstance(entry, str) else None

    def reset(self, task: Task) -> Reset:
        """Start the program and wait for its first request."""
        self.close()
        self._begin()
        self._box, address = post().open()
        self._start(task_row(task), address)
        first = self._next()
        if isinstance(first, Ended):
            raise RuntimeError("the program ended without asking for a reply")
        self._pending, self._told = first, list(first.request.messages)
        goal = next((m["content"] for m in reversed(self._told) if m["role"] == "user"), "")
        return Reset(first.request.messages, first.request.tools, str(goal))

    def step(self, action: Action) -> Step:
        """Answer the waiting request; see what the program says next."""
        self._turns += 1
        reply, message = told(ChatReply(action))
        self._told.append(echoed(message))
        self._pending.reply((reply, message))
        event = self._next()
        if isinstance(event, Ended):
            rewards = {"success": 0.0, **self._paid(event.reward or 0.0)}
            return Step((), rewards, terminated=True, success=self._solved)
        self._pending = event
        return self._continued(list(event.request.messages))

    def close(self) -> None:
        """End the episode: the program's next request is refused, its process killed."""
        if self._box is not None:
            post().close(self._box)
            self._box = None
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _continued(self, messages: list[Message]) -> Step:
        known = len(self._told)
        before, self._told = self._told, messages
        if messages[:known] == before and len(messages) > known:
            return Step(tuple(messages[known:]))
        return Step(tuple(messages[-1:]), history=tuple(messages), info={SEGMENT: True})

    def _next(self) -> Asked | Ended:
        assert self._box is not None
        event = self._box.next(self.options.timeout_s)
        if isinstance(event, Ended) and event.error is not None:
            raise RuntimeError(event.error)
        return event

    def _start(self, row: dict[str, Any], address: str) -> None:
        assert self._box is not None
        if self._function is None:
            self._process = _launched(list(self.options.program), row, address, self._box.key)
            target, arguments = _await_process, (self._process, self._box)
        else:
            target, arguments = _call, (self._function, row, address, self._box)  # type: ignore[assignment]
        threading.Thread(target=target, args=arguments, daemon=True).start()


def _call(function: Any, row: dict[str, Any], address: str, box: Mailbox) -> None:
    """The person's function, on a thread of its own; its return value is the reward."""
    try:
        given = function(base_url=f"{address}/v1", api_key=box.key, task=row)
        reward = box.reward if given is None else read_reward(given)
    except Exception as error:
        box.end(Ended(error=f"the program failed ({type(error).__name__}: {error})"))
        return
    box.end(_ended(reward, "returned"))


def _launched(
    command: list[str], row: dict[str, Any], address: str, key: str
) -> subprocess.Popen[str]:
    variables = {
        "OPENAI_BASE_URL": f"{address}/v1",
        "OPENAI_API_KEY": key,
        "AAC_REWARD_URL": f"{address}/reward",
        "AAC_TASK": json.dumps(row),
    }
    return subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )


def _await_process(process: subprocess.Popen[str], box: Mailbox) -> None:
    _, said = process.communicate()
    if process.returncode:
        last = (said.strip().splitlines() or ["it said nothing"])[-1]
        box.end(Ended(error=f"the program ended with code {process.returncode} ({last})"))
        return
    box.end(_ended(box.reward, "ended"))


def _ended(reward: float | None, how: str) -> Ended:
    if reward is None:
        return Ended(error=f"the program {how} without a reward")
    return Ended(reward)
