"""Data files that a person might get wrong: every shape that the stages read."""

from __future__ import annotations

import json
from typing import Any

from tests.aacli.bad_input import PAIRS, REPLIES, Case, Place

USER = {"role": "user", "content": "hi"}
REPLY = {"role": "assistant", "content": "hello"}
EPISODE = {"task_id": "t", "kind": "k", "group": "g", "goal": "", "turns": []}


def replies(id: str, row: Any, *names: str) -> Case:
    """A second row of a file for ``aac sft``, after a sound one."""
    place = "data.jsonl line 2"
    return Case(id, lambda at: at.sft(at.rows(REPLIES[0], row)), (place, *names))


def pairs(id: str, row: Any, *names: str) -> Case:
    """The same for ``aac train-reward``."""
    place = "data.jsonl line 2"
    return Case(id, lambda at: at.reward(at.rows(PAIRS[0], row)), (place, *names))


def replies_file(id: str, name: str, content: bytes | str, *names: str) -> Case:
    """A whole file for ``aac sft``."""
    return Case(id, lambda at: at.sft(at.write(name, content)), (name, *names))


def truncated_parquet(at: Place) -> list[str]:
    """A good file of which the end is missing."""
    import pyarrow
    import pyarrow.parquet

    file = at.root / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(REPLIES), file)
    file.write_bytes(file.read_bytes()[:-200])
    return at.sft("data.parquet")


def only_folders(at: Place) -> list[str]:
    """A folder that holds no data file."""
    at.write("data/notes.txt", "nothing")
    return at.sft("data")


def folder_with_ending(at: Place) -> list[str]:
    """A folder that is called like a file."""
    (at.root / "data.jsonl").mkdir()
    return at.sft("data.jsonl")


GOOD_LINE = json.dumps(REPLIES[0])

CASES = (
    # the file
    Case("no such file", lambda at: at.sft("no.jsonl"), ("no.jsonl", "does not exist", "path")),
    Case("folder without data", only_folders, ("data is a folder without .jsonl", "give a")),
    Case("folder called like a file", folder_with_ending, ("data.jsonl is a folder", "give a")),
    replies_file("empty file", "data.jsonl", "", "holds no rows", "at least one"),
    replies_file("blank lines only", "data.jsonl", "\n \n", "holds no rows", "at least one"),
    replies_file("only a BOM", "data.jsonl", b"\xef\xbb\xbf", "holds no rows", "at least one"),
    replies_file("empty JSON file", "data.json", "", "is empty", "a list of rows"),
    replies_file("empty JSON list", "data.json", "[]", "holds no rows", "at least one"),
    replies_file("JSON text", "data.json", '"hello"', "holds text", "a list of rows"),
    replies_file("JSON number under data", "data.json", '{"data": 7}', "a number", "list of rows"),
    replies_file("table by another name", "data.csv", "a,b\n", "is no .jsonl, .json or .parquet"),
    replies_file(
        "invalid JSON", "data.jsonl", GOOD_LINE + "\n{'a': 1}\n", "line 2", "mend the line"
    ),
    replies_file("a cut last line", "data.jsonl", GOOD_LINE + '\n{"prompt": "sa', "line 2", "mend"),
    replies_file(
        "invalid JSON in a list", "data.json", "[\n{},\n{'a': 1}]", "line 3", "mend the file"
    ),
    replies_file(
        "NaN of another writer", "data.jsonl", '{"prompt": NaN, "completion": "a"}', "line 1"
    ),
    replies_file("JSON too deep", "data.jsonl", "[" * 100_000, "line 1", "mend the line"),
    replies_file("UTF-16", "data.jsonl", GOOD_LINE.encode("utf-16"), "UTF-8", "save it"),
    replies_file(
        "Latin-1", "data.jsonl", '{"prompt": "\xe9t\xe9"}'.encode("latin-1"), "UTF-8", "save it"
    ),
    replies_file("binary", "data.jsonl", bytes(range(256)), "UTF-8", "save it"),
    replies_file("compressed", "data.jsonl.gz", b"\x1f\x8b", "is no .jsonl, .json or .parquet"),
    replies_file("empty parquet", "data.parquet", b"", "is not a", "parquet", "write it again"),
    replies_file("JSON called parquet", "data.parquet", GOOD_LINE, "parquet", "write it again"),
    Case("truncated parquet", truncated_parquet, ("data.parquet", "parquet", "write it again")),
    # rows of dialogues
    replies("row is a list", [1], "a list", "an object with named fields"),
    replies("row is a number", 7, "a number", "an object with named fields"),
    replies("no known fields", {"text": "hi"}, "the field text", "messages; prompt and completion"),
    replies("no fields", {}, "no fields", "messages; prompt and completion"),
    replies(
        "unknown role", {"messages": [USER, {"role": "bot", "content": "x"}]}, "message 2", "'bot'"
    ),
    replies("no role", {"messages": [{"content": "x"}]}, "message 1", "role", "expected one of"),
    replies("messages of text", {"messages": ["hi", "hello"]}, "message 1 is text", "an object"),
    replies("messages is a number", {"messages": 7}, "a number where messages were expected"),
    replies("messages without reply", {"messages": [USER]}, "has no assistant message"),
    replies(
        "content is a number",
        {"messages": [USER, {"role": "assistant", "content": 7}]},
        "message 2",
    ),
    replies(
        "an image",
        {"messages": [{"role": "user", "content": [{"type": "image"}]}, REPLY]},
        "no text; give text",
    ),
    replies(
        "empty reply", {"messages": [USER, {"role": "assistant", "content": " "}]}, "empty reply"
    ),
    replies("ShareGPT role", {"conversations": [{"from": "bob", "value": "x"}]}, "'bob'", "human"),
    replies("no completion", {"prompt": "hi"}, "the field prompt", "completion"),
    replies("empty completion", {"prompt": "hi", "completion": ""}, "completion"),
    replies("completion is a number", {"prompt": "hi", "completion": 7}, "a number where messages"),
    replies("prompt is a number", {"prompt": 7, "completion": "a"}, "a number where messages"),
    replies("instruction without reply", {"instruction": "add"}, "the field instruction", "reply"),
    replies(
        "history of single texts",
        {"instruction": "a", "history": ["x"], "reply": "b"},
        "history has text, expected [user, assistant]",
    ),
    replies(
        "history is text",
        {"instruction": "a", "history": "x", "reply": "b"},
        "history is text, expected a list",
    ),
    replies(
        "tools are no JSON", {"messages": [USER, REPLY], "tools": "{"}, "tools is not valid JSON"
    ),
    replies(
        "tools are names", {"messages": [USER, REPLY], "tools": ["a"]}, "expected a list of tool"
    ),
    replies(
        "call without a name",
        {"messages": [USER, REPLY | {"tool_calls": [{}]}]},
        "call without a name",
    ),
    replies(
        "calls are a number",
        {"messages": [USER, REPLY | {"tool_calls": 7}]},
        "message 2",
        "tool_calls",
    ),
    replies(
        "episode with a broken turn", EPISODE | {"turns": [{"index": 0}]}, "no trajectory of aac"
    ),
    replies("episode with turns as text", EPISODE | {"turns": "none"}, "no trajectory of aac"),
    # rows of preferences
    pairs("no rejected", {"prompt": "hi", "chosen": "a"}, "has no rejected", "prompt (or context)"),
    pairs("empty chosen", {"prompt": "hi", "chosen": "", "rejected": "a"}, "has no chosen"),
    pairs("no prompt", {"chosen": "a", "rejected": "b"}, "has no prompt", "expected prompt"),
    pairs(
        "chosen is a number", {"prompt": "hi", "chosen": 7, "rejected": "b"}, "chosen has a number"
    ),
    pairs(
        "chosen ends with a user",
        {"prompt": "a", "chosen": [USER], "rejected": [REPLY]},
        "chosen must end",
    ),
    pairs(
        "identical sides",
        {"prompt": "hi", "chosen": "a", "rejected": "a"},
        "are the same",
        "leave the row out",
    ),
    pairs(
        "dialogues instead", {"messages": [USER, REPLY]}, "no chosen and no rejected", "messages"
    ),
    pairs(
        "context is a number",
        {"prompt": 7, "chosen": "a", "rejected": "b"},
        "a number where messages",
    ),
    Case(
        "one prompt for all pairs",
        lambda at: at.reward(at.rows(*[PAIRS[0]] * 3)),
        ("all 3 pairs have the same prompt", "at least two prompts"),
    ),
    Case(
        "replies longer than the limit",
        lambda at: at.sft(at.rows({"prompt": "hi", "completion": "word " * 2000})),
        ("sft.max_length (800 tokens)", "raise it"),
    ),
    Case(
        "no success to clone",
        lambda at: at.sft(at.rows(*REPLIES), "--set", "sft.only_successful=true"),
        ("sft.only_successful", "data.jsonl", "success or reward field", "set it to false"),
    ),
)
