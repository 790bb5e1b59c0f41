"""From the actor's text to tool calls, and from tools to the text that describes them.

The one format our own models use is plain JSON, ``{"name": ..., "arguments": {...}}``. The
parser also reads the dialects of Qwen/Hermes (``<tool_call>``), Llama 3 (``parameters``,
``<|python_tag|>``), OpenAI (``function``) and fenced JSON. It never raises and never evaluates:
what it is given comes from a model, so sizes, depths and numbers are bounded first.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stages.interaction.trajectory import Action, ToolCall

MAX_CHARACTERS = 100_000
"""Longer texts are refused unread."""
MAX_DEPTH = 32
"""Deepest nesting of braces and brackets in one call."""
MAX_CALLS = 16
"""Most calls in one action."""
MAX_INTEGER = 2**63
"""Integers outside ±2^63 are refused: databases and JSON readers elsewhere overflow on them."""

_TAGGED = re.compile(r"<tool_call>(.*?)(?=</tool_call>|<tool_call>|\Z)", re.DOTALL)
_FENCED = re.compile(r"```(?:json|tool_call|tool_code)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_MARKERS = ("<|python_tag|>", "[TOOL_CALLS]")
_START = re.compile(r"\{(?=\s*[\"'}])")
_STRUCTURE = re.compile(r'\\.|["{}\[\]]', re.DOTALL)
_LOOKS_LIKE_CALL = re.compile(r"[\"'](?:name|function)[\"']\s*:")
_SURROGATE = re.compile("[\ud800-\udfff]")


class _BadCall(ValueError):
    """Why a text that means to be a call is none; the message is for the actor."""


def parse_action(text: str, tools: Sequence[Mapping[str, Any]] = ()) -> Action:
    """Read the tool calls in a reply; text around them is allowed.

    No call gives ``calls=()`` and no error (plain talk); a broken call, or one broken call
    among several, gives ``calls=()`` and ``error`` in words. A tool that does not exist still
    parses: what to say about it is the environment's affair. ``tools`` only settle whether an
    object like ``{"name": "Bob"}`` inside a sentence is a call or data. Never raises.
    """
    text = _SURROGATE.sub("\ufffd", text)
    if len(text) > MAX_CHARACTERS:
        return Action(text, (), f"the reply is longer than {MAX_CHARACTERS} characters")
    try:
        calls = tuple(_calls(text, tool_names(tools)))
    except _BadCall as problem:
        return Action(text, (), str(problem))
    if len(calls) > MAX_CALLS:
        return Action(text, (), f"more than {MAX_CALLS} calls in one reply")
    return Action(text, calls)


def format_call(name: str, arguments: Mapping[str, Any]) -> str:
    """The canonical text of a call, which ``parse_action`` reads back unchanged."""
    return json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)


def in_short(action: Action, longest: int = 240) -> str:
    """An action on one line for people: ``tool(argument, ...)``, or its words, cut when long."""
    if not action.calls:
        words = " ".join(action.text.split()) or "(nothing)"
        return words if len(words) <= longest else f"{words[: longest - 1]}…"
    shown = [
        f"{call.name}({', '.join(plain_value(value) for value in call.arguments.values())})"
        for call in action.calls
    ]
    return "; ".join(shown)


def plain_value(value: Any) -> str:
    """An argument as a person would write it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def tool_names(tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Names of tools given bare or wrapped as ``{"type": "function", "function": {...}}``."""
    return tuple(str(_function(tool).get("name", "")) for tool in tools)


def tool_prompt(tools: Sequence[Mapping[str, Any]]) -> str:
    """System text: one JSON line per tool, and the one format of a call."""
    lines = "\n".join(json.dumps(dict(_function(tool)), ensure_ascii=False) for tool in tools)
    return (
        "You work with these tools, one JSON description a line:\n"
        f"{lines}\n"
        "To use one, reply with a single JSON object and nothing else:\n"
        '{"name": "<tool>", "arguments": {"<argument>": <value>}}'
    )


def short_tool_prompt(tools: Sequence[Mapping[str, Any]]) -> str:
    """As ``tool_prompt`` in a sixth of its tokens: the format, and names with arguments."""
    signatures = []
    for tool in map(_function, tools):
        arguments = ", ".join((tool.get("parameters") or {}).get("properties") or {})
        signatures.append(f"{tool.get('name')}({arguments})")
    return (
        'Reply with one JSON object, {"name": tool, "arguments": {...}}. '
        f"Tools: {', '.join(signatures)}."
    )


TOOL_PROMPTS = {"full": tool_prompt, "short": short_tool_prompt}
"""Ways to tell a model of its tools, by the recipe's ``state.tool_prompt``."""


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = tool.get("function")
    return inner if isinstance(inner, Mapping) else tool


def _calls(text: str, names: Sequence[str]) -> Iterator[ToolCall]:
    """The calls of a text; marked ones, where there are any, are the only ones that count."""
    text = _without_thoughts(text).strip()
    tagged = [match.group(1) for match in _TAGGED.finditer(text)]
    for marker in _MARKERS:
        if not tagged and marker in text:
            tagged = [text.partition(marker)[2].replace(marker, " ")]
    if tagged:
        for part in tagged:
            yield from _from_marked(part)
        return
    fenced = [part for part in _FENCED.findall(text) if part.lstrip()[:1] in ("{", "[")]
    for part in fenced or [text]:
        yield from _from_bare(part.strip(), names)


def _without_thoughts(text: str) -> str:
    """What was said aloud; a thought the prompt opened has only its closing tag in the reply."""
    *closed, last = text.split("</think>")
    aloud = [head if tag else "" for head, tag, _ in (part.partition("<think>") for part in closed)]
    return " ".join([*aloud, last.partition("<think>")[0]])


def _from_marked(part: str) -> Iterator[ToolCall]:
    spans = list(_spans(part))
    if not spans:
        raise _BadCall("the call holds no JSON object")
    for span in spans:
        yield from _read(_load(span))


def _from_bare(text: str, names: Sequence[str]) -> Iterator[ToolCall]:
    """Calls in unmarked text: the whole of it, or objects in it that look like calls."""
    if text[:1] == "[" and text[-1:] == "]" and _LOOKS_LIKE_CALL.search(text):
        for item in _load(text):
            yield from _read(item)
        return
    for span in _spans(text):
        whole = text.startswith("{") and len(span) == len(text)
        if not whole and not _LOOKS_LIKE_CALL.search(span):
            continue
        value = _load(span)
        if whole or _means_a_call(value, names):
            yield from _read(value)


def _means_a_call(value: Mapping[str, Any], names: Sequence[str]) -> bool:
    inner = _function(value)
    return "arguments" in inner or "parameters" in inner or inner.get("name") in names


def _spans(text: str) -> Iterator[str]:
    """Outermost ``{...}`` spans, left to right, in one linear pass (strings respected).

    An object that never closes comes back as the rest of the text: ``_load`` will say so.
    """
    position = 0
    while match := _START.search(text, position):
        position = _end_of_object(text, match.start())
        yield text[match.start() : position]


def _end_of_object(text: str, start: int) -> int:
    depth, quoted = 0, False
    for mark in _STRUCTURE.finditer(text, start):
        symbol = mark.group()
        if symbol == '"':
            quoted = not quoted
        elif quoted or symbol[0] == "\\":
            continue
        elif symbol in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                raise _BadCall(f"the call is nested deeper than {MAX_DEPTH} levels")
        else:
            depth -= 1
            if depth <= 0:
                return mark.end()
    return len(text)


def _load(span: str) -> Any:
    """JSON with bounded depth and numbers; every failure becomes a ``_BadCall``."""
    _end_of_object(span, 0)
    try:
        value = json.loads(
            span, parse_int=_integer, parse_float=_float, parse_constant=_constant, strict=False
        )
    except _BadCall:
        raise
    except json.JSONDecodeError as problem:
        raise _BadCall(f"the call is not valid JSON: {problem.msg}") from None
    except (ValueError, RecursionError):
        raise _BadCall("the call is not valid JSON") from None
    return _clean(value) if "\\u" in span else value


def _integer(digits: str) -> int:
    if len(digits) > 20 or abs(int(digits)) > MAX_INTEGER:
        raise _BadCall("the call holds a number that is too large")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _BadCall("the call holds a number that is too large")
    return value


def _constant(name: str) -> float:
    raise _BadCall(f"the call is not valid JSON: {name} is no JSON number")


def _clean(value: Any) -> Any:
    """Replace half surrogate pairs, which no UTF-8 file or tokenizer can hold."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value


def _read(value: Any) -> Iterator[ToolCall]:
    """One call, from any of the dialects' objects."""
    if not isinstance(value, dict):
        raise _BadCall("a call must be a JSON object")
    inner = _function(value)
    name = inner.get("name")
    if not isinstance(name, str) or not name:
        raise _BadCall('the call has no "name"')
    arguments = inner.get("arguments", inner.get("parameters"))
    if isinstance(arguments, str):
        arguments = _load(arguments.strip() or "{}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise _BadCall('"arguments" must be a JSON object')
    yield ToolCall(name, arguments)
