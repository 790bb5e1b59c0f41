"""Which episodes of a pool the actor learns from, by method."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stages.common.errors import UsageError
from stages.interaction.trajectory import Trajectory

Episodes = list[Trajectory]
Return = Callable[[Trajectory], float]


def everything(episodes: Sequence[Trajectory], total: Return) -> Episodes:
    """All of them: their weights tell good from bad."""
    return list(episodes)


def successful(episodes: Sequence[Trajectory], total: Return) -> Episodes:
    """Filtered cloning. UsageError if nothing succeeded."""
    won = [e for e in episodes if e.success]
    if not won:
        raise UsageError(
            f"none of the pool's {len(episodes)} episodes succeeded, so rl.offline.method = "
            "filtered_cloning has nothing to clone; give a better pool, or set method to awr or "
            "iql, which learn from partial rewards, too."
        )
    return won


def best_of_each_task(episodes: Sequence[Trajectory], total: Return) -> Episodes:
    """Rejection sampling: of each task the episode of the largest return, the first of several.

    Dong et al. 2023, arXiv:2304.06767 (RAFT), with the pool's episodes as its samples. UsageError
    if no task was played more than once.
    """
    best: dict[str, Trajectory] = {}
    for episode in episodes:
        known = best.setdefault(episode.task_id, episode)
        if total(episode) > total(known):
            best[episode.task_id] = episode
    if len(best) == len(episodes):
        raise UsageError(
            f"each of the pool's {len(episodes)} tasks was played once, so rl.offline.method = "
            "rejection_sampling has nothing to choose from; collect with rl.episodes_per_task "
            "above 1, or set method: filtered_cloning."
        )
    return list(best.values())


SELECTIONS: dict[str, Callable[[Sequence[Trajectory], Return], Episodes]] = {
    "iql": everything,
    "awr": everything,
    "filtered_cloning": successful,
    "rejection_sampling": best_of_each_task,
}
"""By ``rl.offline.method``."""
