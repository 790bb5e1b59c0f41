"""The four tools of the analyst, and the check of a call's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stages.interaction.trajectory import ToolCall


def _tool(name: str, description: str, **arguments: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {k: dict(v) for k, v in arguments.items()},
        "required": list(arguments),
        "additionalProperties": False,
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS: tuple[dict[str, Any], ...] = (
    _tool("list_tables", "List the tables of the database."),
    _tool(
        "describe",
        "Show the columns of a table with their types.",
        table={"type": "string", "description": "Name of the table."},
    ),
    _tool(
        "query",
        "Run one SQLite SELECT statement and show the rows.",
        sql={"type": "string", "description": "The statement."},
    ),
    _tool(
        "answer",
        "Give the final answer to the question.",
        value={
            "type": ["string", "number", "array"],
            "items": {"type": ["string", "number"]},
            "description": "The answer; several values as a list or separated by commas.",
        },
    ),
)

_ARGUMENT = {"list_tables": None, "describe": "table", "query": "sql", "answer": "value"}


def problem(call: ToolCall) -> str | None:
    """What is wrong with a call (unknown tool, wrong arguments), or None."""
    if call.name not in _ARGUMENT:
        return f"unknown tool {call.name[:40]!r}; the tools are {', '.join(_ARGUMENT)}"
    wanted = _ARGUMENT[call.name]
    if wanted is None:
        return None if not call.arguments else f"{call.name} takes no arguments"
    if set(call.arguments) != {wanted}:
        return f"{call.name} takes exactly one argument: {wanted}"
    value = call.arguments[wanted]
    if call.name == "answer":
        return None if _is_answer(value) else "value must be a text, a number or a list of those"
    return None if isinstance(value, str) else f"{wanted} must be a text"


def _is_answer(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_answer(item) and not isinstance(item, list) for item in value)
    return isinstance(value, str | int | float) and not isinstance(value, bool)
