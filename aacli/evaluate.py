"""``aac eval``: held-out episodes of an actor."""

from __future__ import annotations

from typing import Annotated

import typer

from aacli.command import command, emit
from aacli.folders import default_actor
from aacli.options import ActorFolder, RecipeOptions, RecipePath

Greedy = Annotated[
    bool, typer.Option("--greedy", help="Take the likeliest token each time instead of sampling.")
]
Episodes = Annotated[int | None, typer.Option(help="Override evaluation.episodes.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    example = "aac eval recipes/quickstart.yaml --actor runs/quickstart/rl --json"
    command(app, "eval", example=example)(evaluate)


def evaluate(
    recipe: RecipePath,
    options: RecipeOptions,
    actor: ActorFolder = None,
    greedy: Greedy = False,
    episodes: Episodes = None,
) -> None:
    """Play held-out episodes and measure success, drift, repeated mistakes and loops."""
    overrides = [] if episodes is None else [f"evaluation.episodes={episodes}"]
    loaded = options.load(recipe, *overrides)
    chosen = actor or str(default_actor(loaded))
    from stages.evaluation.run import evaluate_command

    result = evaluate_command(loaded, chosen, greedy=greedy)
    if options.json:
        emit(result)
