"""Tools as JSON Schema, and whether a call fits one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stages.interaction.trajectory import Message, ToolCall

LONGEST_TEXT = 20_000
"""Characters of one argument; longer ones are refused."""

_TYPES: Mapping[str, tuple[str, type | tuple[type, ...]]] = {
    "string": ("a text", str),
    "integer": ("a whole number", int),
    "number": ("a number", (int, float)),
}


def tool(name: str, description: str, **arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in OpenAI's form; every argument is required."""
    parameters = {
        "type": "object",
        "properties": {k: dict(v) for k, v in arguments.items()},
        "required": list(arguments),
        "additionalProperties": False,
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def problem(call: ToolCall, tools: Sequence[Mapping[str, Any]]) -> str | None:
    """What is wrong with a call (unknown tool, wrong arguments) in words, or None."""
    known = {t["function"]["name"]: t["function"]["parameters"]["properties"] for t in tools}
    if call.name not in known:
        return f"unknown tool {call.name[:40]!r}; the tools are {', '.join(known)}"
    wanted = known[call.name]
    if set(call.arguments) != set(wanted):
        return f"{call.name} takes {_listed(list(wanted))}"
    for name, schema in wanted.items():
        wrong = _mismatch(call.arguments[name], schema["type"])
        if wrong is not None:
            return f"{name} must be {wrong}"
    return None


def message(role: str, content: str, tool_name: str | None = None) -> Message:
    """A message; the tool's name goes with what it said."""
    named = {"name": tool_name} if tool_name else {}
    return {"role": role, **named, "content": content}


def _mismatch(value: Any, kinds: str | Sequence[str]) -> str | None:
    """What the value should be, or None if it is of one of the kinds."""
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return f"shorter than {LONGEST_TEXT} characters"
    fits = any(isinstance(value, _TYPES[name][1]) for name in names)
    # True is an int to Python, never to a person.
    return None if fits and not isinstance(value, bool) else _one_of(names)


def _one_of(names: Sequence[str]) -> str:
    return " or ".join(_TYPES[name][0] for name in names)


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "no arguments"
    if len(names) == 1:
        return f"exactly one argument: {names[0]}"
    return f"exactly the arguments {', '.join(names)}"
