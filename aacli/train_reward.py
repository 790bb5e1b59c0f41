"""``aac train-reward``: stage 2."""

from __future__ import annotations

import typer

from aacli.command import command
from aacli.folders import stage_request
from aacli.launch import relaunched
from aacli.options import RecipePath, SftFolder, StageOptions
from aacli.outcome import beside, report, suggest, typed


def register(app: typer.Typer) -> None:
    """Add the command."""
    example = "aac train-reward recipes/quickstart.yaml --sft runs/quickstart/sft"
    command(app, "train-reward", example=example)(train_reward)


def train_reward(recipe: RecipePath, options: StageOptions, sft: SftFolder = None) -> None:
    """Stage 2: teach a reward model which of two replies is better; makes a scorer of turns."""
    loaded = options.load(recipe)
    request = stage_request(loaded, options, "reward", {"sft": sft})
    if relaunched(options):
        return
    from stages.reward.run import run

    report("reward", run(loaded, request), request, options)
    if not request.dry_run:
        output = beside(request, options, "rl")
        suggest(typed("rl", recipe, options, output_dir=output, sft=sft))
