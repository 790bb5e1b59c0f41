"""Which folder a stage writes to, and where it finds the stages before it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from aacli.options import StageOptions
from stages.common.errors import HandoffError
from stages.common.run_folder import MANIFEST, RunRequest, check_folder, is_finished

if TYPE_CHECKING:
    from stages.recipe.models import Recipe

RUNS = Path("runs")


def stage_request(
    recipe: Recipe,
    options: StageOptions,
    stage: str,
    parents: Mapping[str, Path | None] | None = None,
) -> RunRequest:
    """The request for one stage. ``parents`` maps ``sft`` and ``reward`` to the person's flags.

    Raises HandoffError or UsageError at once when the output folder may not be written, before
    anything heavy is imported.
    """
    output = options.output_dir or RUNS / recipe.name / stage
    found = {
        name: flag or default_parent(recipe, name, output) for name, flag in (parents or {}).items()
    }
    request = _request(options, output, found)
    check_folder(request, stage)
    return request


def pipeline_request(recipe: Recipe, options: StageOptions) -> RunRequest:
    """The request for ``aac run``: the root that holds sft/, reward/ and rl/."""
    return _request(options, options.output_dir or RUNS / recipe.name, {})


def default_parent(recipe: Recipe, name: str, output: Path) -> Path:
    """The sibling of the output folder if it is there, else the recipe's own run folder."""
    sibling = output.parent / name
    return sibling if sibling.is_dir() else RUNS / recipe.name / name


def default_actor(recipe: Recipe) -> Path:
    """The actor of the recipe's runs (after RL or after SFT) that was finished last.

    Raises HandoffError when neither stage has run to its end.
    """
    folders = [RUNS / recipe.name / stage for stage in ("rl", "sft")]
    finished = [folder for folder in folders if is_finished(folder)]
    if not finished:
        raise HandoffError(
            f"neither {folders[0]} nor {folders[1]} holds a finished run; train an actor first, or "
            "name a model folder with --actor."
        )
    return max(finished, key=lambda folder: (folder / MANIFEST).stat().st_mtime)


def require_reward(weight: float, folder: Path) -> None:
    """Raise HandoffError when the recipe weighs a reward model that is not there."""
    if weight > 0 and not folder.is_dir():
        raise HandoffError(
            f"rl.rewards.reward_model = {weight:g} needs a reward model, but {folder} does not "
            "exist; run aac train-reward first, name one with --reward, or pass --no-reward."
        )


def _request(options: StageOptions, output: Path, parents: Mapping[str, Path]) -> RunRequest:
    return RunRequest(
        output_dir=output,
        overwrite=options.overwrite,
        resume=options.resume,
        dry_run=options.dry_run,
        quiet=options.quiet,
        parents=parents,
    )
