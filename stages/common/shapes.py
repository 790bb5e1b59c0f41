"""The shapes in which people bring dialogues and preferences, and the one shape we use.

TRL's rows, instruction rows, ShareGPT and agents' transcripts are told apart by their fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages.common.errors import UsageError, kind_of
from stages.common.messages import UNLEARNED, Message, is_learned, read_message, read_messages

Row = Mapping[str, Any]

_TRANSCRIPTS = ("messages", "conversations", "traj")
_REPLIES = ("reply", "output", "response")
_DIALOGUE_SHAPES = "messages; prompt and completion; or instruction, history and reply"
_PREFERENCE_SHAPES = "prompt (or context), chosen and rejected"


@dataclass(frozen=True)
class Dialogue:
    """A dialogue to learn from; it ends with an assistant message."""

    messages: tuple[Message, ...]
    last_reply_only: bool
    """Earlier replies are history: only the last is learned. Replies of weight 0 never are."""
    tools: tuple[Mapping[str, Any], ...] = ()
    success: bool | None = None
    """None: the row does not say."""


@dataclass(frozen=True)
class Preference:
    """Two dialogues with a common beginning, each ending with the judged assistant message."""

    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    group: str = ""
    """Pairs of one group (task, prompt) fall on one side of the held-out split."""


def read_dialogue(place: str, row: Row) -> Dialogue:
    """A row in any known shape; UsageError naming ``place`` otherwise."""
    messages, last_only = _dialogue_messages(place, row)
    messages = merge_assistants(messages)
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    if not messages:
        raise UsageError(
            f"{place} has no assistant message, so there is nothing to learn; leave the row out."
        )
    replies = [m for m in messages if m["role"] == "assistant"][-1 if last_only else 0 :]
    learned = [m for m in replies if is_learned(m)]
    if not learned:
        raise UsageError(
            f"{place} has a weight of 0 at every reply, so there is nothing to learn; leave the "
            "row out."
        )
    if not all(m["content"] for m in learned):
        raise UsageError(f"{place} has an empty reply; give its text or leave the row out.")
    return Dialogue(tuple(messages), last_only, _tools(place, row), _success(row))


def read_preference(place: str, row: Row) -> Preference:
    """A preference row in any known shape; UsageError naming ``place`` otherwise."""
    missing = [name for name in ("chosen", "rejected") if not row.get(name)]
    if missing:
        raise UsageError(
            f"{place} has no {' and no '.join(missing)}; expected {_PREFERENCE_SHAPES}, "
            f"got {_names(row)}."
        )
    context = _preference_context(place, row)
    sides = [
        tuple(merge_assistants([*context, *_side(place, name, row[name])]))
        for name in ("chosen", "rejected")
    ]
    if sides[0] == sides[1]:
        raise UsageError(f"{place}: chosen and rejected are the same; leave the row out.")
    for name, side in zip(("chosen", "rejected"), sides, strict=True):
        if side[-1]["role"] != "assistant" or not side[-1]["content"]:
            raise UsageError(f"{place}: {name} must end with an assistant's reply that has text.")
        if len(side) < 2:
            raise UsageError(f"{place} has no prompt; expected {_PREFERENCE_SHAPES}.")
    group = row.get("task_id")
    shared = _common_beginning(*sides)
    if group is None:
        group = json.dumps([m["content"] for m in shared if m["role"] != "system"])
    return Preference(sides[0], sides[1], _tools(place, row), str(group))


def _dialogue_messages(place: str, row: Row) -> tuple[list[Message], bool]:
    for name in _TRANSCRIPTS:
        if row.get(name):
            system = _system(row)
            return [*system, *read_messages(place, row[name])], False
    if row.get("completion"):
        prompt = read_messages(place, row.get("prompt") or "")
        return [*prompt, *_side(place, "completion", row["completion"])], True
    reply = next((row[name] for name in _REPLIES if row.get(name)), None)
    if row.get("instruction") and reply is not None:
        return _instruction(place, row, reply), True
    raise UsageError(f"{place} has {_names(row)}, expected {_DIALOGUE_SHAPES}, none of them empty.")


def _instruction(place: str, row: Row, reply: Any) -> list[Message]:
    asked = "\n".join(str(row[name]) for name in ("instruction", "input") if row.get(name))
    last = [{"role": "user", "content": asked}, *_side(place, "reply", reply)]
    return [*_system(row), *_history(place, row.get("history") or []), *last]


def _history(place: str, items: Any) -> list[Message]:
    """Earlier exchanges: messages, or [user, assistant] pairs."""
    if not isinstance(items, Sequence) or isinstance(items, str):
        raise UsageError(
            f"{place}: history is {kind_of(items)}, expected a list of [user, assistant] pairs or "
            "messages."
        )
    if all(isinstance(item, Mapping) for item in items):
        return read_messages(place, items)
    messages: list[Message] = []
    for pair in items:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise UsageError(
                f"{place}: history has {kind_of(pair)}, expected [user, assistant] pairs."
            )
        messages.append({"role": "user", "content": str(pair[0] or "")})
        messages.append({"role": "assistant", "content": str(pair[1] or "")})
    return messages


def _preference_context(place: str, row: Row) -> list[Message]:
    names = ("prompt", "context", *_TRANSCRIPTS, "question", "history")
    given = next((row[name] for name in names if row.get(name)), None)
    if row.get("instruction"):
        asked = "\n".join(str(row[name]) for name in ("instruction", "input") if row.get(name))
        history = _history(place, row.get("history") or [])
        return [*_system(row), *history, {"role": "user", "content": asked}]
    if given is not None:
        return [*_system(row), *read_messages(place, given)]
    if isinstance(row["chosen"], str) or isinstance(row["rejected"], str):
        raise UsageError(f"{place} has no prompt; expected {_PREFERENCE_SHAPES}.")
    return []  # the implicit form: both sides hold the whole dialogue


def _side(place: str, name: str, value: Any) -> list[Message]:
    """A reply: its text, one message, or messages."""
    if isinstance(value, str):
        return [{"role": "assistant", "content": value.strip()}]
    if isinstance(value, Mapping):
        return [read_message(f"{place} {name}", value)]
    return read_messages(f"{place} {name}", value)


def merge_assistants(messages: Sequence[Message]) -> list[Message]:
    """Neighbouring assistant messages (words, then a call) are one action."""
    merged: list[Message] = []
    for message in messages:
        if merged and message["role"] == merged[-1]["role"] == "assistant":
            texts = [m["content"] for m in (merged[-1], message) if m["content"]]
            mark = {} if is_learned(merged[-1]) or is_learned(message) else UNLEARNED
            merged[-1] = {"role": "assistant", "content": "\n".join(texts)} | mark
        else:
            merged.append(message)
    return merged


def _common_beginning(a: Sequence[Message], b: Sequence[Message]) -> list[Message]:
    shared = []
    for one, other in zip(a[:-1], b[:-1], strict=False):
        if one != other:
            break
        shared.append(one)
    return shared


def _system(row: Row) -> list[Message]:
    text = row.get("system")
    return [{"role": "system", "content": str(text)}] if text else []


def _tools(place: str, row: Row) -> tuple[Mapping[str, Any], ...]:
    tools = row.get("tools") or ()
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise UsageError(
                f"{place}: tools is not valid JSON ({error}); expected a list of descriptions."
            ) from error
    if not isinstance(tools, Sequence) or not all(isinstance(tool, Mapping) for tool in tools):
        raise UsageError(
            f"{place}: tools is {kind_of(tools)}, expected a list of tool descriptions (objects)."
        )
    return tuple(tools)


def _success(row: Row) -> bool | None:
    if row.get("success") is not None:
        return bool(row["success"])
    reward = row.get("reward")
    return reward > 0 if isinstance(reward, (int, float)) else None


def _names(row: Row) -> str:
    names = ", ".join(sorted(map(str, row)))
    return f"the field{'s' * (len(row) > 1)} {names}" if row else "no fields"
