"""``aac recipes``: list, show, validate."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from aacli.command import command, emit
from aacli.options import Basics, RecipeOptions, RecipePath, recipe_files
from stages.common import console
from stages.common.errors import UsageError

Folder = Annotated[Path, typer.Argument(help="Folder to look in.")]
RecipePaths = Annotated[
    list[Path],
    typer.Argument(
        metavar="RECIPE...", help="Recipe files.", show_default=False, autocompletion=recipe_files
    ),
]
Plain = Annotated[bool, typer.Option("--plain", help="Leave out the line about each key.")]


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(
        no_args_is_help=True,
        help="List, show and validate recipes.",
        epilog="Example: aac recipes list",
    )
    command(group, "list", example="aac recipes list")(list_recipes)
    command(
        group, "show", example="aac recipes show recipes/quickstart.yaml --set rl.ppo.epochs=4"
    )(show)
    command(group, "validate", example="aac recipes validate recipes/*.yaml")(validate)
    app.add_typer(group, name="recipes")


def list_recipes(options: Basics, folder: Folder = Path("recipes")) -> None:
    """Name each recipe in a folder and what it is for."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; give the folder that holds your recipes.")
    rows = [{"path": str(p), "purpose": _purpose(p)} for p in sorted(folder.rglob("*.yaml"))]
    if options.json:
        emit(rows)
    else:
        console.listing({row["path"]: row["purpose"] for row in rows})


def show(recipe: RecipePath, options: RecipeOptions, plain: Plain = False) -> None:
    """Print the resolved recipe: every key, its value, its one line; it can be run again."""
    from stages.recipe.describe import describe

    loaded = options.load(recipe)
    if options.json:
        emit(loaded.model_dump(mode="json"))
    else:
        typer.echo(describe(loaded, comments=not plain), nl=False)


def validate(recipes: RecipePaths, options: RecipeOptions) -> None:
    """Check recipes without running them; exit code 2 if any is wrong."""
    problems: dict[str, str | None] = {}
    for path in recipes:
        try:
            options.load(path)
            problems[str(path)] = None
        except UsageError as error:
            problems[str(path)] = str(error)
    _show_problems(problems, options)


def _show_problems(problems: dict[str, str | None], options: Basics) -> None:
    wrong: list[Any] = [sentence for sentence in problems.values() if sentence]
    if options.json:
        emit({"valid": not wrong, "problems": problems})
    for path, sentence in problems.items():
        if sentence is None and not options.json:
            typer.echo(f"{path} is valid.")
    if wrong:
        raise UsageError("\naac: ".join(wrong))


def _purpose(path: Path) -> str:
    """What the comment on top says it is for: up to the end of the first sentence."""
    found = re.search(
        r"^# *purpose: *(.+(?:\n#  +.+)*)", path.read_text("utf-8"), re.IGNORECASE | re.MULTILINE
    )
    text = re.sub(r"\s*\n# +", " ", found.group(1)) if found else ""
    return re.split(r"(?<=[.?!]) ", text)[0]
