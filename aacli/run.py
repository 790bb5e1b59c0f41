"""``aac run``: all stages and their evaluations, in order."""

from __future__ import annotations

from pathlib import Path

import typer

from aacli.command import command, emit
from aacli.folders import pipeline_request
from aacli.options import RecipePath, StageOptions
from aacli.outcome import suggest, typed
from stages.common.console import show


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "run", example="aac run recipes/quickstart.yaml")(run)


def run(recipe: RecipePath, options: StageOptions) -> None:
    """Run all three stages and their evaluations in order; finished stages are skipped.

    --output-dir is the root that holds sft/, reward/ and rl/.
    """
    loaded = options.load(recipe)
    from stages.pipeline import run as run_pipeline

    request = pipeline_request(loaded, options)
    summary = run_pipeline(loaded, request)
    if options.json:
        emit(summary)
    elif request.dry_run:
        show("run: a dry run trains and writes nothing.")
    else:
        suggest(*_next(recipe, options, request.output_dir / "rl"))


def _next(recipe: Path, options: StageOptions, actor: Path) -> list[str]:
    """Talk to the agent, measure it, watch a task, and the same with data of one's own."""
    own = "--set sft.data=dialogues.jsonl --set reward.data=preferences.jsonl"
    return [
        typed("chat", recipe, options, actor=actor),
        f"{typed('chat', recipe, options, actor=actor)} --task 0",
        typed("eval", recipe, options, actor=actor),
        f"{typed('run', recipe, options, output_dir=Path('runs/mine'))} {own}",
    ]
