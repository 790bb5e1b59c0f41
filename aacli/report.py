"""``aac report``: what a run was like, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aacli.command import command, emit
from aacli.options import Basics

Run = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="Folder of aac rl or of aac run.", show_default=False),
]
Output = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Where the page goes.", show_default="RUN/report.html"),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "report", example="aac report runs/quickstart")(report)


def report(run: Run, options: Basics, output: Output = None) -> None:
    """Write one HTML page of an RL run, and show its figures: success before and after with
    intervals, curves, alarms, and the episodes a person should read."""
    from stages.evaluation.report import report_command

    result = report_command(run, output)
    if options.json:
        emit(result)
