"""pass@k against enumeration; the advice names what is hopeless."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest

from stages.evaluation.readiness import pass_at, readiness
from stages.interaction.trajectory import Trajectory

Episode = Callable[..., Trajectory]


@pytest.mark.parametrize("wins", range(6))
@pytest.mark.parametrize("k", range(1, 6))
def test_pass_at_k_is_the_share_of_winning_subsets(k: int, wins: int) -> None:
    outcomes = [1] * wins + [0] * (5 - wins)
    subsets = list(combinations(outcomes, k))
    assert pass_at(k, 5, wins) == pytest.approx(sum(map(max, subsets)) / len(subsets), rel=1e-12)


def test_pass_at_k_refuses_nonsense() -> None:
    for arguments in ((0, 5, 1), (6, 5, 1), (1, 5, 6)):
        with pytest.raises(ValueError, match="undefined"):
            pass_at(*arguments)


def played(episode: Episode, kind: str, task: str, wins: int) -> list[Trajectory]:
    """Four episodes of one task, the first ``wins`` of them successful."""
    return [episode("answer 1", kind=kind, task_id=task, success=i < wins) for i in range(4)]


def report_of(trajectories: list[Trajectory]) -> dict:
    returns = [float(t.success) for t in trajectories]
    return readiness(trajectories, returns, tries=4)


def test_figures_per_kind(episode: Episode) -> None:
    trajectories = [
        *played(episode, "count", "c1", 4),
        *played(episode, "count", "c2", 1),
        *played(episode, "join", "j1", 0),
    ]
    report = report_of(trajectories)
    assert report["tasks"] == 3
    assert report["pass@1"] == pytest.approx((1 + 0.25 + 0) / 3)
    assert report["pass@4"] == pytest.approx(2 / 3)
    assert report["success_varies"] == pytest.approx(1 / 3)
    assert report["kinds"]["count"] == {
        "tasks": 2,
        "pass@1": pytest.approx(0.625),
        "pass@4": 1.0,
        "success_varies": 0.5,
        "reward_varies": 0.5,
    }
    assert "join" in report["advice"]
    assert "count" not in report["advice"]
    assert "demonstrations" in report["advice"]


def test_dense_rewards_vary_where_success_does_not(episode: Episode) -> None:
    trajectories = played(episode, "count", "c1", 0)
    report = readiness(trajectories, [0.0, 0.0, 0.1, 0.0], tries=4)
    assert report["success_varies"] == 0.0
    assert report["reward_varies"] == 1.0


def test_dropped_episodes_shorten_a_task(episode: Episode) -> None:
    trajectories = [*played(episode, "count", "c1", 1)[:2], episode("x", error="broken")]
    report = readiness(trajectories, [1.0, 0.0, 0.0], tries=4)
    assert report["pass@4"] == 1.0
    assert report["pass@1"] == 0.5


def test_advice_when_ready_and_when_nothing_is_left(episode: Episode) -> None:
    ready = report_of(played(episode, "count", "c1", 2))
    assert ready["advice"].startswith("Ready for RL")
    solved = report_of(played(episode, "count", "c1", 4))
    assert "little left to learn" in solved["advice"]


def test_nothing_played_is_undefined() -> None:
    assert report_of([])["pass@1"] is None
