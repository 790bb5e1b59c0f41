"""``aac doctor``: what this machine can do, and what to install."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.table import Table

from aacli.command import command, emit
from aacli.options import Basics
from stages.common.console import show
from stages.common.machine import Finding, examine, needed


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "doctor", example="aac doctor")(doctor)


def doctor(options: Basics) -> None:
    """Say what is available here (GPU, ZeRO, LoRA, vLLM, memory, ...) and what to install.

    The exit code is 0 whatever is missing.
    """
    findings = examine()
    missing = needed(findings)
    if options.json:
        emit({"ready": not missing, "findings": [asdict(f) for f in findings]})
        return
    show(_table(findings))
    if missing:
        show(f"Missing, and nothing works without: {', '.join(missing)}.")
    else:
        show("All that every recipe needs is here; the rest is for the uses named beside it.")


def _table(findings: list[Finding]) -> Table:
    table = Table(box=None)
    for head in ("", "here", "what", "good for", "to do"):
        table.add_column(head, overflow="fold")
    for f in findings:
        mark = "yes" if f.here else "no"
        table.add_row(f.name, mark, f.detail, f.use, "" if f.here else f.advice)
    return table
