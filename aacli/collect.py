"""``aac collect``: rows for the three stages, from an environment."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aacli.command import command, emit
from aacli.folders import RUNS, default_actor
from aacli.options import ActorFolder, RecipeOptions, RecipePath
from aacli.outcome import suggest, typed
from stages.common.errors import UsageError

if TYPE_CHECKING:
    from stages.recipe.models import Recipe


class Kind(StrEnum):
    """What can be collected."""

    DEMONSTRATIONS = "demonstrations"
    PREFERENCES = "preferences"
    EXPERIENCE = "experience"


_COUNTS = {Kind.DEMONSTRATIONS: "sft.demonstrations", Kind.PREFERENCES: "reward.tasks"}
"""Keys that say how much is collected of what ``--episodes`` is not about."""
WhatKind = Annotated[
    Kind, typer.Argument(metavar="KIND", help="demonstrations, preferences or experience.")
]
Episodes = Annotated[
    int | None,
    typer.Option(
        min=1, help="Of experience: how many to play.", show_default="rl.offline.episodes"
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        help="File of JSON lines to write.",
        show_default="runs/<recipe name>/<kind>.jsonl; with --human human-preferences.jsonl",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file.")]

Human = Annotated[
    bool,
    typer.Option(
        "--human",
        help="You choose between two replies; the same command goes on where you quit.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    example = "aac collect preferences recipes/quickstart.yaml --output preferences.jsonl"
    command(app, "collect", example=example)(collect)


def collect(
    kind: WhatKind,
    recipe: RecipePath,
    options: RecipeOptions,
    actor: ActorFolder = None,
    output: Output = None,
    episodes: Episodes = None,
    overwrite: Overwrite = False,
    human: Human = False,
) -> None:
    """Write rows that sft, train-reward or rl --offline can read: the expert's dialogues, ranked
    replies, or an actor's whole episodes (a pool)."""
    if episodes is not None and kind is not Kind.EXPERIENCE:
        raise UsageError(
            f"--episodes is of experience; how many {kind} there are, the recipe's {_COUNTS[kind]} "
            "decides."
        )
    loaded = options.load(recipe, *([f"rl.offline.episodes={episodes}"] if episodes else []))
    if human and kind is not Kind.PREFERENCES:
        raise UsageError(f"--human chooses between replies; {kind} are collected without it.")
    path = output or RUNS / loaded.name / f"{'human-' if human else ''}{kind}.jsonl"
    if path.exists() and not (overwrite or human):
        raise UsageError(f"{path} exists; pass --overwrite to replace it, or another --output.")
    if kind is not Kind.DEMONSTRATIONS and actor is None:
        actor = str(default_actor(loaded))
    if human:
        result = _labelled(loaded, str(actor), path, overwrite)
    else:
        result = _collected(loaded, kind, actor, path)
    if options.json:
        emit(result)
    elif kind is Kind.EXPERIENCE:
        suggest(f"{typed('rl', recipe, options)} --offline {shlex.quote(str(path))}")
    elif human and result["rows"]:
        data = shlex.quote(f"reward.data={path}")
        suggest(f"{typed('train-reward', recipe, options)} --set {data}")


def _collected(recipe: Recipe, kind: Kind, actor: str | None, output: Path) -> dict[str, Any]:
    from stages.evaluation.collect import collect_command
    from stages.rl.run import load_reviewer

    return collect_command(recipe, kind.value, actor=actor, output=output, reviewers=load_reviewer)


def _labelled(recipe: Recipe, actor: str, output: Path, overwrite: bool) -> dict[str, Any]:
    from stages.evaluation.labelling import label_command
    from stages.rl.run import load_reviewer

    return label_command(recipe, actor, output=output, overwrite=overwrite, reviewers=load_reviewer)
