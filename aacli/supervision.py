"""The options of commands in which a critic may watch over the agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any

import typer

from aacli.options import Basics, RecipeOptions
from stages.common.errors import UsageError

PANEL = "Supervision"
"""Heading in the help."""


SCREENING = ("retries", "threshold", "reconsider")
"""Fields of ``Supervised`` that are about screening alone."""


class Mode(StrEnum):
    """What a supervising critic does."""

    SCREEN = "screen"
    REVIEW = "review"
    BOTH = "both"


Supervisor = Annotated[
    str | None,
    typer.Option(
        "--supervise",
        metavar="BY",
        help="Who watches over the agent: the folder of an rl run (its critic; without privileged "
        "facts, to screen of kind q or discriminative), that of a reward run, or a ranking: "
        "log-prob or majority.",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
SupervisedHow = Annotated[
    Mode,
    typer.Option(
        "--supervise-mode",
        metavar="HOW",
        help="screen: weak proposals are sampled again; review: the critic's word on each turn "
        "enters the next state; both.",
        rich_help_panel=PANEL,
    ),
]
Retries = Annotated[
    int,
    typer.Option(
        min=0, help="Most times a turn is sampled again when screened.", rich_help_panel=PANEL
    ),
]
Threshold = Annotated[
    float | None,
    typer.Option(
        help="Score from which a proposal is good enough, in the supervisor's own measure (a "
        "critic's: 1 is the reward of success).",
        show_default="always all retries",
        rich_help_panel=PANEL,
    ),
]
Reconsider = Annotated[
    bool,
    typer.Option(
        "--reconsider", help="Tell the agent, when it is to try again.", rich_help_panel=PANEL
    ),
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
        """What puts a loaded actor under this supervision. UsageError for options of no effect."""
        if self.supervise is None:
            self._refuse("supervise_mode", *SCREENING, why="give --supervise, too")
        elif self.supervise_mode is Mode.REVIEW:
            self._refuse(*SCREENING, why="choose --supervise-mode screen or both")
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

    def _refuse(self, *names: str, why: str) -> None:
        defaults = {field.name: field.default for field in fields(Supervised)}
        for name in names:
            if getattr(self, name) != defaults[name]:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option} would do nothing; {why}, or leave it out.")


@dataclass(frozen=True)
class SupervisedRecipeOptions(Supervised, RecipeOptions):
    """Options of a command with a recipe."""


@dataclass(frozen=True)
class SupervisedBasics(Supervised, Basics):
    """Options of a command without one."""
