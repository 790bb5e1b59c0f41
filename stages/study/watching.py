"""The supervision part of a study: each actor played under each arm, for each seed (B1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from stages.common.errors import UsageError
from stages.common.files import file_hash
from stages.evaluation.intervals import bootstrap_interval, mcnemar_p, paired_interval
from stages.evaluation.run import held_out
from stages.evaluation.store import Figures, FigureStore, identity
from stages.evaluation.supervise import Supervision, supervision_figures
from stages.pipeline import measured_under, supervised_player
from stages.study.arms import SFT, Arm
from stages.study.plan import Job, Plan
from stages.study.study import Study

WATCHED = "watched"
"""The stage of these jobs."""
OF_ROWS = (
    "success", "return", "turns", "repeated_calls", "loops", "proposals_per_turn", "tokens_ratio",
    "tokens_per_episode",
)  # fmt: skip
ALONE = {"proposals_per_turn": 1.0, "tokens_ratio": 1.0}


@dataclass(frozen=True)
class Watched(Job):
    """An actor to be played under an arm. Its folder is a name; its figures lie beside it."""

    actor: str
    arm: str
    how: Arm


def watched_jobs(study: Study, plan: Plan) -> list[Watched]:
    """All evaluations of a study's ``supervision``, each with the runs it needs as parents.

    Raises UsageError where an arm asks for a reward model that no variant of the study has.
    """
    section = study.supervision
    if section is None:
        return []
    return [
        _job(study, plan, seed, actor, arm)
        for seed in study.seeds
        for actor in section.actors
        for arm in section.arms
    ]


def watch(job: Watched, *, anew: bool = False) -> Figures:
    """Play an actor under its arm on the held-out tasks, unless its figures are known."""
    return _store(job, anew).get(job.arm, _depends_on(job), lambda: _played(job))


def watched_figures(job: Watched) -> Figures | None:
    """The figures, if they are known."""
    if any(not parent.is_dir() for parent in job.parents.values()):
        return None
    return _store(job, anew=False).known(job.arm, _depends_on(job))


def supervision_result(study: Study, jobs: Sequence[Watched]) -> dict[str, Any]:
    """What ``compare.json`` says of supervision: rows by actor, arm and seed; their summary.
    {} for a study without."""
    section = study.supervision
    if section is None:
        return {}
    known = [(job, figures) for job in jobs if (figures := watched_figures(job)) is not None]
    rows = [_row(job, figures) for job, figures in known]
    outcomes = {(job.actor, job.arm, job.recipe.seed): f["outcomes"] for job, f in known}
    return {
        "arms": {name: arm.model_dump(mode="json") for name, arm in section.arms.items()},
        "critics": section.actors,
        "rows": rows,
        "summary": {a: summary(rows, outcomes, a, list(section.arms)) for a in section.actors},
    }


def summary(
    rows: Sequence[Mapping[str, Any]],
    outcomes: Mapping[tuple[str, str, int], Sequence[bool | None]],
    actor: str,
    arms: Sequence[str],
) -> dict[str, dict[str, Any]]:
    """By arm: success and tokens, and how it compares with the first arm.

    ``success`` and ``difference`` (paired by seed) are means over the seeds with bootstrap 95 %
    intervals; ``tasks`` pairs the outcomes of all seeds' tasks with those of the first arm: solved
    only under this arm (won), only under the first (lost), the difference of the two shares with
    Newcombe's interval, and McNemar's p. ``outcomes``: whether each task was solved, None where
    the machinery dropped it.
    """
    told = {}
    for arm in arms:
        own = [row for row in rows if (row["actor"], row["arm"]) == (actor, arm)]
        if not own:
            continue
        first = {r["seed"]: r for r in rows if (r["actor"], r["arm"]) == (actor, arms[0])}
        pairs = [(row, first[row["seed"]]) for row in own if row["seed"] in first]
        told[arm] = {name: fmean(row[name] for row in own) for name in OF_ROWS[1:]} | {
            "success": _over_seeds([row["success"] for row in own]),
        }
        if arm != arms[0] and pairs:
            seeds = [row["seed"] for row, _ in pairs]
            told[arm]["difference"] = _over_seeds([a["success"] - b["success"] for a, b in pairs])
            told[arm]["tasks"] = paired_tasks(
                [o for s in seeds for o in outcomes[actor, arm, s]],
                [o for s in seeds for o in outcomes[actor, arms[0], s]],
            )
    return told


def paired_tasks(ours: Sequence[bool | None], theirs: Sequence[bool | None]) -> dict[str, Any]:
    """Outcomes of the same tasks, compared; see ``summary``. ValueError for unequal lengths."""
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
    won, lost = pairs.count((True, False)), pairs.count((False, True))
    both, neither = pairs.count((True, True)), pairs.count((False, False))
    return {
        "tasks": len(pairs),
        "won": won,
        "lost": lost,
        "difference": paired_interval(both, won, lost, neither)._asdict(),
        "p": mcnemar_p(won, lost),
    }


def _job(study: Study, plan: Plan, seed: int, actor: str, arm: str) -> Watched:
    section = study.supervision
    assert section is not None
    how = section.arms[arm]
    critic = plan.runs[section.actors[actor], seed]
    owner = critic if actor == SFT else plan.runs[actor, seed]
    parents = {"actor": owner.parents["sft"] if actor == SFT else owner.folder}
    if how.by == "critic":
        parents["critic"] = critic.folder
    elif how.by == "reward":
        if "reward" not in owner.parents:
            variant = section.actors[actor] if actor == SFT else actor
            raise UsageError(
                f"arm {arm} asks for the reward model, but the variant {variant} has none; set its "
                "rl.rewards.reward_model above 0, or leave the arm out."
            )
        parents["reward"] = owner.parents["reward"]
    folder = critic.folder.parents[1] / WATCHED / actor / arm
    recipe = plan.base.model_copy(update={"seed": seed})
    label = f"seed {seed}, {actor}, {arm}"
    return Watched(WATCHED, recipe, folder, parents, label, actor, arm, how)


def _played(job: Watched) -> Figures:
    loaded = supervised_player(job.recipe, str(job.parents["actor"]), _wish(job))
    tasks = held_out(job.recipe).served(loaded)
    played = tasks.play(loaded.policy, count_tokens=loaded.count_tokens)
    figures = tasks.figures(played)
    cost = ALONE | supervision_figures(loaded).get("supervision", {})
    kept = fmean(sum(len(turn.action_ids) for turn in episode.turns) for episode in played)
    return {
        **figures,
        **cost,
        "tokens_per_episode": cost["tokens_ratio"] * kept,
        "outcomes": [episode.success if episode.error is None else None for episode in played],
    }


def _wish(job: Watched) -> Supervision | None:
    how = job.how
    if how.by == "nobody":
        return None
    by = str(job.parents[how.by]) if how.by in job.parents else how.by
    return Supervision.of(
        by, how.mode, retries=how.retries, threshold=how.threshold, reconsider=how.reconsider
    )


def _store(job: Watched, anew: bool) -> FigureStore:
    return FigureStore(job.folder.parent, anew=anew)


def _depends_on(job: Watched) -> list[Any]:
    """The weights of all that takes part, the arm, and how it is played."""
    who: list[Any] = [identity(str(job.parents["actor"])), job.how.model_dump(mode="json")]
    who += [_watcher(folder) for name, folder in job.parents.items() if name != "actor"]
    return measured_under(job.recipe, who)


def _watcher(folder: Path) -> Any:
    """The critic in an rl folder, file by file, or a reward model."""
    inside = folder / "critic"
    if not inside.is_dir():
        return identity(str(folder))
    files = sorted(path for path in inside.rglob("*") if path.is_file())
    return {str(path.relative_to(inside)): file_hash(path) for path in files}


def _row(job: Watched, figures: Figures) -> dict[str, Any]:
    own = {"actor": job.actor, "arm": job.arm, "seed": job.recipe.seed}
    return own | {name: figures[name] for name in OF_ROWS}


def _over_seeds(values: Sequence[float]) -> dict[str, float | int | None]:
    return {**bootstrap_interval(values)._asdict(), "seeds": len(values)}
