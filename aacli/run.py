"""``aac run``: all stages and their evaluations, in order."""

from __future__ import annotations

import typer

from aacli.command import command, emit
from aacli.folders import pipeline_request
from aacli.options import RecipePath, StageOptions


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "run", example="aac run recipes/quickstart.yaml")(run)


def run(recipe: RecipePath, options: StageOptions) -> None:
    """Run all three stages and their evaluations in order; finished stages are skipped.

    --output-dir is the root that holds sft/, reward/ and rl/.
    """
    loaded = options.load(recipe)
    from stages.pipeline import run as run_pipeline

    summary = run_pipeline(loaded, pipeline_request(loaded, options))
    if options.json:
        emit(summary)
