"""Messages as people bring them (OpenAI, TRL, ShareGPT), in the one form we use.

Roles are system, user, assistant and tool, contents are text, and tool calls are canonical JSON
in the assistant's text: what our actors read and write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from stages.common.errors import UsageError, kind_of

Message = dict[str, Any]
UNLEARNED = {"weight": 0}
_SURROGATE = re.compile("[\ud800-\udfff]")

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "ipython": "tool",
}


def read_messages(place: str, items: Any) -> list[Message]:
    """OpenAI, TRL or ShareGPT messages in our roles; UsageError naming ``place``."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if not isinstance(items, Sequence):
        raise UsageError(f"{place} has {kind_of(items)} where messages were expected.")
    return [read_message(f"{place} message {k}", item) for k, item in enumerate(items, start=1)]


def encodable(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages without half surrogate pairs, which no UTF-8 file or tokenizer can hold."""
    return tuple(
        m | {"content": _SURROGATE.sub("\ufffd", m["content"])}
        if isinstance(m.get("content"), str) and not m["content"].isascii()
        else m
        for m in messages
    )


def with_system(messages: Sequence[Message], text: str) -> list[Message]:
    """The messages with ``text`` at the end of their system message, or as one of their own."""
    head = list(messages[:1]) if messages and messages[0]["role"] == "system" else []
    texts = [*(str(m["content"]) for m in head), text]
    return [{"role": "system", "content": "\n\n".join(texts)}, *messages[len(head) :]]


def call_text(name: str, arguments: Any) -> str:
    """The canonical text of one tool call; JSON text of arguments is unpacked."""
    if isinstance(arguments, str):
        with suppress(ValueError):  # what a model wrote may be no JSON: it stays as it was said
            arguments = json.loads(arguments or "{}")
    return json.dumps({"name": name, "arguments": arguments or {}}, ensure_ascii=False)


def read_message(place: str, item: Any) -> Message:
    """One message in our roles, its tool calls written out; UsageError naming ``place``."""
    if not isinstance(item, Mapping):
        raise UsageError(f"{place} is {kind_of(item)}, expected an object with a role.")
    given = item.get("role") or item.get("from")
    role = _ROLES.get(str(given))
    if role is None:
        allowed = ", ".join(_ROLES)
        raise UsageError(f"{place} has the role {given!r}; expected one of {allowed}.")
    content = plain_text(
        place, item.get("value") if item.get("content") is None else item["content"]
    )
    if given == "function_call":
        content = _written_call(content)
    if role != "assistant":
        return {"role": role, "content": content}
    calls = [_call(place, call) for call in _calls(place, item.get("tool_calls") or ())]
    # Replies are stripped: many templates strip them in the history, none asks for blanks.
    text = "\n".join(x for x in [content.strip(), *calls] if x)
    return {"role": role, "content": text} | _weight(place, item.get("weight"))


def is_learned(message: Message) -> bool:
    """Whether a reply is to be learned, not only shown to those after it."""
    return message.get("weight") != 0


def _weight(place: str, value: Any) -> dict[str, int]:
    """OpenAI's mark of a reply that is shown and not learned: a weight of 0."""
    if value not in (None, 0, 1):
        raise UsageError(
            f"{place} has the weight {value!r}; expected 0 (shown only) or 1 (learned)."
        )
    return {} if value in (None, 1) else UNLEARNED


def plain_text(place: str, value: Any) -> str:
    """Text as it is, text blocks joined, None as nothing. UsageError on images and the like."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, Sequence):
        texts = [part.get("text") for part in value if isinstance(part, Mapping)]
        if len(texts) == len(value) and all(isinstance(text, str) for text in texts):
            return "".join(str(text) for text in texts)
    raise UsageError(f"{place} has a content that is no text; give text, or leave the row out.")


def _calls(place: str, calls: Any) -> Sequence[Any]:
    if isinstance(calls, str) or not isinstance(calls, Sequence):
        raise UsageError(f"{place} has {kind_of(calls)} as tool_calls; expected a list of calls.")
    return calls


def _call(place: str, call: Any) -> str:
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    if not isinstance(function, Mapping) or not function.get("name"):
        raise UsageError(
            f"{place} has a tool call without a name; expected one with name and arguments."
        )
    return call_text(str(function["name"]), function.get("arguments"))


def _written_call(text: str) -> str:
    """ShareGPT writes a call as JSON text; canonical where it can be read."""
    try:
        call = json.loads(text)
        return call_text(call["name"], call.get("arguments", call.get("parameters")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return text
