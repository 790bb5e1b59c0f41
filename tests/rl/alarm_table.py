"""How soon alarms tell and how often they cry wolf, over series recorded from real runs.

``python -m tests.rl.alarm_table`` prints the table; ``--record FOLDER [WORDS]`` makes
all the runs of ``sick_runs`` (whose name holds the words) in an empty folder, in minutes, and
writes ``recorded.jsonl``; ``--add NAME ALARM RUN EPISODES`` takes in a run of ``aac rl`` that is
there already (ALARM: the one it should raise, or -; EPISODES: of each evaluation).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from stages.rl.monitor import UNDEFINED, Monitor

FILE = Path(__file__).with_name("recorded.jsonl")
HELD_OUT, MAX_PERPLEXITY = 32, 2.0
FIGURE = {
    "kl_surge": "actor/kl",
    "reward_collapse": "reward/total",
    "reward_hacking": "evaluation/success",
    "entropy_collapse": "actor/entropy",
    "template_collapse": "episode/template",
    "repetition": "episode/repeated_calls",
    "explained_variance": "critic/explained_variance",
    "clip_fraction": "actor/clip_fraction",
    "invalid_actions": "episode/invalid_actions",
    "out_of_budget": "episode/out_of_budget",
    "drops": "dropped/no call",
    "gradient_spike": "actor/grad_norm",
    "forgetting": "clean/perplexity_ratio",
    "non_finite": "reward/total",
}
"""The figure in which each illness shows."""
KEPT = (
    *FIGURE.values(),
    *UNDEFINED,
    "episode/success",
    "episode/loops",
    "episode/babble",
    "clean/lost",
    "clean/format",
    "reward/wordy",
    "reward/cliff",
    "reward/repeated",
)
"""What the alarms look at."""
WOLF: dict[str, set[str]] = {}
"""Healthy runs with a false alarm."""
Row = dict[str, float]


@dataclass(frozen=True)
class Series:
    """One recorded run."""

    name: str
    alarm: str | None
    """What it should raise; None: it is healthy."""
    rows: Sequence[Row]
    held_out: int = HELD_OUT

    def alarms(self) -> dict[str, int]:
        """Alarm -> the iteration (from 1) at which it is first raised."""
        watch, first = Monitor(self.held_out, MAX_PERPLEXITY), {}
        for step, row in enumerate(self.rows, start=1):
            for name in watch.observe(row):
                first.setdefault(name, step)
        return first

    def half_ill(self) -> int | None:
        """The iteration at which the figure has gone half the way from its first to the value
        farthest from that: what a person would call ill, seen afterwards."""
        name = FIGURE[self.alarm or ""]
        told = [(k, row[name]) for k, row in enumerate(self.rows, start=1) if name in row]
        if not told:
            return None
        start = told[0][1]
        worst = max((abs(value - start) for _, value in told), default=0.0)
        return next(k for k, value in told if abs(value - start) >= worst / 2)


def load() -> list[Series]:
    """The recorded series."""
    found = []
    for line in FILE.read_text("utf-8").splitlines():
        row = json.loads(line)
        names = row["names"]
        rows = [
            {n: float(v) for n, v in zip(names, values, strict=True) if v is not None}
            for values in row["rows"]
        ]
        found.append(Series(row["name"], row["alarm"], rows, row["held_out"]))
    return found


def encoded(name: str, alarm: str | None, run: Path, held_out: int = HELD_OUT) -> str:
    """One line of the file from a run's metrics."""
    table = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    names = sorted({n for row in table for n in row if n in KEPT or n.startswith("dropped/")})
    rows = [[_short(row.get(n)) for n in names] for row in table]
    line = {"name": name, "alarm": alarm, "held_out": held_out, "names": names, "rows": rows}
    return json.dumps(line) + "\n"


def _short(value: Any) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def printed(series: Sequence[Series]) -> str:
    """The table, and what it comes to."""
    lines = [
        f"{'series':52} {'ill with':18} {'half ill':>8} {'told':>5} {'delay':>5}  other alarms"
    ]
    delays, missed, false = [], 0, 0
    for one in series:
        first = one.alarms()
        if one.alarm is None:
            false += bool(first)
            lines.append(f"{one.name:52} {'-':18} {'':8} {'':5} {'':5}  {_told(first)}")
            continue
        half, told = one.half_ill(), first.pop(one.alarm, None)
        missed += told is None
        delay = None if told is None or half is None else told - half
        delays += [] if delay is None else [delay]
        cells = f"{_cell(half):>8} {_cell(told):>5} {_cell(delay):>5}"
        lines.append(f"{one.name:52} {one.alarm:18} {cells}  {_told(first)}")
    sick = sum(one.alarm is not None for one in series)
    lines.append(
        f"{sick} sick series: {sick - missed} told, delay {min(delays)} to {max(delays)} "
        f"iterations, median {median(delays):g}"
    )
    lines.append(f"{len(series) - sick} healthy series: {false} with a false alarm")
    return "\n".join(lines)


def _cell(value: int | None) -> str:
    return "-" if value is None else str(value)


def _told(first: dict[str, int]) -> str:
    return ", ".join(f"{name} {step}" for name, step in first.items()) or "-"


def record(folder: Path, wanted: str = "") -> None:
    """Make every run whose name holds ``wanted``, and write down what it measured."""
    from tests.rl.sick_runs import HEALTHY, SICK, prepared, started

    folder.mkdir(parents=True, exist_ok=True)
    world = prepared(folder)
    for number, (name, run) in enumerate({**SICK, **HEALTHY}.items()):
        if wanted not in name:
            continue
        done = started(world, f"run-{number}", run)
        print(f"{name}: exit code {done.exit_code}", file=sys.stderr, flush=True)
        if (folder / f"run-{number}/metrics.jsonl").exists():  # not where nothing was learned
            keep(encoded(name, run.alarm, folder / f"run-{number}"))


def keep(line: str) -> None:
    """Put a series into the file, in the place of one with its name."""
    lines = FILE.read_text("utf-8").splitlines(keepends=True) if FILE.exists() else []
    name = json.loads(line)["name"]
    lines = [other for other in lines if json.loads(other)["name"] != name]
    FILE.write_text("".join([*lines, line]), "utf-8")


def main(words: Sequence[str]) -> None:
    """See the top."""
    if words[:1] == ["--record"]:
        record(Path(words[1]), *words[2:3])
    elif words[:1] == ["--add"]:
        name, alarm, run, held_out = words[1:5]
        keep(encoded(name, None if alarm == "-" else alarm, Path(run), int(held_out)))
    print(printed(load()))


if __name__ == "__main__":
    main(sys.argv[1:])
