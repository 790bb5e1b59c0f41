"""People's rows: each shape against the dialogue a person would say it means."""

from __future__ import annotations

from typing import Any

import pytest

from stages.common.errors import UsageError
from stages.common.shapes import read_dialogue, read_preference

HI, HELLO = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
BYE, END = {"role": "user", "content": "bye"}, {"role": "assistant", "content": "end"}
WHOLE = (HI, HELLO, BYE, END)
CALL = '{"name": "look", "arguments": {"table": "orders"}}'


@pytest.mark.parametrize(
    ("row", "last_only"),
    [
        ({"messages": list(WHOLE)}, False),
        ({"messages": [*WHOLE, {"role": "user", "content": "still there?"}]}, False),
        ({"prompt": [HI, HELLO, BYE], "completion": [END]}, True),
        ({"instruction": "bye", "history": [["hi", "hello"]], "reply": "end"}, True),
        ({"instruction": "bye", "history": [HI, HELLO], "output": " end\n"}, True),
        (
            {
                "conversations": [
                    {"from": "human", "value": "hi"},
                    {"from": "gpt", "value": "hello"},
                    {"from": "human", "value": "bye"},
                    {"from": "gpt", "value": "end"},
                ]
            },
            False,
        ),
    ],
)
def test_every_shape_means_the_same_dialogue(row: dict[str, Any], last_only: bool) -> None:
    dialogue = read_dialogue("here", row)
    assert dialogue.messages == WHOLE and dialogue.last_reply_only is last_only
    assert dialogue.success is None and dialogue.tools == ()


def test_alpaca_rows_and_strings() -> None:
    row = {"system": "Be brief.", "instruction": "Add.", "input": "1 and 2", "output": "3"}
    assert read_dialogue("here", row).messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Add.\n1 and 2"},
        {"role": "assistant", "content": "3"},
    )
    assert read_dialogue("here", {"prompt": "hi", "completion": "hello"}).messages == (HI, HELLO)


def test_tool_calls_become_canonical_text() -> None:
    openai = [
        HI,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "function": {"name": "look", "arguments": '{"table":"orders"}'},
                    "type": "function",
                }
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "12 rows"},
        {"role": "assistant", "content": [{"type": "text", "text": "12"}]},
    ]
    sharegpt = [
        {"from": "human", "value": "hi"},
        {"from": "function_call", "value": '{"name":"look",  "arguments":{"table":"orders"}}'},
        {"from": "observation", "value": "12 rows"},
        {"from": "gpt", "value": "12"},
    ]
    tools = '[{"name": "look", "description": "d", "parameters": {}}]'
    first = read_dialogue("here", {"traj": openai, "reward": 1.0})
    second = read_dialogue("here", {"conversations": sharegpt, "tools": tools})
    assert first.messages == second.messages
    assert [m["content"] for m in first.messages] == ["hi", CALL, "12 rows", "12"]
    assert first.success is True and second.success is None
    assert second.tools[0]["name"] == "look"


def test_words_and_a_call_are_one_action() -> None:
    words = {"role": "assistant", "content": "Let me look."}
    call = {"role": "assistant", "tool_calls": [{"name": "look", "arguments": {"table": "orders"}}]}
    assert read_dialogue("here", {"messages": [HI, words, call]}).messages[1:] == (
        {"role": "assistant", "content": f"Let me look.\n{CALL}"},
    )


def test_a_reply_of_weight_0_stays_marked_and_may_be_empty() -> None:
    """OpenAI's files mark so what is shown and not learned; a weight of 1 says nothing new."""
    wrong, silent = HELLO | {"weight": 0}, {"role": "assistant", "content": "", "weight": 0}
    told = read_dialogue("here", {"messages": [HI, wrong, HI, silent, HI, HELLO | {"weight": 1}]})
    assert told.messages == (HI, wrong, HI, silent, HI, HELLO)


def test_one_action_of_two_messages_is_left_out_where_both_are() -> None:
    wrong = HELLO | {"weight": 0}
    for pair, left_out in (
        ((wrong, wrong), True),
        ((wrong, HELLO), False),
        ((HELLO, wrong), False),
    ):
        told = read_dialogue("here", {"messages": [HI, *pair, HI, HELLO]})
        assert (told.messages[1].get("weight") == 0) == left_out


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "here has no fields, expected messages"),
        ({"text": "hi"}, "here has the field text, expected messages"),
        ({"messages": [HI]}, "here has no assistant message"),
        ({"messages": [HI, {"role": "assistant", "content": ""}]}, "here has an empty reply"),
        ({"messages": [HI, HELLO | {"weight": 0}]}, "has a weight of 0 at every reply"),
        ({"messages": [HI, HELLO | {"weight": 0.5}]}, r"message 2 has the weight 0\.5; expected 0"),
        ({"messages": "hi"}, "here has no assistant message"),
        ({"messages": 3}, "here has a number where messages"),
        ({"messages": ["hi"]}, "here message 1 is text"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "here message 1 has the role 'boss'"),
        ({"messages": [HI, {"role": "assistant", "content": 3}]}, "message 2 has a content"),
        ({"messages": [HI, {"role": "assistant", "tool_calls": [{}]}]}, "call without a name"),
        ({"messages": [HI, HELLO], "tools": "{"}, "tools is not valid JSON"),
        ({"messages": [HI, HELLO], "tools": ["x"]}, "expected a list of tool"),
        ({"instruction": "a", "reply": "b", "history": "c"}, "history is .*, expected a list"),
        (
            {"instruction": "a", "reply": "b", "history": [["c"]]},
            "history has .*, expected",
        ),
    ],
)
def test_dialogue_mistakes_name_their_place(row: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_dialogue("here", row)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "hi", "chosen": "hello", "rejected": "end"},
        {"context": [HI], "chosen": [HELLO], "rejected": [END]},
        {"prompt": [HI], "chosen": HELLO, "rejected": END},
        {"instruction": "hi", "chosen": "hello", "rejected": "end"},
        {"chosen": [HI, HELLO], "rejected": [HI, END]},
        {
            "conversations": [{"from": "human", "value": "hi"}],
            "chosen": {"from": "gpt", "value": "hello"},
            "rejected": {"from": "gpt", "value": "end"},
        },
    ],
)
def test_every_preference_shape_means_the_same_pair(row: dict[str, Any]) -> None:
    pair = read_preference("here", row)
    assert pair.chosen == (HI, HELLO) and pair.rejected == (HI, END)
    assert pair.group == '["hi"]'


def test_pairs_of_one_task_are_one_group() -> None:
    row = {"prompt": "hi", "chosen": "hello", "rejected": "end", "task_id": 7}
    assert read_preference("here", row).group == "7"


def test_whole_episodes_may_part_early() -> None:
    other = {"role": "assistant", "content": "what?"}
    pair = read_preference("here", {"chosen": list(WHOLE), "rejected": [HI, other, BYE, END]})
    assert pair.chosen == WHOLE and pair.rejected[1] == other and pair.group == '["hi"]'


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "hi", "chosen": "hello"}, "here has no rejected"),
        ({"prompt": "hi"}, "here has no chosen and no rejected"),
        ({"chosen": "hello", "rejected": "end"}, "here has no prompt"),
        ({"chosen": [HELLO], "rejected": [END]}, "here has no prompt"),
        ({"prompt": "hi", "chosen": [BYE], "rejected": "x"}, "chosen must end with an assistant"),
        ({"prompt": "hi", "chosen": " ", "rejected": "x"}, "chosen must end with an assistant"),
    ],
)
def test_preference_mistakes_name_their_place(row: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_preference("here", row)
