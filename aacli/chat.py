"""``aac chat``: talk to the agent."""

from __future__ import annotations

from typing import Annotated

import typer

from aacli.command import command
from aacli.folders import default_actor
from aacli.options import ActorFolder, RecipeOptions, RecipePath

Question = Annotated[
    str | None, typer.Option(help="Ask this one question and leave; without it: a conversation.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    example = "aac chat recipes/quickstart.yaml --actor runs/quickstart/rl"
    command(app, "chat", example=example)(chat)


def chat(
    recipe: RecipePath,
    options: RecipeOptions,
    actor: ActorFolder = None,
    question: Question = None,
) -> None:
    """Ask the agent and watch it act, turn by turn, in the recipe's environment."""
    loaded = options.load(recipe)
    chosen = actor or str(default_actor(loaded))
    from stages.evaluation.chat import chat_command

    chat_command(loaded, chosen, question=question)
