"""``aac export``: a run's adapters merged into a plain folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aacli.command import command, emit
from aacli.options import Basics, Overwrite
from stages.common.console import show

RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a finished stage.", show_default=False)
]
Output = Annotated[
    Path | None,
    typer.Option("--output-dir", help="Folder to write.", show_default="RUN-merged"),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "export", example="aac export runs/laptop/rl")(export)


def export(
    run: RunPath, options: Basics, output_dir: Output = None, overwrite: Overwrite = False
) -> None:
    """Merge a run's adapters into their base: a plain Hugging Face folder."""
    from stages.common.export import export as write

    output = output_dir or run.with_name(f"{run.name}-merged")
    made = write(run, output, overwrite=overwrite)
    if options.json:
        emit(made)
    else:
        show(f"export: {made['folder']} ({made['dtype']}, merged into {made['base']})")
