"""A connection to one MCP server, kept open by a task of its own on the background loop."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from stages.common.errors import UsageError
from stages.interaction.environments.adapters.async_loop import background_loop, run_async

STARTS_WITHIN_S = 120.0
"""A server may have much to import; that is no call of the agent's."""
_IDLE: dict[tuple[str, ...], list[McpConnection]] = {}
_LOCK = threading.Lock()


class McpConnection:
    """Lists and calls the tools of a server: a command over stdio, or a URL."""

    def __init__(self, server: str | tuple[str, ...], timeout_s: float) -> None:
        """UsageError if the package is missing or the server does not come up."""
        self.server, self._timeout_s = server, timeout_s
        self._ready: Future[list[Any]] = Future()
        self._stop = asyncio.Event()
        self._client: Any = None
        self._task = asyncio.run_coroutine_threadsafe(self._live(_package()), background_loop())
        try:
            self.tools = [_described(tool) for tool in self._ready.result(STARTS_WITHIN_S)]
        except Exception as error:
            self._task.cancel()
            raise UsageError(
                f"environment.mcp: {server!r} does not answer as an MCP server "
                f"({type(error).__name__}: {error}); check the command or the address."
            ) from error

    def call(self, name: str, arguments: Any) -> tuple[str, bool]:
        """(the result as text, is it an error of the call?). Raises if the server is gone."""
        mcp = _package()
        try:
            made = run_async(self._client.call_tool(name, dict(arguments)), self._timeout_s)
        except TimeoutError:
            return f"the tool {name} took longer than {self._timeout_s:g} s", True
        except mcp.MCPError as refused:
            if self._task.done():
                raise
            return str(refused), True
        return _text(made), bool(made.is_error)

    def close(self) -> None:
        """Leave the server; one that we started ends."""
        if not self._task.done():
            background_loop().call_soon_threadsafe(self._stop.set)
            self._task.result(STARTS_WITHIN_S)

    @property
    def alive(self) -> bool:
        """Whether the server is still there."""
        return not self._task.done()

    async def _live(self, mcp: Any) -> None:
        try:
            # What servers say on their standard error is not for our screen.
            with open(os.devnull, "w") as log:
                async with mcp.Client(_transport(self.server, log)) as client:
                    self._client = client
                    self._ready.set_result(await _listed(client))
                    await self._stop.wait()
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(_first(error))


def borrow(server: str | tuple[str, ...], timeout_s: float) -> McpConnection:
    """A connection that another instance gave back, or a new one."""
    with _LOCK:
        waiting = _IDLE.get(tuple(server), [])
        while waiting:
            connection = waiting.pop()
            if connection.alive:
                return connection
    return McpConnection(server, timeout_s)


def give_back(connection: McpConnection) -> None:
    """For the next who borrows: starting a server costs seconds."""
    with _LOCK:
        _IDLE.setdefault(tuple(connection.server), []).append(connection)


@atexit.register
def _leave_all() -> None:
    for connection in [c for waiting in _IDLE.values() for c in waiting]:
        with suppress(Exception):
            connection.close()
    _IDLE.clear()


async def _listed(client: Any) -> list[Any]:
    tools: list[Any] = []
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if not cursor:
            return tools


def _transport(server: str | tuple[str, ...], log: Any) -> Any:
    if isinstance(server, str):
        return server
    from mcp.client.stdio import StdioServerParameters, stdio_client

    command, *words = server
    started = StdioServerParameters(command=command, args=words, env=dict(os.environ))
    return stdio_client(started, errlog=log)


def _described(tool: Any) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": tool.input_schema,
    }
    return {"type": "function", "function": function}


def _text(made: Any) -> str:
    """The text of a result; other content is named, as our actors read text only."""
    parts = [getattr(block, "text", None) or f"[{block.type}]" for block in made.content]
    return "\n".join(parts)


def _first(error: BaseException) -> BaseException:
    """What really went wrong, out of groups of exceptions."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _package() -> Any:
    try:
        import mcp
    except ImportError:
        raise UsageError(
            "environment.mcp needs the package mcp, which is missing; pip install aac[mcp]."
        ) from None
    return mcp
