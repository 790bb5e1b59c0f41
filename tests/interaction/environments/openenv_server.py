"""A small server that speaks OpenEnv's protocol, written with ``websockets``."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

TEXT = {
    "type": "object",
    "properties": {"message": {"type": "string"}, "metadata": {"type": "object"}},
    "required": ["message"],
}
MOVE = {
    "type": "object",
    "properties": {
        "row": {"type": "integer"},
        "column": {"type": "integer"},
        "metadata": {"type": "object"},
    },
    "required": ["row", "column"],
}
CAPACITY = 20


class Echo:
    """Repeats; longer messages earn more; three make an episode."""

    schema = TEXT

    def reset(self, data: dict[str, Any]) -> dict[str, Any]:
        self.steps, self.seed = 0, data.get("seed", 0)
        return _observation({"echoed": f"say anything ({self.seed})"})

    def step(self, data: dict[str, Any]) -> dict[str, Any]:
        message = data["message"]
        if message == "crash":
            raise RuntimeError("the echo is lost")
        self.steps += 1
        reward = min(len(message), 30) / 100
        return _observation({"echoed": message, "metadata": {"n": 1}}, reward, self.steps == 3)


class Grid:
    """Find the cell that the seed names; both fields must be numbers."""

    schema = MOVE

    def reset(self, data: dict[str, Any]) -> dict[str, Any]:
        self.wanted = data.get("seed", 0) % 2
        return _observation({"size": 2, "hint": self.wanted}, None)

    def step(self, data: dict[str, Any]) -> dict[str, Any]:
        if not all(isinstance(data.get(k), int) for k in ("row", "column")):
            return _error("VALIDATION_ERROR", "row and column must be integers")
        hit = data["row"] == self.wanted and data["column"] == self.wanted
        return _observation({"size": 2, "hit": hit}, float(hit), hit)


def _observation(fields: dict[str, Any], reward: Any = None, done: bool = False) -> dict[str, Any]:
    data = {"observation": fields, "reward": reward, "done": done}
    return {"type": "observation", "data": data}


def _error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": message}}


@contextmanager
def served(world: Any) -> Iterator[str]:
    """The address of a server with one session per connection."""
    sessions = threading.Semaphore(CAPACITY)

    def http(connection: ServerConnection, request: Request) -> Response | None:
        if request.path != "/schema":
            return None
        body = json.dumps({"action": world.schema}).encode()
        headers = Headers({"Content-Length": str(len(body)), "Content-Type": "application/json"})
        return Response(HTTPStatus.OK, "OK", headers, body)

    def session(connection: ServerConnection) -> None:
        if not sessions.acquire(blocking=False):
            connection.send(json.dumps(_error("CAPACITY_REACHED", "no free session")))
            return
        environment = world()
        try:
            for text in connection:
                asked = json.loads(text)
                try:
                    answer = getattr(environment, asked["type"])(asked.get("data", {}))
                except RuntimeError as fault:
                    answer = _error("EXECUTION_ERROR", str(fault))
                connection.send(json.dumps(answer))
        finally:
            sessions.release()

    with serve(session, "127.0.0.1", 0, process_request=http) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join(10)
