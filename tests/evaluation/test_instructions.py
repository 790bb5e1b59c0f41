"""Verdicts of the built-in orders, on replies worked out by hand."""

from __future__ import annotations

import pytest

from stages.evaluation.instructions import INSTRUCTIONS, distinct, obeyed

GOOD = (
    "Yes.",
    "Tuesday",
    "5",
    "1, 2, 3, 4, 5",
    '```json\n{"colour": "red"}\n```',
    "- apple\n- pear\n- plum",
    "RAIN IS WET.",
    "snow is cold.",
    "Is that dog yours?",
    "The sea is wide and deep, and its waves never come to rest.",
    "A tall, green tree.",
    '"harbour"',
)
BAD = (
    "Yes, of course",
    "Wednesday",
    "2 + 3 = 5",
    "1, 2, 3",
    "colour: red",
    "apple, pear and plum",
    "Rain is wet.",
    "Snow is cold.",
    "That dog is mine.",
    "the sea the sea the sea the sea the sea",
    "The tree is tall and green and very old.",
    "harbour",
)


def test_each_order_knows_a_good_reply_from_a_bad_one() -> None:
    assert obeyed(GOOD) == [True] * len(INSTRUCTIONS)
    assert obeyed(BAD) == [False] * len(INSTRUCTIONS)


@pytest.mark.parametrize(
    "reply", ["", " \n", '{"name": "query", "arguments": {"sql": "select 1"}}']
)
def test_saying_nothing_or_calling_a_tool_is_never_obedience(reply: str) -> None:
    assert not any(obeyed([reply] * len(INSTRUCTIONS)))


def test_distinct_n_by_hand() -> None:
    """Pairs of "a b a b": ab, ba, ab: two different of three; with "a b" two of four."""
    assert distinct(["a b a b"]) == pytest.approx(2 / 3)
    assert distinct(["A b a b", "a b"]) == pytest.approx(2 / 4)
    assert distinct(["one", ""]) is None
    assert distinct(["a b a b"], size=3) == 1.0
