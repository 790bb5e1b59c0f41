"""What lies in the folders of runs, read for a report and told apart by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from stages.common.errors import UsageError
from stages.common.files import read_json
from stages.common.records import read_records
from stages.common.run_folder import MANIFEST, MARKER, MetricsWriter
from stages.evaluation.audit import FOLDER, read_picks, read_verdicts

STAGES = ("sft", "reward", "rl")
"""In their order; also the names of their folders below that of ``aac run``."""
METRICS = "metrics.jsonl"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """The folder of one stage, finished or not."""

    path: Path
    stage: str
    rows: Sequence[Row]
    """Lines of metrics.jsonl."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """{}: the run is not finished."""
    earlier: Sequence[Run] = ()
    """The stages before it, where they lie in the same folder of ``aac run``."""
    label: str = ""
    """Its name on the page, different from that of every other run there."""

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Its final figures; {} before its end."""
        return optional(self.path / "summary.json")

    @cached_property
    def pipeline(self) -> dict[str, Any]:
        """The summary of the ``aac run`` that it is a stage of; {}: of none."""
        found = optional(self.path.parent / "summary.json")
        ours = self.path.name == self.stage and self.stage in found.get("stages", {})
        return found if ours else {}

    @cached_property
    def recipe(self) -> Mapping[str, Any]:
        """The resolved recipe; of a run that goes on, that of a stage before it; {}: unknown."""
        made = [self.manifest, *(run.manifest for run in reversed(self.earlier))]
        return next((m["recipe"] for m in made if m.get("recipe")), {})

    @property
    def alarms(self) -> list[Row]:
        """What the monitor raised, oldest first."""
        return lines(self.path / "alarms.jsonl")

    @property
    def evaluations(self) -> list[Row]:
        """Held-out evaluations during training, oldest first."""
        return lines(self.path / "evaluations.jsonl")

    @cached_property
    def picks(self) -> list[dict[str, Any]]:
        """Episodes to audit, the newest evaluation first."""
        return read_picks(self.path) if list((self.path / FOLDER).glob("*.jsonl")) else []

    @property
    def verdicts(self) -> dict[str, Any]:
        """What a person said of the picks."""
        return read_verdicts(self.path)

    @property
    def name(self) -> str:
        """Recipe and seed, or the folder where they are not known."""
        if "name" not in self.recipe:
            return str(self.path)
        return f"{self.recipe['name']}, seed {self.recipe.get('seed', 0)}"

    @property
    def unit(self) -> str:
        """What a line of its metrics counts."""
        return "iteration" if self.stage == "rl" else "step"


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs of these folders, each with a label of its own.

    Raises UsageError where one is no folder of a run, or is named twice.
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError("a RUN is named twice; name each folder once.")
    runs = [read_run(path) for path in paths]
    names = [run.name for run in runs]
    labels = names if len(set(names)) == len(names) else [str(path) for path in paths]
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


def read_run(path: Path) -> Run:
    """The run in a stage's folder, or the last stage of the folder of ``aac run``.

    Raises UsageError for any other folder.
    """
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise UsageError(f"{path} {what}; {_WANTED}")
    if stage := _stage_of(path):
        below = [path.parent / name for name in STAGES[: STAGES.index(stage)]]
        siblings = below if path.name == stage else []
        return _stage_run(path, stage, siblings)
    inner = [path / name for name in STAGES if _stage_of(path / name) == name]
    if not inner:
        raise UsageError(f"{path} holds no {METRICS} of a stage; {_WANTED}")
    return _stage_run(inner[-1], inner[-1].name, inner[:-1])


_WANTED = "name the folder of aac rl, aac sft, aac train-reward or aac run."


def optional(file: Path) -> dict[str, Any]:
    """A JSON object, {} where there is no file."""
    found = read_json(file) if file.is_file() else {}
    return found if isinstance(found, dict) else {}


def lines(file: Path) -> list[Row]:
    """JSON lines, none where there is no file."""
    if not file.is_file() or file.stat().st_size == 0:
        return []
    return [row for _, row in read_records(file)]


def _stage_run(path: Path, stage: str, siblings: Sequence[Path]) -> Run:
    earlier = [
        Run(p, p.name, MetricsWriter(p / METRICS).rows(), optional(p / MANIFEST), label=p.name)
        for p in siblings
        if _stage_of(p) == p.name
    ]
    rows = MetricsWriter(path / METRICS).rows()
    return Run(path, stage, rows, optional(path / MANIFEST), earlier)


def _stage_of(path: Path) -> str:
    """The stage whose folder this is, with at least one line of metrics; "" for others."""
    if not MetricsWriter(path / METRICS).rows():
        return ""
    for name in (MANIFEST, MARKER):
        stage = optional(path / name).get("stage")
        if stage in STAGES:
            return str(stage)
    return "rl" if (path / "trajectories").is_dir() else ""
