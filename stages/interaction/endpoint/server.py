"""An OpenAI-compatible HTTP server over anything that answers chat requests.

``aac serve`` answers with a trained agent; the ``program`` environment answers with whatever the
rollout's policy says. Bound to this machine unless told otherwise; needs starlette and uvicorn.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from stages.common.errors import AacError, RunError, UsageError
from stages.interaction.endpoint.protocol import (
    ChatReply,
    ChatRequest,
    completion,
    events,
    read_request,
)

Answer = Callable[[str, ChatRequest], Awaitable[tuple[ChatReply, dict[str, Any]]]]
"""(episode in the address or '', request) -> the reply and the message that tells it."""
LARGEST_BODY = 32 * 2**20
"""Bytes of a request."""
_STARTS_WITHIN_S = 30.0


class Gone(Exception):
    """The episode that a program talks in is over."""


def chat_app(
    answer: Answer, *, reward: Callable[[str, Any], None] | None = None, model: str = "aac"
) -> Any:
    """The application; ``answer`` may raise UsageError, or ``Gone`` for an episode that is over.

    ``reward`` takes (episode, JSON) of what programs post back; ``model`` is the name under
    /v1/models.
    """
    web = _starlette()
    handlers = _Handlers(web, answer, reward, model)
    routes = [
        web.Route(f"{prefix}/v1/{path}", function, methods=[method])
        for prefix in ("", "/episodes/{episode}")
        for path, function, method in (
            ("chat/completions", handlers.chat, "POST"),
            ("models", handlers.models, "GET"),
        )
    ]
    if reward is not None:
        routes.append(web.Route("/episodes/{episode}/reward", handlers.rewarded, methods=["POST"]))
    return web.Starlette(routes=routes)


@dataclass(frozen=True)
class _Handlers:
    """What is done with each kind of request."""

    web: Any
    answer: Answer
    reward: Callable[[str, Any], None] | None
    model: str

    async def chat(self, request: Any) -> Any:
        """A reply, whole or as events."""
        episode = request.path_params.get("episode", "")
        try:
            asked = read_request(await _body(request))
            reply, message = await self.answer(episode, asked)
        except (AacError, Gone) as error:
            return self._refused(error)
        if asked.stream:
            lines = events(asked, reply, message)
            return self.web.StreamingResponse(lines, media_type="text/event-stream")
        return self.web.JSONResponse(completion(asked, reply, message))

    async def rewarded(self, request: Any) -> Any:
        """A reward comes back."""
        assert self.reward is not None
        try:
            self.reward(request.path_params["episode"], await _body(request))
        except (AacError, Gone) as error:
            return self._refused(error)
        return self.web.JSONResponse({"ok": True})

    async def models(self, request: Any) -> Any:
        """The one model there is."""
        data = [{"id": self.model, "object": "model", "owned_by": "aac"}]
        return self.web.JSONResponse({"object": "list", "data": data})

    def _refused(self, error: Exception) -> Any:
        told = {"error": {"message": str(error), "type": "invalid_request_error", "code": None}}
        status = 410 if isinstance(error, Gone) else 400
        return self.web.JSONResponse(told, status_code=status)


class BackgroundServer:
    """An application served from a thread of this process, until ``stop``."""

    def __init__(self, app: Any, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Port 0: any free one. RunError if it does not come up."""
        self._server = make_server(app, host=host, port=port)
        self._thread = threading.Thread(target=self._server.run, name="aac-endpoint", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _STARTS_WITHIN_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise RunError(f"the endpoint did not come up on {host}:{port}; is the port free?")
            time.sleep(0.01)
        self.url = f"http://{host}:{self._server.servers[0].sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        """Stop serving and wait for the thread."""
        self._server.should_exit = True
        self._thread.join(_STARTS_WITHIN_S)


def make_server(app: Any, *, host: str, port: int) -> Any:
    """A uvicorn server, not yet running; quiet, as episodes ask thousands of times."""
    try:
        import uvicorn
    except ImportError:
        raise _missing("uvicorn") from None
    config = uvicorn.Config(app, host=host, port=port, log_level="error", access_log=False)
    return uvicorn.Server(config)


async def _body(request: Any) -> Any:
    if int(request.headers.get("content-length") or 0) > LARGEST_BODY:
        raise UsageError(f"the request is larger than {LARGEST_BODY} bytes.")
    try:
        return json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the request is not valid JSON ({error}).") from None


def _starlette() -> Any:
    try:
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse, StreamingResponse
        from starlette.routing import Route
    except ImportError:
        raise _missing("starlette") from None
    return SimpleNamespace(
        Starlette=Starlette,
        JSONResponse=JSONResponse,
        StreamingResponse=StreamingResponse,
        Route=Route,
    )


def _missing(package: str) -> UsageError:
    return UsageError(
        f"this needs the package {package}, which is missing; pip install aac[serve]."
    )
