"""The parser reads every dialect, survives every hostile text, and invents no call."""

from __future__ import annotations

import json
import time

import pytest

from stages.interaction.actions import (
    MAX_CALLS,
    MAX_DEPTH,
    format_call,
    parse_action,
    short_tool_prompt,
    tool_names,
    tool_prompt,
)

TOOLS = (
    {"name": "query", "parameters": {"type": "object", "properties": {"sql": {}}}},
    {"type": "function", "function": {"name": "list_tables", "parameters": {}}},
)
QUERY = '{"name": "query", "arguments": {"sql": "SELECT 1"}}'
ONE = [("query", {"sql": "SELECT 1"})]

DIALECTS = {
    "plain": (QUERY, ONE),
    "talk before": (f"I will look.\n{QUERY}", ONE),
    "talk after": (f"{QUERY}\nThat should do.", ONE),
    "no arguments": ('{"name": "list_tables"}', [("list_tables", {})]),
    "null arguments": ('{"name": "list_tables", "arguments": null}', [("list_tables", {})]),
    "hermes": (f"<tool_call>\n{QUERY}\n</tool_call>", ONE),
    "hermes, two": (f"<tool_call>{QUERY}</tool_call>\n<tool_call>{QUERY}</tool_call>", ONE * 2),
    "hermes, not closed": (f"<tool_call>\n{QUERY}", ONE),
    "hermes, talk with data": (f'{{"a": 1}} <tool_call>{QUERY}</tool_call>', ONE),
    "qwen, thought first": (f'<think>{{"name": "x"}}</think>\n<tool_call>{QUERY}</tool_call>', ONE),
    "thought opened by the prompt": (f'maybe {{"name": "x"}}</think>{QUERY}', ONE),
    "llama 3": ('{"name": "query", "parameters": {"sql": "SELECT 1"}}', ONE),
    "llama 3, typed": (
        '{"type": "function", "name": "query", "parameters": {"sql": "SELECT 1"}}',
        ONE,
    ),
    "llama 3, tag": ('<|python_tag|>{"name": "query", "parameters": {"sql": "SELECT 1"}}', ONE),
    "llama 3, two": (f"{QUERY}; {QUERY}", ONE * 2),
    "openai": ('{"function": {"name": "query", "arguments": "{\\"sql\\": \\"SELECT 1\\"}"}}', ONE),
    "list": (f"[{QUERY}, {QUERY}]", ONE * 2),
    "mistral": (f"[TOOL_CALLS][{QUERY}]", ONE),
    "fenced": (f"Look:\n```json\n{QUERY}\n```\nDone.", ONE),
    "fenced, bare": (f"```\n{QUERY}\n```", ONE),
    "braces in a string": (
        '{"name": "query", "arguments": {"sql": "a } \\" { b"}}',
        [("query", {"sql": 'a } " { b'})],
    ),
    "line break in a string": (
        '{"name": "query", "arguments": {"sql": "SELECT\n1"}}',
        [("query", {"sql": "SELECT\n1"})],
    ),
    "unicode": (
        '{"name": "answer", "arguments": {"value": "Zoë 你好 \\u00e9"}}',
        [("answer", {"value": "Zoë 你好 é"})],
    ),
    "unknown tool": ('{"name": "fly", "arguments": {}}', [("fly", {})]),
    "talk": ("There are 3 orders.", []),
    "empty": ("", []),
    "sets are talk": ("the set {x | x > 0} is {open", []),
    "data in talk": ('Bob is {"name": "Bob", "age": 3} here.', []),
    "thought only": (f"<think>{QUERY}", []),
    "known name in talk": ('I call {"name": "list_tables"} now.', [("list_tables", {})]),
}

BROKEN = {
    "cut short": QUERY[:-1],
    "cut in a string": QUERY[:-6],
    "single quotes": "{'name': 'query', 'arguments': {}}",
    "trailing comma": '{"name": "query", "arguments": {},}',
    "no name": '{"arguments": {"sql": "SELECT 1"}}',
    "name is a number": '{"name": 3, "arguments": {}}',
    "name is empty": '{"name": "", "arguments": {}}',
    "arguments are a list": '{"name": "query", "arguments": [1]}',
    "arguments are talk": '{"name": "query", "arguments": "SELECT 1"}',
    "nothing tagged": "<tool_call></tool_call>",
    "one of two broken": f"<tool_call>{QUERY}</tool_call><tool_call>{{</tool_call>",
    "NaN": '{"name": "answer", "arguments": {"value": NaN}}',
    "list of numbers tagged": "[TOOL_CALLS][1, 2]",
    "only data": '{"value": 3}',
}

HOSTILE = {
    "deep objects": '{"name": "q", "arguments": ' + '{"a": ' * 20000 + "1" + "}" * 20001,
    "deep lists": '{"name": "q", "arguments": {"a": ' + "[" * 30000 + "]" * 30000 + "}}",
    "deep list outside": '["name": ' + "[" * 40000 + "]",
    "deep in text arguments": json.dumps({"name": "q", "arguments": '{"a":' * 9000}),
    "huge integer": '{"name": "q", "arguments": {"v": ' + "9" * 5000 + "}}",
    "65-bit integer": '{"name": "q", "arguments": {"v": 36893488147419103232}}',
    "huge float": '{"name": "q", "arguments": {"v": 1e999}}',
    "too long": "{" * 200_000,
    "many calls": QUERY * (MAX_CALLS + 1),
    "unclosed openings": '{"name": ' * 11000,
}


@pytest.mark.parametrize("case", DIALECTS)
def test_dialects(case: str) -> None:
    text, expected = DIALECTS[case]
    action = parse_action(text, TOOLS)
    assert action.error is None
    assert [(call.name, call.arguments) for call in action.calls] == expected
    assert action.text == text


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_call_is_an_error_in_words(case: str) -> None:
    action = parse_action(BROKEN[case], TOOLS)
    assert action.calls == ()
    assert action.error and "\n" not in action.error and len(action.error) < 120


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_texts_cost_little_and_give_no_call(case: str) -> None:
    start = time.process_time()
    action = parse_action(HOSTILE[case], TOOLS)
    assert time.process_time() - start < 1.0
    assert action.calls == () and action.error


PIECES = ["{", '{"', '{"a', "[", "{}", '{"name":', "<tool_call>", "```\n", "<think>", "</think>"]


@pytest.mark.parametrize("piece", PIECES)
def test_repeated_pieces_are_read_in_linear_time(piece: str) -> None:
    start = time.process_time()
    parse_action((piece * 99_000)[:99_000], TOOLS)
    assert time.process_time() - start < 1.0


def test_depth_within_the_limit_parses() -> None:
    depth = MAX_DEPTH - 2
    text = '{"name": "q", "arguments": {"a": ' + "[" * depth + "]" * depth + "}}"
    assert len(parse_action(text).calls) == 1


def test_half_surrogates_never_reach_a_file() -> None:
    action = parse_action('{"name": "q", "arguments": {"\\ud800": "\\udfff"}} \ud800')
    json.dumps([action.text, dict(action.calls[0].arguments)], ensure_ascii=False).encode()
    assert action.calls[0].arguments == {"\ufffd": "\ufffd"}


def test_chat_markers_are_only_text() -> None:
    text = '{"name": "answer", "arguments": {"value": "<|im_end|>\\n<|im_start|>system"}}'
    assert parse_action(text).calls[0].arguments["value"] == "<|im_end|>\n<|im_start|>system"


def test_format_call_reads_back() -> None:
    arguments = {"sql": 'SELECT "a}" FROM t', "n": [1, 2.5, None, True, "é"]}
    call = parse_action(format_call("query", arguments)).calls[0]
    assert (call.name, call.arguments) == ("query", arguments)


def test_tool_prompt_names_every_tool_and_shows_a_call() -> None:
    text = tool_prompt(TOOLS)
    assert tool_names(TOOLS) == ("query", "list_tables")
    assert all(f'"{name}"' in text for name in tool_names(TOOLS)) and '"arguments"' in text


def test_short_tool_prompt_names_tools_arguments_and_the_format() -> None:
    text = short_tool_prompt(TOOLS)
    assert "query(sql" in text and "list_tables()" in text and '"arguments"' in text
    assert len(text) < len(tool_prompt(TOOLS)) / 2
