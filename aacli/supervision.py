"""The options of commands in which a critic may watch over the agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from aacli.options import Basics, RecipeOptions


class Mode(StrEnum):
    """What a supervising critic does."""

    SCREEN = "screen"
    REVIEW = "review"
    BOTH = "both"


Supervisor = Annotated[
    str | None,
    typer.Option(
        "--supervise",
        metavar="RUN|log-prob|majority",
        help="Who watches over the agent: the critic of an rl run (kind q or discriminative, no "
        "privileged facts), the model of a reward run, or a ranking.",
        show_default=False,
    ),
]
SupervisedHow = Annotated[
    Mode,
    typer.Option(
        "--supervise-mode",
        help="screen: weak proposals are sampled again; review: the critic's word on each turn "
        "enters the next state; both.",
    ),
]
Retries = Annotated[
    int, typer.Option(min=0, help="Most times a turn is sampled again under --supervise.")
]
Threshold = Annotated[
    float | None,
    typer.Option(
        help="Score that is good enough under --supervise (1 is the reward of success).",
        show_default="always all retries",
    ),
]
Reconsider = Annotated[
    bool, typer.Option("--reconsider", help="Tell the agent, when it is to try again.")
]


@dataclass(frozen=True)
class Supervised:
    """What a person asked for."""

    supervise: Supervisor = None
    supervise_mode: SupervisedHow = Mode.SCREEN
    retries: Retries = 3
    threshold: Threshold = None
    reconsider: Reconsider = False

    def supervise_by(self) -> Callable[[Any], Any]:
        """What puts a loaded actor under this supervision."""
        from stages.evaluation.supervise import Supervision, supervised, unsupervised

        if self.supervise is None:
            return unsupervised
        from stages.rl.run import load_supervisor

        wish = Supervision.of(
            self.supervise,
            self.supervise_mode.value,
            retries=self.retries,
            threshold=self.threshold,
            reconsider=self.reconsider,
        )
        return lambda actor: supervised(actor, wish, load_supervisor)


@dataclass(frozen=True)
class SupervisedRecipeOptions(Supervised, RecipeOptions):
    """Options of a command with a recipe."""


@dataclass(frozen=True)
class SupervisedBasics(Supervised, Basics):
    """Options of a command without one."""
