"""Before and after, with intervals, and a run's story in two or three sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stages.evaluation.intervals import share_interval
from stages.evaluation.report.runs import Run
from stages.evaluation.tables import percent

Line = dict[str, Any]
"""``tasks`` (which), ``when``, ``place`` ("iteration 5" or ""), ``what`` (all in words), ``mean``,
``low``, ``high``, ``episodes``."""
HELD_OUT, DURING, PAIRS = "held-out tasks", "validation tasks, in training", "held-out pairs"


class Ends(NamedTuple):
    """What a stage's evaluations compare."""

    before: str
    """Name in the pipeline's summary."""
    says_before: str
    says_after: str


_ENDS: Mapping[str, Ends] = {
    "sft": Ends("base", "base, zero-shot", "after SFT"),
    "rl": Ends("sft", "before RL", "after RL"),
}


def headline(run: Run) -> list[Line]:
    """Success with its interval: on the pipeline's test tasks if it ran, and during training.

    Of a reward model, the share of held-out pairs that it ranks right.
    """
    found = [*_pipeline(run), *_validation(run)]
    if run.stage == "reward":
        accuracy, pairs = run.summary.get("accuracy"), run.summary.get("held_out")
        figures = {"success": accuracy, "episodes": pairs}
        found.append(_line(PAIRS, "ranked right", figures))
    return [line for line in found if line]


def story(run: Run, lines: Sequence[Line]) -> list[str]:
    """What a reader should know first, as whole sentences."""
    told = [_success(lines), _ended(run)]
    if run.stage == "rl":
        told.append(_alarms(run.alarms))
    return [sentence for sentence in told if sentence]


def _pipeline(run: Run) -> list[Line]:
    stages = {**run.pipeline.get("baselines", {}), **run.pipeline.get("stages", {})}
    if run.stage not in _ENDS:
        return []
    ends = _ENDS[run.stage]
    return [
        _line(f"{HELD_OUT}, {how}", says, stages.get(name, {}).get(how, {}))
        for how in ("sampled", "greedy")
        for name, says in ((ends.before, ends.says_before), (run.stage, ends.says_after))
    ]


def _validation(run: Run) -> list[Line]:
    told = [row for row in run.evaluations if row.get("success") is not None]
    if not told:
        return []
    best = max(told, key=lambda row: row["success"])
    return [
        _line(DURING, f"{words} evaluation", row, f"iteration {row['step']}")
        for words, row in (("first", told[0]), ("best", best), ("last", told[-1]))
    ]


def _line(tasks: str, when: str, figures: Mapping[str, Any], place: str = "") -> Line:
    """{} where nothing was measured."""
    share, total = figures.get("success"), figures.get("episodes")
    if share is None or not total:
        return {}
    what = f"{when} ({place})" if place else f"{when}, {tasks}"
    interval = share_interval(share, total)._asdict()
    return {
        "what": what,
        "tasks": tasks,
        "when": when,
        "place": place,
        "episodes": total,
        **interval,
    }


def _success(lines: Sequence[Line]) -> str:
    """The first two lines of the same tasks, compared."""
    if not lines:
        return "Nothing has been evaluated yet."
    first = lines[0]
    if first["tasks"] == PAIRS:
        return f"It ranks {percent(first['mean'])} of {first['episodes']} held-out pairs right."
    of = f"{first['episodes']} {_tasks(first)}"
    if first["tasks"] == DURING:
        return f"Success on {of}: {_course(lines)}."
    if len(lines) == 1 or lines[1]["tasks"] != first["tasks"]:
        return f"Success on {of}: {percent(first['mean'])} {first['when']}."
    then = lines[1]
    told = [f"{percent(line['mean'])} {line['when']}" for line in (first, then)]
    return f"Success on {of}: {', '.join(told)}; {_difference(first, then)}."


def _course(lines: Sequence[Line]) -> str:
    """Of the first, the best and the last evaluation."""
    first, best, last = lines
    told = f"{percent(first['mean'])} at the first evaluation, {percent(last['mean'])} at the last"
    if best["mean"] > last["mean"]:
        told += f", {percent(best['mean'])} at the best ({best['place']})"
    return told


def _tasks(line: Line) -> str:
    return "validation tasks" if line["tasks"] == DURING else str(line["tasks"])


def _difference(first: Line, then: Line) -> str:
    apart = then["low"] > first["high"] or then["high"] < first["low"]
    return f"their 95 % intervals {'do not overlap' if apart else 'overlap'}"


def _ended(run: Run) -> str:
    if stopped := run.summary.get("stopped"):
        return f"The run was stopped: {str(stopped).rstrip('.')}."
    if not run.manifest:
        last = run.rows[-1].get("step", len(run.rows)) if run.rows else 0
        return f"The run is not finished; this is how it stood at {run.unit} {last}."
    return ""


def _alarms(alarms: Sequence[Mapping[str, Any]]) -> str:
    if not alarms:
        return "No alarm was raised."
    last = alarms[-1]
    count = "One alarm was" if len(alarms) == 1 else f"{len(alarms)} alarms were"
    which = "it" if len(alarms) == 1 else "the last"
    return (
        f"{count} raised; {which} is {last['alarm']} at iteration {last['step']}: "
        f"{last.get('means', '')}."
    )
