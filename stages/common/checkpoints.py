"""Resume states on disk: written whole or not at all, and proved whole before they are trusted.

A ``checkpoint-<step>`` folder is filled under another name, sealed by a list of its files and their
hashes, and renamed. What is not as its seal says is passed over. This module loads no torch.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stages.common.console import warn
from stages.common.errors import AacError, RunError, UsageError
from stages.common.files import file_hash, read_json, to_disk, write_json

SEAL = "checkpoint.json"
WRITING = ".writing"
_NAME = re.compile(r"checkpoint-(\d+)$")
_PROBE_BYTES = 2**20


@dataclass(frozen=True)
class Origin:
    """What a run is made from: where all of it is the same, it may go on from a checkpoint."""

    recipe: str = ""
    """Fingerprint of the recipe's sections that decide the numbers."""
    data: str = ""
    """Fingerprint of the training data."""
    parents: Mapping[str, str] = field(default_factory=dict)
    """Content hashes of the earlier stages' folders, by stage."""
    launch: Mapping[str, Any] = field(default_factory=dict)
    """``processes`` and ``mode``, where a checkpoint lies in as many pieces; {}: any will do."""


def checkpoint_step(path: Path) -> int:
    """The step in a ``checkpoint-<step>`` folder's name; -1 for other names."""
    match = _NAME.search(path.name)
    return int(match.group(1)) if match else -1


def all_checkpoints(folder: Path) -> list[Path]:
    """The ``checkpoint-<step>`` folders in ``folder``, oldest first."""
    found = [path for path in folder.glob("checkpoint-*") if checkpoint_step(path) >= 0]
    return sorted(found, key=checkpoint_step)


@contextmanager
def written(target: Path, origin: Origin, notes: Mapping[str, Any]) -> Iterator[Path]:
    """Inside, a folder to be filled; afterwards it is sealed and becomes ``target``.

    ``notes``: plain values that ``notes_of`` gives back. RunError where something cannot be
    written: then what was there before is as it was.
    """
    writing = target.parent / WRITING / target.name
    try:
        shutil.rmtree(writing.parent, ignore_errors=True)
        writing.mkdir(parents=True)
        yield writing
        _seal(writing, {"made_from": asdict(origin), "notes": dict(notes)})
        shutil.rmtree(target, ignore_errors=True)
        os.replace(writing, target)
        to_disk(target.parent)
    except AacError:
        raise
    except Exception as error:
        reason = _reason(error, writing)
        shutil.rmtree(writing.parent, ignore_errors=True)
        raise RunError(
            f"{target} could not be written ({reason}), so the run ends; mend that and run the "
            "same command again: it goes on from the last checkpoint that was written, if there "
            "is one."
        ) from error
    shutil.rmtree(writing.parent, ignore_errors=True)


def prune(folder: Path, keep: int) -> None:
    """Drop all but the newest ``keep`` checkpoints."""
    for old in all_checkpoints(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)


def fault(checkpoint: Path) -> str:
    """In a few words why a checkpoint is not as it was written; '' where it is."""
    if not is_sealed(checkpoint):
        return f"it has no {SEAL}"
    try:
        sealed: Mapping[str, Any] = read_json(checkpoint / SEAL)["files"]
        for name, known in sealed.items():
            file = checkpoint / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != known["bytes"]:
                return f"{name} has {file.stat().st_size} bytes and had {known['bytes']}"
            if file_hash(file) != known["sha256"]:
                return f"{name} has changed since it was written"
    except (AacError, KeyError, TypeError, AttributeError):
        return f"its {SEAL} is broken"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return ""


def newest_whole(folder: Path) -> Path | None:
    """The newest checkpoint that is as it was written; those passed over are told.

    None where there is none at all; UsageError where there are some and none is whole.
    """
    found, faults = all_checkpoints(folder)[::-1], list[str]()
    for checkpoint in found:
        why = fault(checkpoint)
        if not why:
            for line in faults:
                warn(f"{line}; going on from {checkpoint.name} instead.")
            return checkpoint
        faults.append(f"{checkpoint} is not whole ({why})")
    if faults:
        raise UsageError(f"{'; '.join(faults)}; start anew with --resume never.")
    return None


def named_checkpoint(path: Path) -> Path:
    """A checkpoint that a person asked for. UsageError where it is none, or not whole."""
    if not path.is_dir():
        raise UsageError(
            f"--resume {path} is no checkpoint folder; name one, or give 'auto' or 'never'."
        )
    if why := fault(path):
        raise UsageError(
            f"--resume {path} is no whole checkpoint ({why}); name another checkpoint-<n> folder, "
            "or give 'auto' or 'never'."
        )
    return path


def is_sealed(checkpoint: Path) -> bool:
    """Whether it was written to its end, whatever became of it since."""
    return (checkpoint / SEAL).is_file()


def notes_of(checkpoint: Path) -> dict[str, Any]:
    """The ``notes`` it was written with."""
    notes: dict[str, Any] = read_json(checkpoint / SEAL)["notes"]
    return notes


def check_origin(checkpoint: Path, now: Origin) -> None:
    """UsageError unless a checkpoint was made from what the run is made from now."""
    then = Origin(**read_json(checkpoint / SEAL)["made_from"])
    start = "or start anew with --resume never."
    if then.recipe != now.recipe:
        raise UsageError(
            f"{checkpoint} was made with another recipe, so going on from it would mix two runs; "
            f"undo the change, {start}"
        )
    for name in sorted({*then.parents, *now.parents}):
        if then.parents.get(name) != now.parents.get(name):
            raise UsageError(
                f"{checkpoint} was made with another {name} than there is now (it was trained "
                f"again, replaced or left out since); put that one back, {start}"
            )
    if then.data != now.data:
        raise UsageError(
            f"{checkpoint} was made with other training data than there is now; put that back, "
            f"{start}"
        )
    if dict(then.launch) != dict(now.launch):
        raise UsageError(
            f"{checkpoint} was made by {_told(then.launch)}, and this is a run of "
            f"{_told(now.launch)}, which would see other batches or cannot put its pieces "
            f"together; launch it as before, {start}"
        )


def _told(launch: Mapping[str, Any]) -> str:
    count = launch.get("processes", 1)
    return f"{count} process{'es' if count != 1 else ''} ({launch.get('mode', 'one')})"


def _seal(folder: Path, content: Mapping[str, Any]) -> None:
    """All files on the disk, then the list of them."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        to_disk(path)
        size, name = path.stat().st_size, path.relative_to(folder).as_posix()
        files[name] = {"bytes": size, "sha256": file_hash(path)}
    write_json(folder / SEAL, {"files": files, **content})
    for path in (*(p for p in folder.rglob("*") if p.is_dir()), folder):
        to_disk(path)


def _reason(error: Exception, writing: Path) -> str:
    """What the system says; libraries keep that to themselves, so it is asked again where they
    came to their end: at the largest file."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    files = [path for path in writing.rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size, default=writing / "first")
    try:
        with largest.open("ab") as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as found:
        return found.strerror or type(found).__name__
    text = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {text}"
