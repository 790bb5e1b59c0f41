"""Options of ``plan``: plain data, importable without anything heavy."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stages.interaction.environments.parallel import ParallelOptions

Probability = Annotated[float, Field(ge=0.0, le=1.0)]


class PlannerOptions(BaseModel):
    """How often the scripted planner makes each of its mistakes, per demonstration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ignores_workers: Probability = Field(
        0.4, description="Starts every step as soon as those before it allow, workers or not."
    )
    one_by_one: Probability = Field(
        0.3, description="Lets the steps follow one another, which misses the deadline."
    )
    checks: Probability = Field(0.7, description="Checks the plan before it is submitted.")

    @classmethod
    def clean(cls) -> PlannerOptions:
        """A planner without mistakes."""
        return cls(ignores_workers=0.0, one_by_one=0.0)


class PlanOptions(ParallelOptions):
    """Planning the steps of a project day by day."""

    name: Literal["plan"] = Field("plan", description="Which environment this is.")
    max_turns: int = Field(24, ge=2, le=200, description="Turns the actor has for one episode.")
    steps: tuple[int, int] = Field((4, 6), description="Fewest and most steps of a project.")
    workers_of_project: tuple[int, int] = Field(
        (2, 3), description="Fewest and most workers a project has on any day."
    )
    longest_step: int = Field(4, ge=1, le=10, description="Most days a step takes.")
    slack_days: int = Field(
        0, ge=0, le=30, description="Days the deadline lies after the shortest plan's end."
    )
    expert: PlannerOptions = Field(
        default_factory=PlannerOptions, description="Mistakes of the demonstrations."
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for name, (low, high), least, most in (
            ("steps", self.steps, 2, 7),
            ("workers_of_project", self.workers_of_project, 1, 9),
        ):
            if not least <= low <= high <= most:
                raise ValueError(f"{name} must be [fewest, most] within {least} and {most}")
        return self
