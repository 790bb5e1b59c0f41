"""Who solved what, and where two episodes part."""

from __future__ import annotations

import pytest

from stages.common.errors import RunError
from stages.evaluation.duel import divergences, diverging_turn, duel, paired


def test_counts_are_those_of_the_first(episode):
    outcomes = [(1, 1), (1, 0), (1, 0), (0, 1), (0, 0)]
    kinds = ["count", "count", "join", "join", "join"]
    first, second = (
        [
            episode("answer 1", task_id=f"t{n}", kind=kinds[n], success=bool(row[who]))
            for n, row in enumerate(outcomes)
        ]
        for who in (0, 1)
    )
    result = duel(paired(first, second))
    assert {k: result[k] for k in ("tasks", "both", "won", "lost", "neither")} == {
        "tasks": 5, "both": 1, "won": 2, "lost": 1, "neither": 1,
    }  # fmt: skip
    assert result["kinds"] == {
        "count": {"both": 1, "won": 1, "lost": 0, "neither": 0},
        "join": {"both": 0, "won": 1, "lost": 1, "neither": 1},
    }
    assert result["difference"]["mean"] == pytest.approx(0.2)
    assert result["p"] == 1.0


def test_dropped_episodes_take_no_part(episode):
    whole, dropped = episode("answer 1"), episode("answer 1", error="OSError: gone")
    assert paired([whole, dropped, whole], [dropped, whole, whole]) == [(whole, whole)]
    with pytest.raises(RunError, match="env check"):
        paired([dropped], [whole])
    with pytest.raises(ValueError, match="same tasks"):
        paired([whole], [episode("answer 1", task_id="other")])


@pytest.mark.parametrize(
    ("first", "second", "turn"),
    [
        (("query a", "answer 1"), ("query a", "answer 1"), None),
        (("query a", "answer 1"), ("query a", "answer 2"), 1),
        (("query a", "answer 1"), ("query b", "answer 1"), 0),
        (("query a",), ("query a", "answer 1"), 1),
    ],
)
def test_first_diverging_turn(episode, first, second, turn):
    assert diverging_turn(episode(*first), episode(*second)) == turn
    assert diverging_turn(episode(*second), episode(*first)) == turn


def test_decisive_divergences_come_first(episode):
    pairs = [
        (episode("answer 1"), episode("answer 2")),
        (episode("answer 1"), episode("answer 1")),
        (episode("query a", "answer 1"), episode("query a", "answer 2", success=True)),
    ]
    found = divergences(pairs)
    assert [(d.pair, d.turn, d.decisive) for d in found] == [
        (pairs[2], 1, True),
        (pairs[0], 0, False),
    ]
