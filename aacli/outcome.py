"""What a person sees after a stage: its figures, its folder, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aacli.command import emit
from aacli.options import RecipeOptions, StageOptions
from stages.common.console import folded, say, show
from stages.common.run_folder import RunRequest


def report(
    stage: str, summary: Mapping[str, Any], request: RunRequest, options: StageOptions
) -> None:
    """Print a finished stage's figures, or one JSON object under ``--json``."""
    if options.json:
        emit(summary)
    elif request.dry_run:
        show(f"{stage}: everything is in order; a dry run trains and writes nothing.")
    else:
        show(f"{stage}: done; {figures(summary)}" if figures(summary) else f"{stage}: done")
        show(f"{stage}: {request.output_dir}")


def figures(summary: Mapping[str, Any]) -> str:
    """The plain numbers of a summary in one line."""
    numbers = [
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in summary.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return ", ".join(numbers)


def suggest(*commands: str) -> None:
    """Name the commands a person would type next."""
    say("next: " + "\n      ".join(folded(command, 6) for command in commands), whole=True)


def typed(command: str, recipe: Path, options: RecipeOptions, **flags: Path | None) -> str:
    """A command for the same recipe and overrides, ready to be pasted in a shell.

    Flags that are None are left out.
    """
    words: list[str | Path] = ["aac", command, recipe]
    for text in options.set or ():
        words += ["--set", text]
    if options.seed is not None:
        words += ["--seed", str(options.seed)]
    for name, value in flags.items():
        words += [f"--{name.replace('_', '-')}", value] if value else []
    return shlex.join(map(str, words))


def beside(request: RunRequest, options: StageOptions, stage: str) -> Path | None:
    """The next stage's output folder when the person chose this one's; None for the default."""
    return request.output_dir.parent / stage if options.output_dir else None
