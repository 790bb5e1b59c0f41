"""A view in numbers: the same thing is the same number in every task."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stages.rl.critic.light import bucket
from stages.rl.critic.numbers import FACT_SLOTS, NUMBERS, TURNS, view_numbers
from stages.rl.critic.views import Exchange, View

EMPTY = View("", (), "", "", "", 0, 0, 0)
FACTS = NUMBERS - FACT_SLOTS


def seen(*exchanges: tuple[str, str]) -> View:
    return replace(EMPTY, history=tuple(Exchange(a, r) for a, r in exchanges))


def test_what_is_hidden_is_zero() -> None:
    first = [0.0] * NUMBERS
    first[5] = 1.0  # turn 0
    assert view_numbers(EMPTY) == first


@pytest.mark.parametrize("turn", [0, 3, TURNS - 1, 40])
def test_turns_are_told_apart_up_to_the_last(turn: int) -> None:
    told = view_numbers(replace(EMPTY, turn=turn))[5 : 5 + TURNS]
    assert told.index(1.0) == min(turn, TURNS - 1) and sum(told) == 1.0


def test_errors_and_repetition_are_counted_and_the_newest_error_is_marked() -> None:
    def told(view: View) -> list[float]:
        return view_numbers(view)[5 + TURNS : FACTS]

    right, wrong = ("a", "12"), ("b", "error: no such table: b")
    assert told(seen(right)) == [0.0, 0.0, 0.0]
    assert told(seen(right, wrong)) == [1.0, 0.5, 0.0]
    assert told(seen(wrong, wrong, right)) == [0.0, 1.0, 0.5]
    assert told(seen(("a", "an error rate of 3"))) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [("yes", 1.0), ("no", 0.0), ("none", 0.0), ("describe orders", 1 / 3), ("a, b, c", 1.0),
     ("0", 0.0), ("19.085536923187668", 1.0), ("-19.085536923187668", -1.0), ("inf", 0.0)],
)  # fmt: skip
def test_a_fact_stands_in_the_place_of_its_name(value: str, expected: float) -> None:
    slot = bucket("result seen") % FACT_SLOTS
    told = view_numbers(replace(EMPTY, privileged=f"result seen: {value}"))[FACTS:]
    assert told[slot] == pytest.approx(expected)
    assert sum(map(abs, told)) == pytest.approx(abs(expected))


def test_agreement_is_of_the_proposed_action_where_there_is_one() -> None:
    view = replace(seen(("look orders", "orders")), goal="orders", privileged="gold: orders users")
    facts_last, facts_seen, goal_last = view_numbers(view)[2:5]
    assert (facts_last, facts_seen, goal_last) == (pytest.approx(1 / 3), pytest.approx(1 / 3), 1.0)
    assert view_numbers(replace(view, action="users"))[2:5] == [
        pytest.approx(1 / 3),
        pytest.approx(1 / 3),
        0.0,
    ]
