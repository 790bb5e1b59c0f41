"""``aac chat``: talk to the agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aacli.command import command, emit
from aacli.folders import default_actor
from aacli.options import ActorFolder, RecipePath
from aacli.supervision import SupervisedRecipeOptions

Question = Annotated[
    str | None, typer.Option(help="Ask this one question and leave; without it: a conversation.")
]
Database = Annotated[
    Path | None,
    typer.Option(
        help="A SQLite file of yours to work in.", show_default="the recipe's environment"
    ),
]
TaskNumber = Annotated[
    int | None,
    typer.Option("--task", min=0, help="Play this held-out task instead, and say who was right."),
]
Human = Annotated[
    bool,
    typer.Option("--human", help="Be the user yourself, where the environment has one."),
]
Greedy = Annotated[
    bool,
    typer.Option("--greedy/--sampled", help="Take the likeliest token each time, or sample."),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    example = "aac chat recipes/quickstart.yaml --actor runs/quickstart/rl"
    command(app, "chat", example=example)(chat)


def chat(
    recipe: RecipePath,
    options: SupervisedRecipeOptions,
    actor: ActorFolder = None,
    question: Question = None,
    database: Database = None,
    task: TaskNumber = None,
    human: Human = False,
    greedy: Greedy = True,
) -> None:
    """Ask the agent and watch it act, turn by turn, in the recipe's environment.

    Every question is an episode of its own. An end of input, exit or quit leaves. Where the
    environment has a user (service, human), you are the user of one episode.
    """
    loaded = options.load(recipe)
    chosen = actor or str(default_actor(loaded))
    from stages.evaluation.chat import chat_command
    from stages.rl.run import load_reviewer

    result = chat_command(
        loaded,
        chosen,
        question=question,
        database=database,
        task=task,
        human=human,
        greedy=greedy,
        reviewers=load_reviewer,
        supervise=options.supervise_by(),
    )
    if options.json:
        emit(result)
