"""``aac audit``: a person reads the episodes that a run kept, and says good or bad of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from stages.common.console import show
from stages.common.errors import UsageError
from stages.common.files import write_json
from stages.evaluation.audit import (
    FOLDER,
    VERDICTS,
    Pick,
    read_picks,
    read_verdicts,
    run_folder,
)
from stages.evaluation.tables import wrapped
from stages.interaction.states.window import cut_middle
from stages.interaction.terminal import Terminal

GOOD, BAD = "good", "bad"
WIDTH = 80
LONGEST_SHOWN = 600
"""Characters of an action or a result that are shown."""
_KEYS = "g good   b bad   b 2,3 bad in these turns   s skip   q leave"


def audit_command(
    run: Path,
    *,
    pick: str | None = None,
    verdict: str | None = None,
    turns: Sequence[int] = (),
    note: str = "",
    ask: bool = False,
) -> dict[str, Any]:
    """Show what a run kept, and take verdicts: the one given, or those of the person asked.

    Returns what ``--json`` prints: ``picks`` with their verdicts, and the file these lie in.
    """
    run = run_folder(run)
    known = {row["id"]: row for row in read_picks(run)}
    if pick is not None and pick not in known:
        raise UsageError(f"--pick {pick} is unknown; {run} keeps {', '.join(known)}.")
    chosen = [known[pick]] if pick else list(known.values())
    if verdict is not None:
        if pick is None:
            raise UsageError("--verdict says something of one episode; name it with --pick.")
        record(run, known[pick], verdict, turns, note)
    elif ask:
        _interview(run, [row for row in chosen if pick or row["id"] not in read_verdicts(run)])
    else:
        for row in chosen:
            show(page(row, read_verdicts(run).get(row["id"])))
    said = read_verdicts(run)
    rows = [row | {"verdict": said.get(row["id"], {}).get("verdict")} for row in chosen]
    return {"run": str(run), "verdicts": str(run / FOLDER / VERDICTS), "picks": rows}


def record(
    run: Path, row: Pick, verdict: str, turns: Sequence[int] = (), note: str = ""
) -> dict[str, Any]:
    """Keep a verdict, atomically. ``turns`` (from 1): where it went wrong; none: everywhere.

    UsageError for a turn that the episode has not.
    """
    count = len(row["turns"])
    if wrong := [turn for turn in turns if not 1 <= turn <= count]:
        raise UsageError(f"turn {wrong[0]} of {row['id']} does not exist; it has 1 to {count}.")
    meant = sorted(set(turns)) or list(range(1, count + 1))
    entry = {
        "verdict": verdict,
        "turns": meant,
        "actions": [row["turns"][turn - 1]["said"] for turn in meant],
        "note": note,
        "goal": row["goal"],
        "task_id": row["task_id"],
    }
    write_json(run / FOLDER / VERDICTS, read_verdicts(run) | {row["id"]: entry})
    return entry


def page(row: Pick, verdict: Mapping[str, Any] | None = None) -> Group:
    """One episode, turn by turn, no wider than a terminal of 80 columns."""
    end = "success" if row["success"] else "no success"
    parts = ", ".join(f"{name} {value:+.2f}" for name, value in row["components"].items())
    lines = [
        Text(f"{row['id']}  iteration {row['step']}, {row['kind']}: {end}", style="bold"),
        Text(wrapped(row["goal"], WIDTH)),
        Text(wrapped(f"reward {row['return']:.2f}" + (f" ({parts})" if parts else ""), WIDTH)),
        *(Text(wrapped(f"picked: {reason}", WIDTH), style="yellow") for reason in row["reasons"]),
    ]
    if verdict:
        said = f"verdict: {verdict['verdict']} in turns {', '.join(map(str, verdict['turns']))}"
        lines.append(Text(wrapped(f"{said} {verdict['note']}", WIDTH), style="bold red"))
    for number, turn in enumerate(row["turns"], start=1):
        lines += _turn_lines(number, turn)
    return Group(*lines, Text(""))


def _turn_lines(number: int, turn: Mapping[str, Any]) -> list[Text]:
    paid = ", ".join(f"{name} {value:+.2f}" for name, value in turn["paid"].items())
    said = cut_middle(turn["said"], LONGEST_SHOWN)
    lines = [Text(wrapped(f"{number}. {said}", WIDTH, 3), style="cyan")]
    lines += [
        Text(wrapped("   " + cut_middle(text, LONGEST_SHOWN), WIDTH, 3), style="dim")
        for text in turn["seen"]
    ]
    return lines + ([Text(wrapped(f"   paid: {paid}", WIDTH, 3))] if paid else [])


def _interview(run: Path, rows: Sequence[Pick]) -> None:
    """Each episode in turn; an end of input leaves."""
    desk = Terminal()
    if not rows:
        desk.show("every episode has its verdict; name one with --pick to change it.")
    for row in rows:
        show(page(row))
        while (key := desk.ask(f"{_KEYS} > ")) is not None:
            problem = _answered(run, row, key)
            if problem is None:
                break
            desk.show(problem)
        if key is None or key.lower() in ("q", "leave"):
            return


def _answered(run: Path, row: Pick, key: str) -> str | None:
    """Do what a key says; in words what was wrong with it, None if nothing."""
    letter, _, rest = key.partition(" ")
    if letter.lower() in ("s", "q"):
        return None
    verdict = {"g": GOOD, "b": BAD}.get(letter.lower())
    if verdict is None:
        return f"{key} is no key; expected {_KEYS}."
    try:
        record(run, row, verdict, turn_numbers(rest))
    except UsageError as error:
        return str(error)
    return None


def turn_numbers(text: str) -> list[int]:
    """``2,3`` as numbers; none of nothing. UsageError for other texts."""
    words = text.replace(",", " ").split()
    if not all(word.isdecimal() for word in words):
        raise UsageError(f"turns = {text!r}; expected numbers from 1 with commas between them.")
    return [int(word) for word in words]
