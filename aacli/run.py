"""``aac run``: all stages and their evaluations, in order."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from aacli.command import command, emit
from aacli.folders import pipeline_request
from aacli.launch import check_launch, relaunched
from aacli.options import RecipePath, StageOptions
from aacli.outcome import suggest, typed
from stages.common.console import show
from stages.common.files import read_json
from stages.common.run_folder import RunRequest

if TYPE_CHECKING:
    from stages.recipe.models import Recipe


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "run", example="aac run recipes/quickstart.yaml")(run)


def run(recipe: RecipePath, options: StageOptions) -> None:
    """Run all three stages and their evaluations in order; finished stages are skipped.

    --output-dir is the root that holds sft/, reward/ and rl/. With --launch each stage is started
    in several processes, one stage after the other; evaluations are made by this one.
    """
    loaded = options.load(recipe)
    check_launch(options)
    from stages.pipeline import run as run_pipeline

    request = pipeline_request(loaded, options)
    elsewhere = [partial(_launched, options, recipe)] if options.launch else []
    summary = run_pipeline(loaded, request, *elsewhere)
    if options.json:
        emit(summary)
    elif request.dry_run:
        show("run: a dry run trains and writes nothing.")
    else:
        suggest(*_next(recipe, options, request.output_dir / "rl"))


def _launched(
    options: StageOptions, path: Path, name: str, _: Recipe, request: RunRequest
) -> dict[str, Any]:
    """One stage in several processes, by its own command; the figures it left."""
    command = "train-reward" if name == "reward" else name
    flags = {parent: folder for parent, folder in request.parents.items() if parent != "critic"}
    words = shlex.split(typed(command, path, options, output_dir=request.output_dir, **flags))[1:]
    words += ["--resume", request.resume]
    words += [flag for flag, on in _switches(request, options) if on]
    relaunched(options, words)
    return dict(read_json(request.output_dir / "summary.json"))


def _switches(request: RunRequest, options: StageOptions) -> list[tuple[str, bool]]:
    return [
        ("--overwrite", request.overwrite),
        ("--quiet", options.quiet or options.json),
        ("--debug", options.debug),
    ]


def _next(recipe: Path, options: StageOptions, actor: Path) -> list[str]:
    """Look at the run, talk to the agent, measure it, and the same with data of one's own."""
    own = "--set sft.data=dialogues.jsonl --set reward.data=preferences.jsonl"
    return [
        shlex.join(["aac", "report", str(actor.parent)]),
        typed("chat", recipe, options, actor=actor),
        f"{typed('chat', recipe, options, actor=actor)} --task 0",
        typed("eval", recipe, options, actor=actor),
        f"{typed('run', recipe, options, output_dir=Path('runs/mine'))} {own}",
    ]
