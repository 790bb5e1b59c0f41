"""``aac eval``: held-out episodes of an actor."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from aacli.command import command, emit
from aacli.folders import default_actor
from aacli.options import ActorFolder, RecipePath
from aacli.supervision import SupervisedRecipeOptions
from stages.common.errors import UsageError


class Scripted(StrEnum):
    """Policies without a model, as a yardstick."""

    NULL = "null"
    RANDOM = "random"
    FREQUENT = "frequent"
    EXPERT = "expert"


class Split(StrEnum):
    """Sets of tasks."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


Greedy = Annotated[
    bool,
    typer.Option("--greedy/--sampled", help="Take the likeliest token each time, or sample."),
]
Episodes = Annotated[
    int | None, typer.Option(help="How many tasks.", show_default="evaluation.episodes")
]
WhichSplit = Annotated[
    Split | None, typer.Option(help="Which tasks.", show_default="evaluation.split")
]
Policy = Annotated[
    Scripted | None,
    typer.Option(
        help="Measure a scripted policy instead: it says nothing, acts at random, gives the most "
        "frequent answer, or is the environment's expert."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    example = "aac eval recipes/quickstart.yaml --actor runs/quickstart/rl --json"
    command(app, "eval", example=example)(evaluate)


def evaluate(
    recipe: RecipePath,
    options: SupervisedRecipeOptions,
    actor: ActorFolder = None,
    policy: Policy = None,
    greedy: Greedy = False,
    episodes: Episodes = None,
    split: WhichSplit = None,
) -> None:
    """Play held-out episodes and measure success, drift, repeated mistakes and loops.

    Equal recipes and seeds give equal figures; --seed stands for evaluation.seed here. With
    --supervise a critic watches over the agent while it plays.
    """
    if policy is not None and options.supervise is not None:
        raise UsageError("--policy is a script that nobody supervises; leave out --supervise.")
    given = {
        "evaluation.episodes": episodes,
        "evaluation.split": split,
        "evaluation.seed": options.seed,
    }
    loaded = options.load(recipe, *(f"{k}={v}" for k, v in given.items() if v is not None))
    if actor is None and policy is None:
        actor = str(default_actor(loaded))
    from stages.evaluation.run import evaluate_command
    from stages.rl.run import load_reviewer

    result = evaluate_command(
        loaded,
        actor,
        reviewers=load_reviewer,
        policy=policy and policy.value,
        greedy=greedy,
        supervise=options.supervise_by(),
    )
    if options.json:
        emit(result)
