"""The tools of a desk, and the check of a call's arguments."""

from __future__ import annotations

from typing import Any

from stages.interaction.environments.service.domains import Domain, Intent
from stages.interaction.trajectory import ToolCall


def tools_of(domain: Domain) -> tuple[dict[str, Any], ...]:
    """JSON-Schema tools: the finder, then one for each change."""
    noun = domain.noun
    number = {"type": "string", "description": f"Number of the {noun}."}
    found = _tool(domain.finder, f"Show a {noun}.", {noun: number})
    return (found, *(_writer(domain, intent, number) for intent in domain.writers.values()))


def problem(call: ToolCall, domain: Domain) -> str | None:
    """What is wrong with a call (unknown tool, wrong arguments), or None."""
    known = {domain.finder: None, **domain.writers}
    if call.name not in known:
        return f"unknown tool {call.name[:40]!r}; the tools are {', '.join(known)}"
    wanted = _arguments(domain, known[call.name])
    if set(call.arguments) != set(wanted):
        return f"{call.name} takes exactly {' and '.join(wanted)}"
    for name, value in call.arguments.items():
        if isinstance(value, bool) or not isinstance(value, str | int):
            return f"{name} must be a text"
        if name in domain.fields and value not in domain.fields[name]:
            return f"{name} must be one of {', '.join(domain.fields[name])}"
    return None


def _arguments(domain: Domain, intent: Intent | None) -> list[str]:
    chosen = intent is not None and intent.chosen
    return [domain.noun, *([intent.field] if intent is not None and chosen else [])]


def _writer(domain: Domain, intent: Intent, number: dict[str, str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {domain.noun: number}
    if intent.chosen:
        values = list(domain.fields[intent.field])
        arguments[intent.field] = {"type": "string", "enum": values}
    words = intent.act.format(number="with this number", value=f"this {intent.field}")
    return _tool(intent.tool, f"{words[0].upper()}{words[1:]}.", arguments)


def _tool(name: str, description: str, properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}
