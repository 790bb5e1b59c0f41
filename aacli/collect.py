"""``aac collect``: rows for the three stages, from an environment."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from aacli.command import command, emit
from aacli.folders import RUNS, default_actor
from aacli.options import ActorFolder, RecipeOptions, RecipePath
from stages.common.errors import UsageError


class Kind(StrEnum):
    """What can be collected."""

    DEMONSTRATIONS = "demonstrations"
    PREFERENCES = "preferences"
    EXPERIENCE = "experience"


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
        show_default="runs/<recipe name>/<kind>.jsonl",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file.")]


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
) -> None:
    """Write rows that sft, train-reward or rl --offline can read: the expert's dialogues, ranked
    replies, or an actor's whole episodes (a pool)."""
    if episodes is not None and kind is not Kind.EXPERIENCE:
        raise UsageError(
            f"--episodes is of experience; {kind} are as many as the recipe's sft.demonstrations "
            "or reward.tasks says."
        )
    loaded = options.load(recipe, *([f"rl.offline.episodes={episodes}"] if episodes else []))
    path = output or RUNS / loaded.name / f"{kind}.jsonl"
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists; pass --overwrite to replace it, or another --output.")
    from stages.evaluation.collect import collect_command
    from stages.rl.run import load_reviewer

    if kind is not Kind.DEMONSTRATIONS and actor is None:
        actor = str(default_actor(loaded))
    result = collect_command(loaded, kind.value, actor=actor, output=path, reviewers=load_reviewer)
    if options.json:
        emit(result)
