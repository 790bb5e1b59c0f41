"""Options that commands share, each written once.

A command takes one parameter annotated with one of these dataclasses; ``aacli.command`` turns the
dataclass's fields into the command's options.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stages.recipe.models import Recipe

SEVERAL, EVERYWHERE = "Several processes", "Of every command"
"""Headings in the help."""


def recipe_files(incomplete: str) -> list[str]:
    """What Tab makes of the beginning of a recipe's path: YAML files, and folders on the way."""
    folder, beginning = Path(incomplete).parent, Path(incomplete).name
    if incomplete.endswith("/"):
        folder, beginning = Path(incomplete), ""
    try:
        found = sorted(p for p in folder.iterdir() if p.name.startswith(beginning))
    except OSError:
        return []
    shown = [p for p in found if not p.name.startswith(".") or beginning.startswith(".")]
    files = [str(p) for p in shown if p.suffix in (".yaml", ".yml") and p.is_file()]
    return files + [f"{p}/" for p in shown if p.is_dir()]


RecipePath = Annotated[
    Path,
    typer.Argument(
        metavar="RECIPE",
        help="A recipe file (YAML).",
        show_default=False,
        autocompletion=recipe_files,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override a recipe key; repeatable."),
]
Resume = Annotated[str, typer.Option(metavar="auto|never|DIR", help="Checkpoint to go on from.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace a finished run in the output folder.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Validate everything, train nothing.")]
LaunchHow = Annotated[
    str | None,
    typer.Option(
        "--launch",
        metavar="HOW",
        help="Train in several processes: ddp, zero2, zero3, zero3-cpu, zero3-nvme, or the FILE of "
        'a DeepSpeed configuration. With make: make rl ARGS="--launch zero3 --processes 8".',
        show_default=False,
        rich_help_panel=SEVERAL,
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="How many, over all machines.",
        show_default="one per GPU",
        rich_help_panel=SEVERAL,
    ),
]
Hostfile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Machines, a line 'host slots=8' for each.",
        show_default=False,
        rich_help_panel=SEVERAL,
    ),
]


@dataclass(frozen=True)
class Basics:
    """What every command has."""

    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print the result as one JSON object on stdout.",
            rich_help_panel=EVERYWHERE,
        ),
    ] = False
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", help="Show results and warnings only.", rich_help_panel=EVERYWHERE
        ),
    ] = False
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", help="Show the stack trace of an error.", rich_help_panel=EVERYWHERE
        ),
    ] = False


@dataclass(frozen=True)
class RecipeOptions(Basics):
    """What every command with a recipe has."""

    set: Overrides = None
    seed: Annotated[int | None, typer.Option(help="Override the recipe's seed.")] = None

    def load(self, path: Path, *overrides: str) -> Recipe:
        """The recipe with the person's overrides, then those of the command itself."""
        from stages.recipe.load import load_recipe

        return load_recipe(path, [*(self.set or ()), *overrides], self.seed)


@dataclass(frozen=True)
class StageOptions(RecipeOptions):
    """What every command that trains has."""

    output_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of the run.", show_default="runs/<recipe name>/<stage>"),
    ] = None
    resume: Resume = "auto"
    overwrite: Overwrite = False
    dry_run: DryRun = False
    launch: LaunchHow = None
    processes: Processes = None
    hostfile: Hostfile = None


@dataclass(frozen=True)
class StudyOptions(Basics):
    """What a command that trains many times has; it takes several seeds, not one."""

    set: Overrides = None
    output_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of the study.", show_default="runs/compare/<name>"),
    ] = None
    resume: Resume = "auto"
    overwrite: Overwrite = False
    dry_run: DryRun = False


SftFolder = Annotated[
    Path | None,
    typer.Option(
        "--sft",
        metavar="DIR",
        help="Folder of the SFT run.",
        show_default="sft beside the output folder, else runs/<recipe name>/sft",
    ),
]
RewardFolder = Annotated[
    Path | None,
    typer.Option(
        "--reward",
        metavar="DIR",
        help="Folder of the reward run.",
        show_default="reward beside the output folder, else runs/<recipe name>/reward",
    ),
]
ActorFolder = Annotated[
    str | None,
    typer.Option(
        "--actor",
        metavar="DIR",
        help="Model folder or hub id of the agent.",
        show_default="the newer of runs/<recipe name>/rl and runs/<recipe name>/sft",
    ),
]
