"""Where programs that own their loop meet a rollout that owns the policy, episode by episode."""

from __future__ import annotations

import asyncio
import math
import queue
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from stages.common.errors import UsageError
from stages.interaction.endpoint.protocol import ChatReply, ChatRequest, reply_message
from stages.interaction.endpoint.server import BackgroundServer, Gone, chat_app

_STARTING = threading.Lock()
_OVER = "there is no such episode, or it is over."
Told = tuple[ChatReply, dict[str, Any]]


@dataclass(frozen=True)
class Ended:
    """The program is through: its reward, or what went wrong."""

    reward: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Asked:
    """A request that waits for its reply."""

    request: ChatRequest
    reply: Callable[[Told], None]


class Mailbox:
    """One episode: requests in, replies out."""

    def __init__(self) -> None:
        self.key = secrets.token_hex(16)
        self.reward: float | None = None
        self._events: queue.Queue[Asked | Ended] = queue.Queue()
        self._lock = threading.Lock()
        self._closed = False
        self._waiting: list[_Waiting] = []

    def next(self, timeout_s: float) -> Asked | Ended:
        """What the program does next. TimeoutError if nothing for ``timeout_s`` seconds."""
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"the program did nothing for {timeout_s:g} s") from None

    def end(self, ended: Ended) -> None:
        """The program is through."""
        self._events.put(ended)

    async def ask(self, request: ChatRequest) -> Told:
        """On the server's loop: wait for the rollout's reply. Gone if the episode is over.

        No thread waits along: many episodes are played at once.
        """
        waiting = _Waiting(asyncio.get_running_loop())
        with self._lock:
            if self._closed:
                raise Gone(_OVER)
            self._waiting.append(waiting)
        self._events.put(Asked(request, waiting.answer))
        return await waiting.future

    def close(self) -> None:
        """Whoever still asks is told that it is over."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.refuse()


class _Waiting:
    """A request whose reply comes from another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.future: asyncio.Future[Told] = loop.create_future()

    def answer(self, told: Told) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._settle, told)

    def refuse(self) -> None:
        """From any thread; nothing happens where the reply went out already."""
        self._loop.call_soon_threadsafe(self._settle, None)

    def _settle(self, told: Told | None) -> None:
        if self.future.done():
            return
        if told is None:
            self.future.set_exception(Gone(_OVER))
        else:
            self.future.set_result(told)


class Post:
    """All open episodes behind one server on the loopback address."""

    def __init__(self) -> None:
        self._boxes: dict[str, Mailbox] = {}
        app = chat_app(self._answer, reward=self._reward)
        self._server = BackgroundServer(app)

    def open(self) -> tuple[Mailbox, str]:
        """A new episode and its address (without /v1)."""
        box = Mailbox()
        self._boxes[box.key] = box
        return box, f"{self._server.url}/episodes/{box.key}"

    def close(self, box: Mailbox) -> None:
        """End an episode."""
        box.close()
        self._boxes.pop(box.key, None)

    async def _answer(self, episode: str, request: ChatRequest) -> Told:
        return await self._box(episode).ask(request)

    def _reward(self, episode: str, given: Any) -> None:
        self._box(episode).reward = read_reward(given)

    def _box(self, episode: str) -> Mailbox:
        box = self._boxes.get(episode)
        if box is None:
            raise Gone(_OVER)
        return box


def post() -> Post:
    """The one server of this process; started when the first episode is, in whatever thread."""
    with _STARTING:
        return _started()


@lru_cache(maxsize=1)
def _started() -> Post:
    return Post()


def read_reward(given: Any) -> float:
    """A number, or an object with ``reward``. UsageError otherwise."""
    value = given.get("reward") if isinstance(given, dict) else given
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    raise UsageError(f"the reward is {value!r}; expected a number.")


def told(reply: ChatReply) -> Told:
    """A reply with the message that tells it."""
    return reply, reply_message(reply)
