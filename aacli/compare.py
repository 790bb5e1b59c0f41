"""``aac compare``: variants of a recipe, each under the same seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aacli.command import command, emit
from aacli.folders import RUNS
from aacli.options import StudyOptions

RecipeOrStudy = Annotated[
    Path,
    typer.Argument(
        metavar="RECIPE|STUDY",
        help="A recipe, or a study: a YAML file with recipe, variants, and seeds and set if need "
        "be.",
        show_default=False,
    ),
]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH=A,B,C",
        help="Values of a recipe key; repeatable, then every combination is a variant.",
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        metavar="N|S,S,...",
        help="How many seeds (5: 0 to 4), or which.",
        show_default="the study's, else 3",
    ),
]
SftRoot = Annotated[
    list[Path] | None,
    typer.Option(
        "--sft-root",
        metavar="DIR",
        help="Take DIR/seed-<s>/sft (and reward) of an earlier study where they fit; repeatable.",
    ),
]
Jobs = Annotated[
    int, typer.Option(min=1, help="Processes that train at once; they share the CPU's threads.")
]
Plot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.png", help="File of the picture.", show_default="compare.png in the folder"
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    example = (
        "aac compare recipes/quickstart.yaml --vary rl.critic.view.history=true,false --seeds 3"
    )
    command(app, "compare", example=example)(compare)


def compare(
    recipe: RecipeOrStudy,
    options: StudyOptions,
    vary: Vary = None,
    seeds: Seeds = None,
    sft_root: SftRoot = None,
    jobs: Jobs = 1,
    plot: Plot = None,
) -> None:
    """Train variants of a recipe under the same seeds; a table with intervals, JSON and a picture.

    All variants of a seed start from one SFT run, unless they change what it depends on. What is
    finished is not run again: after an interrupt the same command goes on.
    """
    from stages.study.run import StudyRequest
    from stages.study.run import compare as run_study
    from stages.study.study import load_study

    study = load_study(recipe, vary=vary or (), seeds=seeds)
    request = StudyRequest(
        output_dir=options.output_dir or RUNS / "compare" / study.name,
        overrides=options.set or (),
        sft_roots=sft_root or (),
        workers=jobs,
        overwrite=options.overwrite,
        resume=options.resume,
        dry_run=options.dry_run,
        plot=plot,
    )
    result = run_study(study, request)
    if options.json:
        emit(result)
