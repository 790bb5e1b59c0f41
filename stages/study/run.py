"""``aac compare``: plan, run what is missing, measure, compare; all of it can be interrupted.

``<out>/compare.json`` and ``compare.png`` are written at the end, and ``supervision.md`` where
actors were watched; what is finished is never run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.common.console import say, show
from stages.common.errors import RunError, UsageError
from stages.common.files import read_json, write_json, write_text
from stages.common.run_folder import MetricsWriter
from stages.study.figures import differences, success_curve, summarise, training_figures
from stages.study.jobs import Performer, all_finished, evaluation, execute, rehearse, time_left
from stages.study.plan import Job, Plan, build_plan, is_done
from stages.study.plot import plot_study
from stages.study.study import Study
from stages.study.tables import plan_table, study_table
from stages.study.watched_tables import supervision_markdown, supervision_tables
from stages.study.watching import Watched, supervision_result, watched_figures, watched_jobs


@dataclass(frozen=True)
class StudyRequest:
    """How a person asked for a study to be run."""

    output_dir: Path
    overrides: Sequence[str] = ()
    """``--set`` texts."""
    sft_roots: Sequence[Path] = ()
    workers: int = 1
    overwrite: bool = False
    resume: str = "auto"
    dry_run: bool = False
    plot: Path | None = None
    """None: ``compare.png`` in the output folder."""


def compare(study: Study, request: StudyRequest) -> dict[str, Any]:
    """Run a study to its end and return what ``compare.json`` holds.

    Raises UsageError before anything is run, where a variant is wrong or a finished run belongs
    to another recipe; RunError at the end, where runs failed.
    """
    if request.resume not in ("auto", "never"):
        raise UsageError(
            f"--resume {request.resume} names one stage's checkpoint; aac compare takes auto or "
            "never."
        )
    plan = build_plan(study, request.overrides, request.output_dir, request.sft_roots)
    jobs = [*plan.jobs, *watched_jobs(study, plan)]
    done = set() if request.overwrite else {job.folder for job in jobs if _is_done(job)}
    if request.dry_run:
        return _dry_run(jobs, done, study.seeds[0])
    todo = [job for job in jobs if job.folder not in done or not _measured(job)]
    request.output_dir.mkdir(parents=True, exist_ok=True)
    performer = Performer(request.overwrite, request.resume, request.workers)
    teller = Teller(todo, request.workers, before=len(jobs) - len(todo))
    failed = execute(todo, performer, workers=request.workers, tell=teller)
    labels = {job.label: failed[job.folder] for job in todo if job.folder in failed}
    result = gather(study, plan, overrides=request.overrides, failed=labels)
    if result["rows"]:
        _publish(result, request)
    if failed:
        raise RunError(
            f"{len(failed)} of {len(jobs)} runs failed; the same command tries them again. "
            + " ".join(f"{label}: {reason.rstrip('.')}." for label, reason in labels.items())
        )
    return result


def gather(
    study: Study, plan: Plan, *, overrides: Sequence[str], failed: Mapping[str, str]
) -> dict[str, Any]:
    """Figures of all runs that are finished and measured, their summary and their differences."""
    rows = [
        row(variant, seed, job)
        for (variant, seed), job in plan.runs.items()
        if job.label not in failed
    ]
    watched = supervision_result(study, watched_jobs(study, plan))
    present = {figures["variant"] for figures in rows}
    names = [name for name in study.variants if name in present]
    options = next(iter(plan.runs.values())).recipe.evaluation
    return {
        "study": study.name,
        "recipe": str(study.recipe),
        "set": study.set,
        "overrides": list(overrides),
        "seeds": list(study.seeds),
        "variants": study.variants,
        "split": options.split,
        "episodes": options.episodes,
        "rows": rows,
        "summary": summarise(rows, names),
        "differences": differences(rows, names) if names else {},
        "failed": dict(failed),
        **({"supervision": watched} if watched else {}),
    }


def row(variant: str, seed: int, job: Job) -> dict[str, Any]:
    """The figures of one finished and measured run."""
    metrics = MetricsWriter(job.folder / "metrics.jsonl").rows()
    summary = read_json(job.folder / "summary.json")
    held_out = evaluation(job)
    assert held_out is not None
    return {
        "variant": variant,
        "seed": seed,
        "success": held_out["success"],
        "return": held_out["return"],
        "episodes": summary["training_episodes"] + summary.get("earlier_episodes", 0),
        **training_figures(metrics),
        "iterations": len(metrics),
        "folder": str(job.folder),
        "curve": success_curve(metrics),
    }


@dataclass
class Teller:
    """One line for each job that is done, with the time left."""

    jobs: Sequence[Job]
    workers: int
    before: int
    """Jobs that were done already."""
    took: dict[Path, tuple[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.total = self.before + len(self.jobs)
        say(f"{self.total} runs, {self.before} done before")

    def __call__(self, job: Job, seconds: float) -> None:
        """A job is done."""
        self.took[job.folder] = (job.stage, seconds)
        left = [other.stage for other in self.jobs if other.folder not in self.took]
        expected = time_left(list(self.took.values()), left, self.workers)
        number = self.before + len(self.took)
        rest = f"; about {_duration(expected)} left" if left and expected is not None else ""
        say(f"[{number}/{self.total}] {job.label}: {_outcome(job)}{seconds:.0f} s{rest}")


def _publish(result: Mapping[str, Any], request: StudyRequest) -> None:
    """The result as files and on the screen."""
    out = request.output_dir
    write_json(out / "compare.json", result)
    show(study_table(result))
    picture = request.plot or out / "compare.png"
    plot_study(result, picture)
    files = [out / "compare.json", picture]
    if "supervision" in result:
        write_text(out / "supervision.md", supervision_markdown(result))
        files.append(out / "supervision.md")
        for table in supervision_tables(result):
            show(table)
    show(f"compare: {', '.join(map(str, files))}")


def _dry_run(jobs: Sequence[Job], done: set[Path], seed: int) -> dict[str, Any]:
    """Show all runs; those of one seed that could start now check their input, too."""
    for job in jobs:
        trains = not isinstance(job, Watched) and job.recipe.seed == seed
        if trains and job.folder not in done and all_finished(job):
            rehearse(job)
    rows = [
        {
            "run": job.label,
            "stage": job.stage,
            "state": "done" if job.folder in done else "to do",
            "folder": str(job.folder),
        }
        for job in jobs
    ]
    show(plan_table(rows))
    return {"runs": rows}


def _is_done(job: Job) -> bool:
    return watched_figures(job) is not None if isinstance(job, Watched) else is_done(job)


def _measured(job: Job) -> bool:
    return job.stage != "rl" or evaluation(job) is not None


def _outcome(job: Job) -> str:
    watched = watched_figures(job) if isinstance(job, Watched) else None
    figures = evaluation(job) if job.stage == "rl" else watched
    return f"success {100 * figures['success']:.1f} %, " if figures else ""


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
