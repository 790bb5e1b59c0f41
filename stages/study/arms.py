"""A study's ``supervision``: which actors are played, watched by whom, and how."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

from pydantic import Field, field_validator, model_validator

from stages.recipe.section import Section

NAME = r"^[A-Za-z0-9][A-Za-z0-9._=,+-]*$"
"""What may name a folder."""
SFT = "sft"
"""The actor of each seed's SFT run; any other is a variant's."""
Watcher = Literal["nobody", "critic", "reward", "log-prob", "majority"]


class Arm(Section):
    """One way to be watched at run time. The first arm of a study is what the others are compared
    with."""

    by: Watcher = "nobody"
    """Who chooses or reviews: nobody; critic (that of the variant named under actors); reward (the
    reward model that the actor's variant is trained with, for sft the critic's); log-prob or
    majority, which rank."""
    mode: Literal["screen", "review", "both"] = "screen"
    """screen: proposals are judged; review: finished turns are, in words; both."""
    proposals: int = Field(1, ge=1)
    """k: most proposals of a turn, the first one included. With 1 there is nothing to choose."""
    threshold: float | None = None
    """Proposals are made until one scores this, in the watcher's own measure; none: always k."""
    reconsider: bool = False
    """Tell the agent, when it is to try again."""

    @property
    def retries(self) -> int:
        """Most proposals of a turn after the first."""
        return self.proposals - 1

    @model_validator(mode="after")
    def _means_something(self) -> Arm:
        screening = self.model_fields_set & {"proposals", "threshold", "reconsider"}
        if self.by == "nobody" and self.model_fields_set - {"by"}:
            raise ValueError("nobody watches, so nothing else counts; name whom under by")
        if self.mode != "screen" and self.by != "critic":
            raise ValueError(f"{self.by} only ranks; expected mode: screen, or by: critic")
        if self.mode == "review" and screening:
            raise ValueError(f"review makes one proposal; leave {', '.join(sorted(screening))} out")
        return self


class SupervisionSection(Section):
    """Once the variants are trained, actors are played under each arm, on the held-out tasks of
    ``evaluation``."""

    actors: dict[str, str] = Field(min_length=1)
    """sft or a variant (its actor), and the variant whose critic watches over it."""
    arms: dict[str, Arm] = Field(min_length=1)
    """Kinds of supervision by name; the others are compared with the first, task by task."""

    @field_validator("arms")
    @classmethod
    def _names(cls, arms: dict[str, Arm]) -> dict[str, Arm]:
        for name in arms:
            if not re.match(NAME, name):
                raise ValueError(f"{name!r} names no folder, expected letters, digits and ._=,+-")
        return arms

    def missing(self, variants: Collection[str]) -> list[str]:
        """Actors and critics that are no variants of the study."""
        needed = [*self.actors.values(), *(name for name in self.actors if name != SFT)]
        return sorted(set(needed) - set(variants))
