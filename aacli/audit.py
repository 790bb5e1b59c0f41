"""``aac audit``: a person reads the episodes that a run kept for it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from aacli.command import command, emit
from aacli.options import Basics
from stages.common.console import say
from stages.common.errors import UsageError

Run = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="Folder of aac rl or of aac run.", show_default=False),
]
Pick = Annotated[
    str | None, typer.Option(metavar="ID", help="Only this episode.", show_default="all")
]
Verdict = Annotated[
    Literal["good", "bad"] | None,
    typer.Option(help="Say it here instead of being asked; needs --pick.", show_default=False),
]
Turns = Annotated[
    str, typer.Option(metavar="2,3", help="Turns a verdict is about.", show_default="all")
]
Ask = Annotated[
    bool | None,
    typer.Option(
        "--ask/--show",
        help="Ask for a verdict on each, or show them only.",
        show_default="asked at a terminal",
    ),
]
Note = Annotated[str, typer.Option(help="A word on the verdict.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "audit", example="aac audit runs/quickstart/rl")(audit)


def audit(
    run: Run,
    options: Basics,
    pick: Pick = None,
    verdict: Verdict = None,
    turns: Turns = "",
    note: Note = "",
    ask: Ask = None,
) -> None:
    """Read the best paid and the most suspicious episodes of each evaluation, turn by turn.

    You are asked for a verdict on each: g good, b bad (b 2,3: in these turns), s
    skip, q leave. What you mark as bad is fined in a later run by rl.rewards.audited.
    """
    from stages.evaluation.verdicts import audit_command, turn_numbers

    if verdict is None and (turns or note):
        raise UsageError("--turns and --note go with a verdict; give --verdict good or bad.")
    if verdict is not None and ask:
        raise UsageError("--verdict says it and --ask asks for it; give one of them.")
    asked = (sys.stdin.isatty() and not options.json) if ask is None else ask
    result = audit_command(
        run, pick=pick, verdict=verdict, turns=turn_numbers(turns), note=note, ask=asked
    )
    if options.json:
        emit(result)
    elif verdict or asked:
        _tell(result)


def _tell(result: Mapping[str, Any]) -> None:
    """Where the verdicts are, and what is done with those that are bad."""
    said = [row["verdict"] for row in result["picks"] if row["verdict"]]
    say(f"{len(said)} of {len(result['picks'])} have a verdict, kept in {result['verdicts']}")
    if "bad" in said:
        say("to have the bad ones fined, add to the next aac rl:")
        say("  " + shlex.join(["--set", f"rl.rewards.audited.verdicts={result['verdicts']}"]),
            whole=True)  # fmt: skip
