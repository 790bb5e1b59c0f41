"""``aac chat``: talk to the agent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from aacli.command import INTERRUPTED, command, emit
from aacli.folders import default_actor
from aacli.options import ActorFolder, RecipeOptions, recipe_files
from aacli.supervision import SupervisedRecipeOptions
from stages.common.console import warn
from stages.common.errors import UsageError
from stages.common.model_folder import check_model_folder

if TYPE_CHECKING:
    from stages.recipe.models import Recipe

BARE = """
name: chat
model: {{actor: {actor}}}
environment: {{name: human}}
state: {{exchanges: 50, checklist: false, tool_prompt: none}}
rl: {{actor: {{max_new_tokens: 256}}}}
"""
"""A model on its own, with nothing to do but talk."""

RecipeOrModel = Annotated[
    Path,
    typer.Argument(
        metavar="RECIPE|MODEL",
        help="A recipe, or a model folder to talk with freely.",
        show_default=False,
        autocompletion=recipe_files,
    ),
]
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


@dataclass(frozen=True)
class ChatOptions(SupervisedRecipeOptions):
    """How to talk, and how much is shown."""

    free: Annotated[
        bool,
        typer.Option("--free", help="Talk freely with the agent, outside of the recipe's world."),
    ] = False
    unfolded: Annotated[
        bool,
        typer.Option("--open", help="Show calls and what came back in full, not on one line."),
    ] = False
    greedy: Annotated[
        bool,
        typer.Option("--greedy/--sampled", help="Take the likeliest token each time, or sample."),
    ] = True


def register(app: typer.Typer) -> None:
    """Add the command."""
    example = "aac chat recipes/quickstart.yaml --actor runs/quickstart/rl"
    command(app, "chat", example=example)(chat)


def chat(
    recipe: RecipeOrModel,
    options: ChatOptions,
    actor: ActorFolder = None,
    question: Question = None,
    database: Database = None,
    task: TaskNumber = None,
    human: Human = False,
) -> None:
    """Ask the agent and watch it act, turn by turn, in the recipe's environment.

    Every question is an episode of its own. exit, quit, Ctrl-D or Ctrl-C leaves. Where the
    environment has a user (service, human), you are the user of one episode. Given a model folder,
    or --free, it is a conversation without a world.
    """
    if recipe.is_dir():
        check_model_folder(recipe, writes=True)
        loaded, chosen = _bare_recipe(recipe, options), str(recipe)
        if actor is not None:
            raise UsageError(f"{recipe} is the model to talk with; leave out --actor.")
    else:
        loaded = options.load(recipe)
        chosen = actor or str(default_actor(loaded))
    free = options.free or recipe.is_dir()
    if free and (question or database or task is not None or human):
        raise UsageError("a free conversation takes no --question, --database, --task or --human.")
    from stages.evaluation.chat import Look, chat_command, without_world
    from stages.rl.run import load_reviewer

    try:
        result = chat_command(
            without_world(loaded) if free else loaded,
            chosen,
            question=question,
            database=database,
            task=task,
            human=human,
            look=Look(options.greedy, options.unfolded, options.supervise_by()),
            reviewers=load_reviewer,
        )
    except KeyboardInterrupt:
        warn("stopped.")
        raise typer.Exit(INTERRUPTED) from None
    if options.json:
        emit(result)


def _bare_recipe(model: Path, options: RecipeOptions) -> Recipe:
    """What is needed to talk with a model, and no more; --set may change it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "chat.yaml"
        actor = json.dumps(str(model.resolve()))
        path.write_text(BARE.format(actor=actor), encoding="utf-8")
        return options.load(path)
