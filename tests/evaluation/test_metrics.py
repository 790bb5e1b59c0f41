"""Every figure against values worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from stages.evaluation.metrics import episode_metrics, has_loop, repeats
from stages.interaction.rewards.mix import RewardMix
from stages.interaction.trajectory import Trajectory
from stages.rl.report import rollout_metrics

Episode = Callable[..., Trajectory]


class Halves:
    """A mix that halves every raw reward."""

    def weighted(self, trajectory: Trajectory) -> list[dict[str, float]]:
        return [{k: v / 2 for k, v in turn.rewards.items()} for turn in trajectory.turns]

    def capped(self, trajectory: Trajectory) -> dict[str, float]:
        return {}

    def totals(self, trajectory: Trajectory) -> list[float]:
        return [sum(turn.values()) for turn in self.weighted(trajectory)]


def test_means_are_over_episodes_and_over_turns(episode: Episode) -> None:
    episodes = [
        episode("list", "answer 3", success=True, rewards={0: {"useful": 1}, 1: {"success": 2}}),
        episode("!gibberish", out_of_budget=True, rewards={0: {"invalid": -1}}),
        episode("list", "list", "list", "answer 4", kind="sum"),
        episode("list", error="the database vanished"),
    ]
    figures = episode_metrics(episodes, Halves())
    assert figures["episodes"] == 3
    assert figures["dropped"] == 1
    assert figures["success"] == pytest.approx(1 / 3)
    assert figures["return"] == pytest.approx((0.5 + 1 - 0.5) / 3)
    assert figures["turns"] == pytest.approx(7 / 3)
    assert figures["components"] == pytest.approx(
        {"invalid": -0.5 / 3, "success": 1 / 3, "useful": 0.5 / 3}
    )
    assert figures["out_of_budget"] == pytest.approx(1 / 3)
    assert figures["invalid_actions"] == pytest.approx(1 / 7)
    assert figures["repeated_calls"] == pytest.approx(2 / 7)
    assert figures["loops"] == pytest.approx(1 / 3)
    assert figures["success_by_turns"] == {
        "1": {"success": 0, "episodes": 1},
        "2": {"success": 1, "episodes": 1},
        "4": {"success": 0, "episodes": 1},
    }
    assert figures["kinds"]["count"] == {"success": 0.5, "episodes": 2}
    assert figures["groups"] == {"shop": {"success": pytest.approx(1 / 3), "episodes": 3}}
    json.dumps(figures, allow_nan=False)


def test_errors_again_and_recovery(episode: Episode) -> None:
    no_table = {"tool_error": "no such table: x"}
    no_column = {"tool_error": "no such column: y"}
    episodes = [
        # The same error twice and another once: one of two different errors came again.
        episode("q a", "q b", "q c", info={0: no_table, 1: no_table, 2: no_column}),
        # One error, then success.
        episode("q a", "q b", "answer 1", info={0: no_table}, success=True),
        episode("answer 1", success=True),
    ]
    figures = episode_metrics(episodes, Halves())
    assert figures["same_error_again"] == pytest.approx(1 / 3)
    assert figures["recovery_after_error"] == pytest.approx(1 / 2)


def test_what_is_undefined_is_none(episode: Episode) -> None:
    figures = episode_metrics([episode("answer 1")], Halves())
    assert figures["same_error_again"] is None
    assert figures["recovery_after_error"] is None
    assert figures["seen"] is None
    nothing = episode_metrics([], Halves())
    assert nothing["success"] is None
    assert nothing["episodes"] == 0


def test_seen_and_unseen_groups(episode: Episode) -> None:
    episodes = [
        episode("answer 1", group="shop", success=True),
        episode("answer 1", group="farm"),
        episode("answer 1", group="zoo", success=True),
    ]
    figures = episode_metrics(episodes, Halves(), seen_groups={"shop"})
    assert figures["seen"] == {"success": 1.0, "episodes": 1}
    assert figures["unseen"] == {"success": 0.5, "episodes": 2}


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("a", "b", "c", "d"), False),
        (("a", "b", "a", "c"), False),
        (("a", "b", "a", "c", "a"), True),  # one call three times
        (("x", "a", "b", "a", "b"), True),  # a cycle of two
        (("a", "b", "c", "a", "b", "c"), True),  # a cycle of three
        (("a", "b", "c", "x", "a", "b", "c"), False),
        (("a 1", "a 2", "a 3"), False),  # other arguments, another call
        ((), False),
    ],
)
def test_loops(episode: Episode, texts: tuple[str, ...], expected: bool) -> None:
    assert has_loop(episode(*texts)) is expected


def test_repeats_ignore_spelling_of_plain_text(episode: Episode) -> None:
    assert repeats(episode("!oh  well", "!oh well", "list", "list x")) == [
        False,
        True,
        False,
        False,
    ]


def test_dropped_episodes_are_counted_by_their_last_action(episode):
    kept = [episode("query a"), episode("query b")]
    lost = [replace(episode("query a"), error="gone", dropped_at=at) for at in ("query", "reset")]
    figures = episode_metrics([*kept, *lost], RewardMix())
    assert figures["dropped_at"] == {"query": 1, "reset": 1}
    shown = {k: v for k, v in rollout_metrics(figures, kept).items() if k.startswith("dropped/")}
    assert shown == {"dropped/query": 0.25, "dropped/reset": 0.25}


def test_the_same_words_for_different_goals_are_a_template(episode: Episode) -> None:
    """Goals a a b c: five pairs have different goals; x is said for a, b and c, which makes the
    pairs a-b, a-c, b-c."""
    episodes = [
        episode("list", "answer x", goal="a"),
        episode("list", "answer y", goal="a"),
        episode("list", "answer x", goal="b"),
        episode("list", "answer x", goal="c"),
        episode("list", "answer x", goal="d", error="the world is gone"),
    ]
    assert episode_metrics(episodes, Halves())["template"] == pytest.approx(3 / 5)
    assert episode_metrics(episodes[:2], Halves())["template"] is None  # one goal tells nothing


def test_babble_is_a_mean_over_turns(episode: Episode) -> None:
    """Of twelve words in threes, nine runs of four: three differ, so six of nine were said."""
    figures = episode_metrics([episode("list", "!" + "so it is " * 4)], Halves())
    assert figures["babble"] == pytest.approx((0 + 6 / 9) / 2)
