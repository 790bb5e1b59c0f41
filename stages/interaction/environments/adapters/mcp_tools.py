"""MCP servers as tools. The protocol knows neither tasks nor rewards: both are the person's."""

from __future__ import annotations

from typing import Any

from stages.interaction.environments.adapters.adapter import Adapter, task_row
from stages.interaction.environments.adapters.entry import load_entry
from stages.interaction.environments.adapters.mcp_connection import McpConnection, borrow, give_back
from stages.interaction.environments.adapters.options import McpOptions
from stages.interaction.environments.base import Reset, Step, Task
from stages.interaction.trajectory import Action, Message, ToolCall


class McpEnvironment(Adapter):
    """One task with the tools of one server; a reply without a call is the answer and the end."""

    options: McpOptions

    def __init__(self, options: McpOptions) -> None:
        super().__init__(options)
        self.options = options
        self._reward = load_entry(options.reward, "reward")
        self._connection: McpConnection | None = None

    def reset(self, task: Task) -> Reset:
        """A server with nothing of an earlier episode in it: told to forget, or a new one."""
        self._begin()
        server = self._renewed()
        self._row = task_row(task)
        hidden = (self.options.reset_tool,)
        self._tools = tuple(t for t in server.tools if t["function"]["name"] not in hidden)
        self._told: list[Message] = [{"role": "user", "content": str(self._row.get("prompt", ""))}]
        head = [{"role": "system", "content": self.options.prompt}] if self.options.prompt else []
        return Reset((*head, *self._told), self._tools, str(self._row.get("prompt", "")))

    def step(self, action: Action) -> Step:
        """Call the tools in order; without a call, or at the last turn, ask for the reward."""
        self._turns += 1
        self._told.append({"role": "assistant", "content": action.text})
        if action.error is not None:
            messages: list[Message] = [{"role": "tool", "content": f"error: {action.error}"}]
            wrong = [action.error]
        else:
            results = [self._called(call) for call in action.calls]
            messages = [message for message, _ in results]
            wrong = [str(message["content"]) for message, failed in results if failed]
        self._told += messages
        over = not action.calls and action.error is None
        info = {"tool_error": "; ".join(wrong)} if wrong else {}
        if not (over or self._last_turn):
            return Step(tuple(messages), info=info)
        reward = self._reward(task=self._row, messages=list(self._told), call=self._asked)
        rewards = {"success": 0.0, **self._paid(float(reward))}
        ended = over or self._solved
        return Step(tuple(messages), rewards, terminated=ended, success=self._solved, info=info)

    def close(self) -> None:
        """Leave the server; one that can be told to forget is kept for the next instance."""
        if self._connection is None:
            return
        if self.options.reset_tool is not None and self._connection.alive:
            give_back(self._connection)
        else:
            self._connection.close()
        self._connection = None

    def _called(self, call: ToolCall) -> tuple[Message, bool]:
        names = [tool["function"]["name"] for tool in self._tools]
        if call.name in names:
            text, failed = self._server.call(call.name, call.arguments)
        else:
            text, failed = f"unknown tool {call.name[:40]!r}; tools: {', '.join(names)}", True
        told = f"error: {text}" if failed else text
        return {"role": "tool", "name": call.name, "content": told}, failed

    def _asked(self, name: str, **arguments: Any) -> str:
        """For the reward function: what a tool says, say of the state that is left."""
        text, failed = self._server.call(name, arguments)
        if failed:
            raise RuntimeError(f"the reward function's call of {name} failed: {text}")
        return text

    @property
    def _server(self) -> McpConnection:
        assert self._connection is not None
        return self._connection

    def _renewed(self) -> McpConnection:
        tool = self.options.reset_tool
        if tool is None:
            self.close()
        if self._connection is None:
            server = self.options.mcp
            self._connection = borrow(server, self.options.timeout_s)
        if tool is not None:
            self._asked(tool)
        return self._connection
