"""``aac data``: look at a person's file before a stage reads it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from aacli.command import command, emit
from aacli.options import Basics
from stages.common.errors import UsageError


class Target(StrEnum):
    """What rows can be converted to."""

    DEMONSTRATIONS = "demonstrations"
    PREFERENCES = "preferences"
    EXPERIENCE = "experience"


File = Annotated[
    Path, typer.Argument(metavar="FILE", help="A .jsonl, .json or .parquet file, or a folder.")
]
To = Annotated[
    Target | None,
    typer.Option(
        "--to",
        help="Convert: demonstrations (for sft), preferences (for train-reward), experience.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", help="File of JSON lines to write.", show_default="<FILE>.<to>.jsonl, here"
    ),
]
DropBad = Annotated[
    bool, typer.Option("--drop-bad", help="Leave out rows that cannot be used, and say how many.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output file.")]


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Check and convert data files.",
        epilog="Example: aac data check episodes.json --to preferences",
    )
    example = "aac data check episodes.json --to preferences --output pairs.jsonl"
    command(group, "check", example=example)(check)
    app.add_typer(group, name="data")


def check(
    file: File,
    options: Basics,
    to: To = None,
    output: Output = None,
    drop_bad: DropBad = False,
    overwrite: Overwrite = False,
) -> None:
    """Say what a file of dialogues, preferences or episodes is and what is wrong with it, row by
    row; convert it with --to. Exit code 2 if a row cannot be used."""
    path = None
    if to is not None:
        path = output or Path(f"{file.stem}.{to}.jsonl")
        if path.exists() and not overwrite:
            raise UsageError(f"{path} exists; pass --overwrite to replace it, or another --output.")
    elif output is not None:
        raise UsageError("--output needs --to, which says what to write there.")
    from stages.evaluation.data_check import data_command

    result = data_command(file, to=to and to.value, output=path, drop_bad=drop_bad)
    if options.json:
        emit(result)
