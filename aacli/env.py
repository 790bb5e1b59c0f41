"""``aac env``: list and check environments."""

from __future__ import annotations

import typer

from aacli.command import command, emit
from aacli.options import Basics, RecipeOptions, RecipePath


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(
        no_args_is_help=True, help="List and check environments.", epilog="Example: aac env list"
    )
    command(group, "list", example="aac env list")(list_environments)
    command(group, "check", example="aac env check recipes/quickstart.yaml")(check)
    app.add_typer(group, name="env")


def list_environments(options: Basics) -> None:
    """Name the environments a recipe can choose."""
    from stages.interaction.environments import ENVIRONMENTS

    if options.json:
        emit(sorted(ENVIRONMENTS))
    for name in [] if options.json else sorted(ENVIRONMENTS):
        typer.echo(name)


def check(recipe: RecipePath, options: RecipeOptions) -> None:
    """Play the recipe's environment with the expert and with fools; say what is wrong with it."""
    loaded = options.load(recipe)
    from stages.evaluation.check import check_command

    result = check_command(loaded)
    if options.json:
        emit(result)
