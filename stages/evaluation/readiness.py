"""Is this actor ready for reinforcement learning? (B9)

RL can only strengthen what sampling already finds: a kind of task that is never solved in eight
tries gives no signal. Each task is sampled several times; pass@k is the unbiased estimate of
Chen et al. 2021 (https://arxiv.org/abs/2107.03374, eq. 1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import comb
from typing import Any

from stages.interaction.trajectory import Trajectory

TRIES = 8
"""Episodes sampled of each task."""
FEW_VARY = 0.1
"""Below this share of tasks with varying outcome there is hardly anything to learn from."""


def pass_at(k: int, tries: int, wins: int) -> float:
    """Chance that at least one of k tries succeeds, unbiased from ``wins`` out of ``tries``.

    Raises ValueError unless ``0 < k <= tries`` and ``0 <= wins <= tries``.
    """
    if not (0 < k <= tries and 0 <= wins <= tries):
        raise ValueError(f"pass@{k} of {wins} wins in {tries} tries is undefined")
    return 1.0 - comb(tries - wins, k) / comb(tries, k)


def readiness(
    trajectories: Sequence[Trajectory], returns: Sequence[float], *, tries: int = TRIES
) -> dict[str, Any]:
    """pass@1 and pass@``tries`` over all and per kind, and how many tasks' outcome varies.

    ``returns[i]`` belongs to ``trajectories[i]``; episodes of one task share its ``task_id``.
    Tasks that lost an episode to the machinery are judged on the episodes left.
    """
    tasks: dict[str, list[tuple[Trajectory, float]]] = defaultdict(list)
    for trajectory, value in zip(trajectories, returns, strict=True):
        if trajectory.error is None:
            tasks[trajectory.task_id].append((trajectory, value))
    kinds: dict[str, list[list[tuple[Trajectory, float]]]] = defaultdict(list)
    for played in tasks.values():
        kinds[played[0][0].kind].append(played)
    report = {
        **_figures(tasks.values(), tries),
        "tries": tries,
        "kinds": {kind: _figures(kinds[kind], tries) for kind in sorted(kinds)},
    }
    return report | {"advice": advice(report)}


def _figures(tasks: Iterable[list[tuple[Trajectory, float]]], tries: int) -> dict[str, Any]:
    rows = [([t.success for t, _ in task], [value for _, value in task]) for task in tasks]
    if not rows:
        return {"tasks": 0, "pass@1": None, f"pass@{tries}": None, "success_varies": None,
                "reward_varies": None}  # fmt: skip
    return {
        "tasks": len(rows),
        "pass@1": _mean(pass_at(1, len(wins), sum(wins)) for wins, _ in rows),
        f"pass@{tries}": _mean(pass_at(min(tries, len(w)), len(w), sum(w)) for w, _ in rows),
        "success_varies": _mean(0 < sum(wins) < len(wins) for wins, _ in rows),
        "reward_varies": _mean(max(values) - min(values) > 1e-9 for _, values in rows),
    }


def advice(report: dict[str, Any]) -> str:
    """One sentence: what RL will not be able to learn, and the cure."""
    tries = report["tries"]
    hopeless = [kind for kind, row in report["kinds"].items() if row[f"pass@{tries}"] == 0]
    if hopeless:
        return (
            f"RL will not learn {_listed(hopeless)}: not one of {tries} tries succeeded on any of"
            f" its tasks; add demonstrations of {'it' if len(hopeless) == 1 else 'them'} to the"
            " SFT data (or train SFT longer, or start from a stronger model.actor)."
        )
    varying = report["success_varies"]
    if varying is not None and varying < FEW_VARY:
        return _uniform(report, varying)
    return f"Ready for RL: every kind of task is solved at least once in {tries} tries."


def _uniform(report: dict[str, Any], varying: float) -> str:
    share = f"only {varying:.0%} of the tasks are sometimes won and sometimes lost"
    if (report["pass@1"] or 0) > 0.5:
        return f"RL has little left to learn: {share}; use harder tasks."
    return (
        f"RL will learn slowly: {share}; add demonstrations of the tasks that fail, or sample"
        " more episodes per iteration (rl.episodes)."
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _mean(values: Iterable[float]) -> float:
    known = [float(v) for v in values]
    return sum(known) / len(known)
