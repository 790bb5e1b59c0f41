"""``aac env``: list and check environments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aacli.command import command, emit
from aacli.options import Basics, RecipeOptions
from stages.common.console import listing
from stages.common.errors import UsageError

NameOrRecipe = Annotated[
    str,
    typer.Argument(
        metavar="NAME|RECIPE", help="An environment's name, or a recipe.", show_default=False
    ),
]


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(
        no_args_is_help=True, help="List and check environments.", epilog="Example: aac env list"
    )
    command(group, "list", example="aac env list")(list_environments)
    command(group, "check", example="aac env check recipes/quickstart.yaml")(check)
    app.add_typer(group, name="env")


def list_environments(options: Basics) -> None:
    """Name the environments a recipe can choose, and what each is."""
    from stages.interaction.environments import ENVIRONMENTS

    if options.json:
        emit(sorted(ENVIRONMENTS))
        return
    told = {name: (ENVIRONMENTS[name][0].__doc__ or "").split("\n\n")[0] for name in ENVIRONMENTS}
    listing({name: " ".join(told[name].split()) for name in sorted(told)})


def check(environment: NameOrRecipe, options: RecipeOptions) -> None:
    """Play an environment with the expert and with fools; say what is wrong with it.

    Exit code 1 if it breaks the contract of environments.
    """
    from stages.interaction.environments import ADAPTERS, ENVIRONMENTS

    if environment in ADAPTERS and not Path(environment).is_file():
        raise UsageError(
            f"{environment} plays a world of yours, so it needs a recipe with "
            f"environment: {{{environment}: ...}}; give that file."
        )
    if environment in ENVIRONMENTS and not Path(environment).is_file():
        chosen = ENVIRONMENTS[environment][0]()
    else:
        chosen = options.load(Path(environment)).environment
    from stages.evaluation.check import check_command, require_kept

    result = check_command(chosen)
    if options.json:
        emit(result)
    require_kept(result)
