"""OpenAI's chat completions as plain records: what a program asks, what it is answered.

Only what a text policy can honour is taken; anything that would change the reply otherwise is
refused in words, never ignored.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stages.common.errors import UsageError
from stages.common.messages import Message, encodable, read_message, read_messages
from stages.interaction.trajectory import Action

_REFUSED = ("logit_bias", "frequency_penalty", "presence_penalty", "stop", "response_format")
"""Would change the reply; refused unless they say nothing."""
_SAYS_NOTHING: tuple[Any, ...] = (None, 0, 0.0, [], {}, {"type": "text"})


@dataclass(frozen=True)
class ChatRequest:
    """One request for a reply."""

    messages: tuple[Message, ...]
    """In our roles, tool calls written out as text."""
    tools: tuple[Mapping[str, Any], ...] = ()
    model: str = "aac"
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stream: bool = False
    include_usage: bool = False


@dataclass(frozen=True)
class ChatReply:
    """What a policy said. ``tokens``: of the prompt and of the reply."""

    action: Action
    finished: bool = True
    """False: cut by the limit of new tokens."""
    tokens: tuple[int, int] = (0, 0)


def read_request(body: Any) -> ChatRequest:
    """A request's JSON. UsageError, in one sentence, on what cannot be read or honoured."""
    try:
        return _request(body)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise UsageError(f"the request is malformed ({error}).") from error


def _request(body: Any) -> ChatRequest:
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        raise UsageError("a request needs a JSON object with a list of messages.")
    if body.get("n", 1) not in (None, 1):
        raise UsageError(f"n = {body['n']} is not supported; ask once per reply.")
    for name in _REFUSED:
        if body.get(name) not in _SAYS_NOTHING:
            raise UsageError(f"{name} is not supported; leave it out.")
    if body.get("top_p") not in (None, 1, 1.0):
        raise UsageError("top_p is not supported; the agent samples by temperature only.")
    tools = body.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise UsageError("tools must be a list of tool descriptions.")
    messages = encodable(read_messages("the request's", body["messages"]))
    if not messages:
        raise UsageError("messages is empty; give at least one.")
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    return ChatRequest(
        messages=messages,
        tools=tuple(tools),
        model=str(body.get("model") or "aac"),
        temperature=_number(body, "temperature"),
        max_tokens=None if limit is None else max(1, int(limit)),
        seed=None if body.get("seed") is None else abs(int(body["seed"])),
        stream=bool(body.get("stream")),
        include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
    )


def reply_message(reply: ChatReply) -> dict[str, Any]:
    """The assistant message a program gets, and sends back with its next request."""
    if not reply.action.calls:
        return {"role": "assistant", "content": reply.action.text}
    calls = [
        {
            "id": f"call_{uuid.uuid4().hex[:12]}",
            "type": "function",
            "function": {"name": c.name, "arguments": json.dumps(dict(c.arguments))},
        }
        for c in reply.action.calls
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def echoed(message: Mapping[str, Any]) -> Message:
    """How a reply's message reads when it comes back in a later request."""
    return read_message("the reply", message)


def completion(request: ChatRequest, reply: ChatReply, message: dict[str, Any]) -> dict[str, Any]:
    """The whole answer as one JSON object."""
    choice = {"index": 0, "message": message, "finish_reason": _reason(reply, message)}
    return {**_head(request, "chat.completion"), "choices": [choice], "usage": _usage(reply)}


def events(request: ChatRequest, reply: ChatReply, message: dict[str, Any]) -> Iterator[str]:
    """The same answer as server-sent events."""
    head = _head(request, "chat.completion.chunk")
    calls = [{"index": k, **call} for k, call in enumerate(message.get("tool_calls", ()))]
    said = {"tool_calls": calls} if calls else {"content": message["content"]}
    for delta, reason in (
        ({"role": "assistant", "content": ""}, None),
        (said, None),
        ({}, _reason(reply, message)),
    ):
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        yield _event({**head, "choices": [choice]})
    if request.include_usage:
        yield _event({**head, "choices": [], "usage": _usage(reply)})
    yield "data: [DONE]\n\n"


def _event(data: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def _head(request: ChatRequest, kind: str) -> dict[str, Any]:
    made = int(time.time())
    name = f"chatcmpl-{uuid.uuid4().hex}"
    return {"id": name, "object": kind, "created": made, "model": request.model}


def _reason(reply: ChatReply, message: Mapping[str, Any]) -> str:
    if message.get("tool_calls"):
        return "tool_calls"
    return "stop" if reply.finished else "length"


def _usage(reply: ChatReply) -> dict[str, int]:
    prompt, said = reply.tokens
    return {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}


def _number(body: Mapping[str, Any], name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 10:
        raise UsageError(f"{name} = {value!r} is not allowed; expected a number from 0 to 10.")
    return float(value)
