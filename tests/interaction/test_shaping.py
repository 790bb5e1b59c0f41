"""Potential-based shaping as a component: hand-worked values, and what it is exempt from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stages.interaction.rewards.mix import RewardMix
from stages.interaction.rewards.shaping import SHAPING, Shaping, checklist_progress
from stages.interaction.trajectory import Action, Trajectory, Turn

FOUR = ("tables", "columns", "result", "answer")


def listed(solved: int) -> tuple[tuple[str, bool], ...]:
    return tuple((name, number < solved) for number, name in enumerate(FOUR))


def an_episode(*solved: int, **outcome: bool) -> Trajectory:
    """Turns after which so many of four points are solved; every turn also earns a sub-goal."""
    turns = tuple(
        Turn(t, (), Action("x"), rewards={"sub_goal": 1.0}, checklist=listed(count))
        for t, count in enumerate(solved)
    )
    whole = Trajectory("t", "k", "g", "goal", initial_checklist=listed(0), turns=turns)
    return replace(whole, **({"terminated": True} | outcome))


def test_hand_worked_values() -> None:
    """Φ = 0.4·(0, ¼, ¾, then 0 at the end), γ = 0.5."""
    f = Shaping("checklist", weight=0.4, discount=0.5)
    assert f(an_episode(1, 3, 4)) == pytest.approx([0.05, 0.15 - 0.1, -0.3])
    assert f(an_episode(1, 3, 4, terminated=False)) == pytest.approx([0.05, 0.05, 0.2 - 0.3])
    assert f(an_episode(3, 1)) == pytest.approx([0.15, -0.3])  # what is lost again is paid back
    assert f(an_episode()) == []


def test_over_an_episode_nothing_is_left_of_it() -> None:
    """Σγ^t·F_t = −Φ(s_0) whatever happens in between, so nothing is to be had by dawdling."""
    f = Shaping("checklist", weight=1.0, discount=0.9)
    for solved in [(4,), (1, 2, 3), (0, 0, 0, 1, 0, 4), (2, 1, 2, 1, 2, 1)]:
        begun = replace(an_episode(*solved), initial_checklist=listed(1))
        total = sum(0.9**t * x for t, x in enumerate(f(begun)))
        assert total == pytest.approx(-0.25, abs=1e-12)


def test_it_is_a_component_beside_caps_and_weights() -> None:
    shaping = Shaping("checklist", weight=1.0, discount=1.0)
    episode = an_episode(4, 0, 4, 0)
    free = RewardMix(dense_cap=0.15, caps={"sub_goal": 0.05}, shaping=shaping)
    rows = free.weighted(episode)
    assert [row[SHAPING] for row in rows] == [1.0, -1.0, 1.0, -1.0]
    assert sum(row["sub_goal"] for row in rows) == pytest.approx(0.05)
    plain = replace(free, shaping=None)
    assert [{k: v for k, v in row.items() if k != SHAPING} for row in rows] == plain.weighted(
        episode
    )
    assert free.totals(episode) == pytest.approx(
        [a + b for a, b in zip(plain.totals(episode), [1, -1, 1, -1], strict=True)]
    )
    assert SHAPING in free.components and SHAPING not in plain.components
    assert free.capped(episode) == plain.capped(episode)


def test_the_potential_is_a_function_of_the_checklist_alone() -> None:
    episode = an_episode(2, 3)
    assert [checklist_progress(episode, t) for t in range(3)] == [0.0, 0.5, 0.75]
    bare = episode.with_turns([replace(turn, checklist=()) for turn in episode.turns])
    assert [checklist_progress(bare, t) for t in range(3)] == [0.0, 0.0, 0.0]
    other = episode.with_turns(
        [replace(t, rewards={}, privileged={"gold": 1}, action=Action("y")) for t in episode.turns]
    )
    assert [checklist_progress(other, t) for t in range(3)] == [0.0, 0.5, 0.75]
