"""``aac sft``: stage 1."""

from __future__ import annotations

import typer

from aacli.command import command
from aacli.folders import stage_request
from aacli.launch import relaunched
from aacli.options import RecipePath, StageOptions
from aacli.outcome import beside, report, suggest, typed


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "sft", example="aac sft recipes/quickstart.yaml --set sft.steps=100")(sft)


def sft(recipe: RecipePath, options: StageOptions) -> None:
    """Stage 1: teach the model wanted replies by supervised fine-tuning; makes the first actor."""
    loaded = options.load(recipe)
    request = stage_request(loaded, options, "sft")
    if relaunched(options):
        return
    from stages.rl.run import review_demonstrations
    from stages.sft.run import run

    report("sft", run(loaded, request, reviews=review_demonstrations), request, options)
    if not request.dry_run:
        output = beside(request, options, "reward")
        suggest(typed("train-reward", recipe, options, output_dir=output))
