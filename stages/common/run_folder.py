"""A run folder: one stage's output, its metrics, and the file that says it is finished.

A folder is *finished* when ``manifest.json`` exists; that file is written last and atomically.
An unfinished folder carries a small marker instead, so that nothing but a run folder of ours is
ever cleared. This module loads no torch: commands refuse bad folders before anything heavy.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.common.checkpoints import (
    Origin,
    all_checkpoints,
    check_origin,
    checkpoint_step,
    named_checkpoint,
    newest_whole,
    notes_of,
    written,
)
from stages.common.errors import HandoffError, RunError, UsageError
from stages.common.files import read_json, write_json, write_lines
from stages.common.lock import LOCK, lock, unlock
from stages.common.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from stages.common.manifest import Manifest

MANIFEST = "manifest.json"
MARKER = ".aac-run.json"
LOGS = ("metrics.jsonl", "evaluations.jsonl", "alarms.jsonl")
"""Files that a run adds lines to; from a checkpoint on they are written again."""
ROWS, HELD_OUT = "rows.jsonl", "held_out.jsonl"


@dataclass(frozen=True)
class RunRequest:
    """How a person asked for one stage to be run: where to, and what to do with what is there."""

    output_dir: Path
    overwrite: bool = False
    resume: str = "auto"
    """auto: from the newest checkpoint, if any; never: from the start; else a checkpoint folder."""
    dry_run: bool = False
    """Validate everything, train nothing, write nothing."""
    quiet: bool = False
    parents: Mapping[str, Path] = field(default_factory=dict)
    """Run folders of earlier stages, by the keys ``sft`` and ``reward``; ``critic``, ``start``: a
    critic, and a run of stage 3, to start from."""


class MetricsWriter:
    """Appends one JSON object a line to ``metrics.jsonl``: ``step``, then ``group/name`` keys."""

    def __init__(self, path: Path, *, writes: bool = True) -> None:
        """``path``: the file; it is created by the first ``write``, if ``writes``."""
        self.path, self._writes = path, writes
        self.listeners: list[Callable[[int, Mapping[str, float]], None]] = []
        """Told (step, values) of every line."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append the values of one step. Non-finite values become null, as JSON has none."""
        if not self._writes:
            return
        row = {"step": step} | {name: _finite(value) for name, value in values.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
        for tell in self.listeners:
            tell(step, values)

    def rows(self) -> list[dict[str, Any]]:
        """All lines so far. A last line cut short by a kill is left out."""
        if not self.path.exists():
            return []
        return [row for row in map(_json_or_none, self.path.read_text("utf-8").splitlines()) if row]


class RunFolder:
    """The output folder of one stage, from ``open`` to ``finish``.

    Of several processes the main one writes; the others see the same folder and leave it alone.
    """

    def __init__(self, path: Path, request: RunRequest, ranks: Ranks = ALONE) -> None:
        """Use ``RunFolder.open``."""
        self.path = path
        self.request = request
        self.ranks = ranks
        self.metrics = MetricsWriter(path / "metrics.jsonl", writes=ranks.main)
        self._checkpoint: Path | None = None
        self._fresh = False
        self._made: list[Path] = []

    @classmethod
    def open(cls, request: RunRequest, stage: str, ranks: Ranks = ALONE) -> RunFolder:
        """Check the folder, clear what is to be replaced, and make it ready to be written.

        Raises HandoffError when it is finished and ``overwrite`` is off, UsageError when it holds
        anything that is no run of this stage, when another process writes into it, or when it has
        no checkpoint as was asked for. A dry run checks and touches nothing.
        """
        with ranks.main_first():
            return cls._opened(request, stage, ranks)

    @classmethod
    def _opened(cls, request: RunRequest, stage: str, ranks: Ranks) -> RunFolder:
        path = request.output_dir
        run = cls(path, request, ranks)
        if not ranks.main:
            return run
        check_folder(request, stage)
        if request.dry_run:
            run._select()
            return run
        try:
            if path.exists():
                lock(path)
            checkpoint = run._select()
            if request.overwrite:
                run._put_aside()
            elif request.resume == "never":
                _clear(path)
            run._begin(stage)
        except UsageError:
            unlock(path)
            raise
        except OSError as error:
            run._undo_fresh()
            raise _not_writable(path, error) from None
        run._checkpoint = checkpoint
        if checkpoint is None:
            run._cut_back({})
        return run

    def _begin(self, stage: str) -> None:
        """Make the folder, keep others out and mark it as ours."""
        self._fresh = not _holds_anything(self.path)
        self._made = [p for p in (self.path, *self.path.parents) if not p.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        lock(self.path)
        write_json(self.path / MARKER, {"stage": stage})

    @property
    def finished(self) -> bool:
        """Whether the manifest is there."""
        return is_finished(self.path)

    @property
    def log_path(self) -> Path:
        """Where the output of other libraries goes; each process has a file of its own."""
        return self.path / ("log.txt" if self.ranks.main else f"log-{self.ranks.rank}.txt")

    @property
    def checkpoints(self) -> Path:
        """Where resume states live: ``checkpoint-<step>`` folders, whole ones only."""
        return self.path / "checkpoints"

    def _select(self) -> Path | None:
        """The checkpoint that the request means; UsageError where it is not there, or not whole."""
        if self.request.resume == "never" or self.request.overwrite:
            return None
        if self.request.resume != "auto":
            return named_checkpoint(Path(self.request.resume))
        return newest_whole(self.checkpoints)

    def checkpoint(self, origin: Origin) -> Path | None:
        """The checkpoint to go on from, or None to start afresh; every process must ask.

        The logs are cut back to it, and newer checkpoints leave. UsageError where it was made from
        something else than ``origin``: then all stays as it is.
        """
        found = self.ranks.everyone(self._checkpoint)[0]
        if found is None:
            return None
        check_origin(found, origin)
        if self.ranks.main:
            self._cut_back(notes_of(found)["logs"])
            for other in all_checkpoints(self.checkpoints):
                if checkpoint_step(other) > checkpoint_step(found):
                    shutil.rmtree(other)
        self.ranks.wait()
        return found

    @contextmanager
    def new_checkpoint(self, step: int, origin: Origin, **notes: Any) -> Iterator[Path]:
        """Inside, a folder to be filled that becomes the checkpoint of ``step``.

        It remembers how long the logs are now. RunError where it cannot be written.
        """
        target = self.checkpoints / f"checkpoint-{step}"
        logs = {name: (self.path / name).stat().st_size for name in self._logs()}
        with written(target, origin, {"logs": logs, **notes}) as place:
            yield place

    def _logs(self) -> list[str]:
        return [name for name in LOGS if (self.path / name).exists()]

    def _cut_back(self, logs: Mapping[str, int]) -> None:
        """The logs as long as they were; those that were not there leave."""
        for name in self._logs():
            if name not in logs:
                (self.path / name).unlink()
            elif (self.path / name).stat().st_size > logs[name]:
                os.truncate(self.path / name, logs[name])

    def finish(self, manifest: Manifest, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``, then ``manifest.json``: from here on the stage is done.

        Only now do its checkpoints and the run that it overwrites leave.
        """
        if not self.ranks.main:
            return
        write_json(self.path / "summary.json", summary)
        write_json(self.path / MANIFEST, manifest.to_json())
        (self.path / MARKER).unlink(missing_ok=True)
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        shutil.rmtree(replaced(self.path), ignore_errors=True)
        unlock(self.path)

    @contextmanager
    def undone_on_bad_input(self) -> Iterator[None]:
        """Bad input that is found late leaves nothing half-written, and an overwritten run back."""
        try:
            yield
        except UsageError:
            if self.ranks.main and not self.request.dry_run:
                self._undo_fresh()
                unlock(self.path)
            raise

    def _undo_fresh(self) -> None:
        if self._fresh:
            self._undo()

    def _undo(self) -> None:
        """As if this run had never been: its folder, and the folders made to hold it, leave."""
        unlock(self.path)
        shutil.rmtree(self.path, ignore_errors=True)
        for folder in self._made:
            with suppress(OSError):  # it was never made, or somebody else's files are in it
                folder.rmdir()
        if replaced(self.path).exists():
            replaced(self.path).rename(self.path)

    def _put_aside(self) -> None:
        """The run that was there waits until the new one is done; a half-done new one leaves."""
        if not _holds_anything(self.path):
            return
        if replaced(self.path).exists() and not self.finished:
            _clear(self.path)
            (self.path / MARKER).unlink()
            return
        shutil.rmtree(replaced(self.path), ignore_errors=True)
        self.path.rename(replaced(self.path))
        unlock(replaced(self.path))


def replaced(path: Path) -> Path:
    """Where a run that is being overwritten waits until the new one in ``path`` is done."""
    return path.with_name(f".{path.name}.replaced")


def is_finished(path: Path) -> bool:
    """Whether ``path`` is the folder of a stage that ran to its end."""
    return (path / MANIFEST).is_file()


def check_folder(request: RunRequest, stage: str) -> None:
    """Raise HandoffError or UsageError unless ``stage`` may write to the folder."""
    path = request.output_dir
    if request.overwrite and request.resume not in ("auto", "never"):
        raise UsageError(
            f"--overwrite starts anew and --resume {request.resume} goes on; give one of them."
        )
    check_place(path)
    if not _holds_anything(path):
        return
    if is_finished(path) and not request.overwrite:
        raise HandoffError(
            f"{path} already holds a finished run; pass --overwrite to replace it, "
            "or another --output-dir."
        )
    owner = _owner(path)
    if owner is None:
        raise UsageError(
            f"{path} holds files but is no run folder of ours, so it is left alone; "
            "choose an empty or new --output-dir."
        )
    if owner != stage:
        raise UsageError(
            f"{path} belongs to the stage '{owner}', not to '{stage}'; choose another --output-dir."
        )


def check_place(path: Path) -> None:
    """UsageError unless ``path`` is a folder, or a name that one can have."""
    try:
        is_file = path.exists() and not path.is_dir()
    except OSError as error:  # a name too long, a folder that may not be looked into
        raise _not_writable(path, error) from None
    if is_file:
        raise UsageError(f"{path} is a file; --output-dir must name a folder.")


def _not_writable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{path} cannot be written ({error.strerror}); choose another --output-dir, or give this "
        "one the rights and the room that it needs."
    )


def write_rows(folder: Path, rows: Iterable[Mapping[str, Any]], name: str = ROWS) -> None:
    """Keep a stage's training rows in its folder, whole or not at all, for a later stage."""
    write_lines(folder / name, rows)


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows that ``write_rows`` kept; none when the stage kept none."""
    if not (folder / ROWS).is_file():
        return []
    with (folder / ROWS).open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _owner(path: Path) -> str | None:
    """The stage whose folder this is, or None when it is not ours."""
    for name in (MANIFEST, MARKER):
        if (path / name).is_file():
            row = read_json(path / name)
            return row.get("stage") if isinstance(row, dict) else None
    return None


def _clear(path: Path) -> None:
    """Empty a run folder; the manifest goes first, so a kill leaves it unfinished, not wrong."""
    if not _holds_anything(path):
        return
    stage = _owner(path)
    if stage is None:
        raise RunError(f"{path} is no run folder of ours; nothing was removed.")
    write_json(path / MARKER, {"stage": stage})
    (path / MANIFEST).unlink(missing_ok=True)
    for child in path.iterdir():
        if child.name in (MARKER, LOCK):
            continue
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()


def _holds_anything(path: Path) -> bool:
    """Besides the lock of a process that writes there, or wrote there and ended."""
    return path.is_dir() and any(child.name != LOCK for child in path.iterdir())


def _finite(value: float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _json_or_none(line: str) -> dict[str, Any] | None:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None
