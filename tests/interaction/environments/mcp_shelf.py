"""A real MCP server over stdio: a shelf with numbered books. And what its user rewards."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

SHELF: list[str] = []


def serve() -> None:
    """Until the client leaves."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("shelf")

    @server.tool()
    def put(title: str, copies: int = 1) -> str:
        """Put a book on the shelf."""
        SHELF.extend([title] * copies)
        return f"{len(SHELF)} books"

    @server.tool()
    def look() -> str:
        """See the shelf."""
        return ", ".join(SHELF) or "empty"

    @server.tool()
    def fail() -> str:
        """Never works."""
        raise ValueError("the shelf is too high")

    @server.tool()
    def sleep(seconds: float) -> str:
        """Takes its time."""
        time.sleep(seconds)
        return "slept"

    @server.tool()
    def clear() -> str:
        """Forget everything."""
        SHELF.clear()
        return "cleared"

    server.run()


def wanted_book(
    task: dict[str, Any], messages: Sequence[dict[str, Any]], call: Callable[..., str]
) -> float:
    """Is the wanted book there, and only that?"""
    return float(call("look") == task["title"])


def reply_length(task: dict[str, Any], messages: Sequence[Any], call: Callable[..., str]) -> float:
    """For actors that know nothing."""
    return min(len(messages[-1]["content"]), 50) / 100


if __name__ == "__main__":
    serve()
