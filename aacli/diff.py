"""``aac diff``: two actors on the same held-out tasks."""

from __future__ import annotations

from typing import Annotated

import typer

from aacli.command import command, emit
from aacli.evaluate import Episodes, Greedy
from aacli.options import RecipeOptions, RecipePath

First = Annotated[
    str, typer.Argument(metavar="A", help="Model folder of one actor.", show_default=False)
]
Second = Annotated[
    str, typer.Argument(metavar="B", help="Model folder of the other.", show_default=False)
]
Show = Annotated[
    int, typer.Option(min=0, help="How many diverging episodes to show; decisive ones first.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    example = "aac diff recipes/quickstart.yaml runs/quickstart/rl runs/quickstart/sft"
    command(app, "diff", example=example)(diff)


def diff(
    recipe: RecipePath,
    first: First,
    second: Second,
    options: RecipeOptions,
    greedy: Greedy = False,
    episodes: Episodes = None,
    show: Show = 3,
) -> None:
    """Play two actors on the same held-out tasks: which only A solves, which only B, how sure.

    Both meet the same tasks with the same random keys. The interval of the difference is
    Newcombe's for paired shares, p is McNemar's exact one; --seed stands for evaluation.seed here.
    """
    given = {"evaluation.episodes": episodes, "evaluation.seed": options.seed}
    loaded = options.load(recipe, *(f"{k}={v}" for k, v in given.items() if v is not None))
    from stages.evaluation.diff import diff_command
    from stages.rl.run import load_reviewer

    result = diff_command(loaded, first, second, greedy=greedy, shown=show, reviewers=load_reviewer)
    if options.json:
        emit(result)
