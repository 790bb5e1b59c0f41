"""An OpenAI-compatible endpoint on loopback whose replies a test writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Endpoint:
    """``say`` answers the messages of a request; all requests are kept."""

    say: Callable[[list[dict[str, str]]], Any]
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    def options(self, **more: Any) -> dict[str, Any]:
        """A recipe's ``speaker`` section."""
        return {"endpoint": self.url, "model": "tiny", **more}


@contextmanager
def serving(say: Callable[[list[dict[str, str]]], Any]) -> Iterator[Endpoint]:
    """Serve until the block ends."""
    endpoint = Endpoint(say)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/chat/completions"
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            endpoint.requests.append(body)
            endpoint.keys.append(self.headers.get("Authorization"))
            text = endpoint.say(body["messages"])
            answer = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
