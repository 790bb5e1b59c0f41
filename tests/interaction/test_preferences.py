"""Pairs come from equal states only, better over worse, once each, from no single turn."""

from __future__ import annotations

from typing import Any

import pytest

from stages.interaction.preferences import collect_preferences
from stages.interaction.trajectory import Action, Trajectory, Turn


def episode(*replies: str, task: str = "t", success: bool = False, **rest: Any) -> Trajectory:
    """An episode whose states are the transcript so far."""
    rewards = rest.pop("rewards", [{}] * len(replies))
    turns, shown = [], ({"role": "user", "content": "question"},)
    for index, reply in enumerate(replies):
        paid = dict(rewards[index])
        if success and index == len(replies) - 1:
            paid["success"] = 1.0
        turns.append(Turn(index, shown, Action(reply), rewards=paid))
        answer = {"role": "tool", "content": f"result of {reply}"}
        shown = (*shown, {"role": "assistant", "content": reply}, answer)
    options = {"terminated": True, "success": success, **rest}
    return Trajectory(task, "kind", "group", "goal", turns=tuple(turns), **options)


def pairs(
    *episodes: Trajectory, min_margin: float = 0.5, discount: float = 1.0
) -> list[tuple[str, str, float]]:
    rows = collect_preferences(episodes, min_margin=min_margin, discount=discount)
    return [(r["chosen"][0]["content"], r["rejected"][0]["content"], r["margin"]) for r in rows]


def test_replies_to_the_same_state_are_ranked_by_the_success_they_led_to() -> None:
    rows = collect_preferences(
        [episode("a", "x", success=True), episode("a", "y"), episode("b", "x")],
        min_margin=0.5,
        discount=1.0,
    )
    assert rows == [
        {
            "prompt": [{"role": "user", "content": "question"}],
            "chosen": [{"role": "assistant", "content": "a"}],
            "rejected": [{"role": "assistant", "content": "b"}],
            "task_id": "t",
            "turn": 0,
            "margin": 0.5,
            "support": 1,
        },
        {
            "prompt": [
                {"role": "user", "content": "question"},
                {"role": "assistant", "content": "a"},
                {"role": "tool", "content": "result of a"},
            ],
            "chosen": [{"role": "assistant", "content": "x"}],
            "rejected": [{"role": "assistant", "content": "y"}],
            "task_id": "t",
            "turn": 1,
            "margin": 1.0,
            "support": 1,
        },
    ]


def test_outcomes_are_means_over_all_episodes_through_a_reply() -> None:
    wins = [episode("a", success=True)] * 2 + [episode("a")] + [episode("b")] * 3
    assert pairs(*wins) == [("a", "b", pytest.approx(2 / 3))]
    assert pairs(*wins, min_margin=0.7) == []


def test_states_of_other_tasks_and_equal_replies_make_no_pair() -> None:
    assert pairs(episode("a", success=True), episode("b", task="other")) == []
    assert pairs(episode("a", success=True), episode("a")) == []
    assert pairs(episode("a", success=True), episode(" a\n")) == [], "blanks make no difference"


def test_dense_rewards_decide_between_replies_of_equal_success() -> None:
    first = [{"sub_goal": 1.0}, {}]
    made = (episode("a", "x", rewards=first), episode("b", "x"))
    assert pairs(*made, min_margin=0.05) == [("a", "b", pytest.approx(0.1))]
    assert pairs(*made, min_margin=0.2) == [], "too close"
    assert pairs(episode("a", "x"), episode("b", "x"), min_margin=0.0) == [], "equal"
    # What was earned before the state says nothing about the reply.
    assert pairs(episode("a", "x", rewards=first), episode("a", "y", rewards=[{}, {}])) == []


def test_later_luck_counts_less() -> None:
    """Reply a brings a sub-goal at once and fails two turns later; reply b is lucky there."""
    good = episode("a", "x", "y", rewards=[{"sub_goal": 5.0}, {}, {}])
    lucky = episode("b", "x", "y", success=True)
    assert pairs(good, lucky, min_margin=0.0, discount=1.0) == [("b", "a", pytest.approx(0.5))]
    # 0.5 at once against 1 two turns on, at a half a turn.
    assert pairs(good, lucky, min_margin=0.0, discount=0.5) == [("a", "b", pytest.approx(0.25))]


def test_unfinished_and_dropped_episodes_do_not_count() -> None:
    win = episode("a", success=True)
    cut = episode("b", terminated=False, truncated=True)
    dropped = episode("b", terminated=False, error="broken")
    assert pairs(win, cut, dropped) == []


def test_a_state_gives_at_most_two_pairs_from_the_outside_in() -> None:
    made = [episode(r, success=s) for r in "abcdef" for s in (r in "def", r in "cdef")]
    found = pairs(*made)
    assert [(better, worse) for better, worse, _ in found] == [("f", "a"), ("e", "b")]


def test_empty_replies_take_no_part() -> None:
    assert pairs(episode("", success=True), episode("b")) == []
    assert pairs(episode("a", success=True), episode(" ")) == []


def test_no_turn_drowns_the_others_and_the_clearest_stay() -> None:
    many = []
    for number in range(30):
        task = f"last-{number}"
        many += [episode("a", "x", task=task, success=True), episode("a", "y", task=task)]
        if number % 2:
            many.append(episode("a", "y", task=task, success=True))
    few = [episode("a", task="first", success=True), episode("b", task="first")]
    rows = collect_preferences([*many, *few], min_margin=0.5, discount=1.0)
    turns = [row["turn"] for row in rows]
    assert turns.count(0) == 1
    assert turns.count(1) == 30, "twice the even share of 31 pairs over two turns is 31"
    third = [episode("a", "x", "z", task="3", success=True), episode("a", "x", "q", task="3")]
    rows = collect_preferences([*many, *few, *third], min_margin=0.5, discount=1.0)
    kept = [row for row in rows if row["turn"] == 1]
    assert len(kept) == 22, "2/3 of 32, rounded up"
    assert sum(row["margin"] == 1.0 for row in kept) == 15, "the clearest first"
