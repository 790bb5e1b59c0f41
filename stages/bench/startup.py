"""From ``aac rl`` as typed to its first rollout, and what of that are imports."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path

from stages.bench.iteration import RECIPE
from stages.bench.measure import Spread
from stages.bench.models import BASE, copied_actor, saved_scorer
from stages.bench.results import Bound, Result, Section
from stages.bench.running import aac, phases
from stages.bench.setting import Setting, Tell

IMPORT = re.compile(r"^import time: +(\d+) \| +\d+ \| +(\w+)", re.MULTILINE)
"""A line of Python's import profile: a module's own microseconds, and the package it is in."""
LARGEST = 6
NOTE = (
    "Seconds from the start of the process of `aac rl recipes/quickstart.yaml` until its first "
    "rollout begins. In a run with Python's import profile, imports took {total:.1f} s, most of "
    "it in modules of {packages}."
)


def measure(setting: Setting, tell: Tell) -> Section:
    """A start with a profile, which leaves all files in memory, then those that are counted."""
    folder = setting.fresh("startup")
    copied_actor(BASE, folder / "sft")
    saved_scorer(BASE, folder / "reward")
    tell("a start with a profile of the imports")
    start(folder, "rl-profile", profile := folder / "imports.txt", PYTHONPROFILEIMPORTTIME="1")
    packages = imports(profile.read_text("utf-8"))
    starts = []
    for number in range(setting.repeats):
        tell(f"start {number + 1} of {setting.repeats}")
        starts.append(start(folder, f"rl-{number}", setting.log))
    spread = Spread.of(starts)
    first = Result(
        "`aac rl` to its first rollout",
        {"aac": spread.median},
        "s",
        spread,
        must=Bound(10, at_least=False),
        proof={"imports": packages},
    )
    told = ", ".join(f"{name} ({packages[name]:.1f} s)" for name in list(packages)[:LARGEST])
    note = NOTE.format(total=sum(packages.values()), packages=told)
    return Section("Start-up", note, "seconds", [first, *_quickstart(setting.quickstart)])


def _quickstart(seconds: float | None) -> list[Result]:
    """The whole quickstart, where its time is known."""
    if seconds is None:
        return []
    aim, spread = Bound(180, at_least=False), Spread.of([seconds])
    return [Result("`make quickstart`, a run before", {"aac": seconds}, "s", spread, aim=aim)]


def start(folder: Path, name: str, log: Path, **environment: str) -> float:
    """Seconds from a start to the first rollout, by the run's own clock."""
    words = ["rl", str(RECIPE), "--sft", str(folder / "sft"), "--reward", str(folder / "reward")]
    words += ["--output-dir", str(folder / name), "--set", "rl.iterations=1"]
    words += ["--set", "rl.episodes=8", "--set", "rl.evaluation_episodes=8"]
    begun = time.time()
    aac(words, log, **environment)
    (first,) = phases(folder / name)
    written = (folder / name / "trajectories" / "00000.jsonl").stat().st_mtime
    return written - sum(first.values()) - begun


def imports(profile: str) -> dict[str, float]:
    """Seconds in each package's own modules, most first."""
    spent: Counter[str] = Counter()
    for microseconds, package in IMPORT.findall(profile):
        spent[package] += int(microseconds)
    return {package: total / 1e6 for package, total in spent.most_common()}
