"""``python -m stages.bench``: this project beside its peers on the same work, on this machine."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from stages.bench.machine import commit, described
from stages.bench.progress import Progress
from stages.bench.results import SCHEMA, page
from stages.bench.setting import Setting
from stages.common.console import complain, say, show
from stages.common.errors import AacError, RunError, UsageError
from stages.common.files import read_json, write_json, write_text
from stages.common.libraries import quiet_libraries

PARTS = {"ppo": 240, "grpo": 520, "rollouts": 150, "iteration": 60, "growth": 200, "startup": 100}
"""A module of this folder each, and the seconds it takes on two quiet cores."""
QUICK = 0.1
"""Share of them that ``--quick`` takes."""
CORES = os.cpu_count() or 1

Quick = Annotated[
    bool, typer.Option("--quick", help="The smallest work that goes through everything.")
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only", metavar="PART", help=f"One of {', '.join(PARTS)}; may be given several times."
    ),
]
Repeats = Annotated[int, typer.Option(min=1, help="Of each side, after one that is not counted.")]
Threads = Annotated[int, typer.Option(min=1, help="Of each side.", show_default="all cores")]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Of speed.json and speed.md.")]
Quickstart = Annotated[
    Path | None,
    typer.Option(metavar="RUN", help="A finished quickstart, whose time goes on the page."),
]


def bench(
    quick: Quick = False,
    only: Only = None,
    repeats: Repeats = 3,
    threads: Threads = CORES,
    out: Out = Path("runs/bench"),
    quickstart: Quickstart = None,
) -> None:
    """Measure this project beside its peers on the same work, side by side on this machine.

    What is measured is on disk after each part; the exit code is 1 if a part could not be measured.
    """
    try:
        parts = _chosen(only)
        progress = Progress({part: PARTS[part] * (QUICK if quick else 1) for part in parts})
        taken = None if quickstart is None else _seconds(quickstart)
        log = _log(out)
        with TemporaryDirectory(prefix="aac-bench-") as scratch, quiet_libraries(log):
            given = (1 if quick else repeats, threads, quick, log, taken)
            failed = _measure(Setting(Path(scratch), *given), parts, progress, out)
    except AacError as error:
        complain(str(error))
        raise typer.Exit(error.exit_code) from None
    raise typer.Exit(1 if failed else 0)


def _chosen(only: Sequence[str] | None) -> list[str]:
    """Parts in their order."""
    unknown = [part for part in only or () if part not in PARTS]
    if unknown:
        raise UsageError(f"--only {unknown[0]} is unknown; expected one of {', '.join(PARTS)}.")
    return [part for part in PARTS if not only or part in only]


def _seconds(run: Path) -> float:
    """What a finished run took. UsageError where that cannot be told."""
    summary = read_json(run / "summary.json")
    seconds = summary.get("seconds") if isinstance(summary, dict) else None
    if not isinstance(seconds, int | float):
        raise UsageError(f"{run}/summary.json tells no seconds; name the root of a finished run.")
    return float(seconds)


def _measure(setting: Setting, parts: Sequence[str], progress: Progress, out: Path) -> bool:
    """Part by part, and the page after each; whether one failed."""
    start = time.monotonic()
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "command": shlex.join(["python", "-m", "stages.bench", *sys.argv[1:]]),
        "commit": commit(),
        "machine": described(),
        "settings": {k: getattr(setting, k) for k in ("repeats", "threads", "quick")},
        "sections": {},
        "failed": {},
        "part_seconds": {},
    }
    for part in parts:
        began = time.monotonic()
        measure = importlib.import_module(f"stages.bench.{part}").measure
        try:
            section = measure(setting, partial(progress.tell, part))
            content["sections"][part] = section.to_json()
        except RunError as error:
            content["failed"][part] = str(error)
            complain(str(error))
        content["part_seconds"][part] = round(time.monotonic() - began, 1)
        content["seconds"] = round(time.monotonic() - start, 1)
        write_json(out / "speed.json", content)
        write_text(out / "speed.md", page(content))
    show(page(content))
    say(f"written to {out}/speed.md and {out}/speed.json")
    return bool(content["failed"])


def _log(out: Path) -> Path:
    """What libraries say, in the folder of the results. UsageError where none can be made."""
    log = out / "speed.log"
    try:
        out.mkdir(parents=True, exist_ok=True)
        log.write_text("", "utf-8")
    except OSError as error:
        raise UsageError(
            f"{out} cannot be written to ({error.strerror}); name another --out."
        ) from None
    return log


if __name__ == "__main__":
    typer.run(bench)
