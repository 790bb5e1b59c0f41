"""OpenEnv servers over WebSocket: one session, and so one episode at a time, per instance."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any

from stages.common.errors import UsageError
from stages.interaction.environments.adapters.adapter import Adapter, task_row
from stages.interaction.environments.adapters.options import OpenEnvOptions
from stages.interaction.environments.base import Reset, Step, Task
from stages.interaction.trajectory import Action, Message

ACT = "act"
_AGENTS_FAULT = "VALIDATION_ERROR"
_NOT_SHOWN = ("done", "reward", "metadata")


class OpenEnvironment(Adapter):
    """Speaks the protocol itself: reset, step and close as JSON messages."""

    options: OpenEnvOptions

    def __init__(self, options: OpenEnvOptions) -> None:
        super().__init__(options)
        self.options = options
        self._address = options.openenv.rstrip("/").removesuffix("/ws")
        self._schema = self._action_schema()
        self._text_field = _text_field(self._schema)
        self._socket: Any = None
        self._open = ExitStack()

    def reset(self, task: Task) -> Reset:
        """Start an episode; the task's columns are the keywords of the server's reset."""
        self._begin()
        row = {k: v for k, v in task_row(task).items() if k not in ("id", "split", "prompt")}
        shown = _shown(self._exchanged("reset", row)["observation"])
        asked = str(task_row(task).get("prompt", ""))
        text = "\n\n".join(filter(None, (self.options.prompt, asked, shown)))
        return Reset(({"role": "user", "content": text},), self._tools(), asked or text)

    def step(self, action: Action) -> Step:
        """One action; what the server refuses as malformed is told to the agent."""
        self._turns += 1
        sent = self._action(action)
        if isinstance(sent, str):
            return self._told_off(action, sent)
        data = self._exchanged("step", sent)
        if "refused" in data:
            return self._told_off(action, data["refused"])
        done = bool(data.get("done"))
        rewards = self._paid(float(data.get("reward") or 0.0))
        if done:
            rewards.setdefault("success", 0.0)
        shown = _shown(data["observation"]) or "nothing to see"
        won = done and self._solved
        return Step(_message(action, shown), rewards, terminated=done, success=won)

    def close(self) -> None:
        """End the session."""
        self._open.close()
        self._socket = None

    def _action(self, action: Action) -> dict[str, Any] | str:
        """The action's fields, or what is wrong with the reply."""
        if self._text_field is not None:
            text = action.text.strip()
            return {self._text_field: text} if text else "a reply with text is expected"
        if action.error is not None or not action.calls:
            return action.error or f"call the tool {ACT}"
        return dict(action.calls[0].arguments)

    def _told_off(self, action: Action, words: str) -> Step:
        told = _message(action, f"error: {words}")
        return Step(told, {"invalid": 1.0}, info={"invalid": True, "tool_error": words})

    def _tools(self) -> tuple[dict[str, Any], ...]:
        if self._text_field is not None:
            return ()
        kept = {k: v for k, v in self._schema.get("properties", {}).items() if k != "metadata"}
        parameters = {**self._schema, "properties": kept}
        function = {"name": ACT, "description": "Take one action.", "parameters": parameters}
        return ({"type": "function", "function": function},)

    def _exchanged(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """One message there and one back. Raises on every fault but a malformed action."""
        if self._socket is None:
            self._socket = self._connected()
        from websockets.exceptions import ConnectionClosed

        with suppress(ConnectionClosed):  # a server that hangs up may have said why: read that
            self._socket.send(json.dumps({"type": kind, "data": dict(data)}))
        answer = json.loads(self._socket.recv(timeout=self.options.timeout_s))
        told: dict[str, Any] = answer.get("data") or {}
        if answer.get("type") != "error":
            return told
        if kind == "step" and told.get("code") == _AGENTS_FAULT:
            return {"refused": str(told.get("message"))}
        raise RuntimeError(f"the server says {told.get('code')}: {told.get('message')}")

    def _connected(self) -> Any:
        try:
            from websockets.sync.client import connect
        except ImportError:
            raise UsageError(
                "environment.openenv needs the package websockets, which is missing; "
                "pip install aac[openenv]."
            ) from None
        address = "ws" + self._address.removeprefix("http").removeprefix("ws") + "/ws"
        limits: dict[str, Any] = {"open_timeout": self.options.timeout_s, "max_size": 2**24}
        return self._open.enter_context(connect(address, proxy=None, **limits))

    def _action_schema(self) -> dict[str, Any]:
        """From the server's own description. UsageError if nobody answers there."""
        address = "http" + self._address.removeprefix("http").removeprefix("ws") + "/schema"
        try:
            with urllib.request.urlopen(address, timeout=self.options.timeout_s) as answer:
                schema: dict[str, Any] = json.loads(answer.read())["action"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"environment.openenv: {self.options.openenv} does not answer as an OpenEnv server "
                f"({error}); start it, or correct the address."
            ) from error
        return schema


def _text_field(schema: Mapping[str, Any]) -> str | None:
    """The one required field, if it is text: the reply goes there as it is."""
    required = schema.get("required") or []
    if len(required) != 1:
        return None
    kind = schema.get("properties", {}).get(required[0], {}).get("type")
    return str(required[0]) if kind == "string" else None


def _shown(observation: Mapping[str, Any]) -> str:
    """The only text there is, as it is; else all fields that are not bookkeeping, as JSON."""
    fields = {k: v for k, v in observation.items() if k not in _NOT_SHOWN and v is not None}
    if len(fields) == 1 and isinstance(text := next(iter(fields.values())), str):
        return text
    return json.dumps(fields, ensure_ascii=False) if fields else ""


def _message(action: Action, text: str) -> tuple[Message, ...]:
    return ({"role": "tool" if action.calls else "user", "content": text},)
