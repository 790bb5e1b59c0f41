"""How instances of an environment are run: options that every environment has."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ParallelOptions(BaseModel):
    """Many instances at once, so that a slow or broken one hurts nobody else."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workers: int = Field(
        0,
        ge=0,
        le=256,
        description="Steps carried out at the same time; 0: one after the other, no time limit.",
    )
    isolation: Literal["thread", "process"] = Field(
        "process",
        description="With workers, where an instance lives. process: its own, killed when it takes "
        "too long; thread: this process, for environments that wait for something outside it (what "
        "Python's global random numbers decide in them cannot be repeated then).",
    )
    step_timeout_s: float = Field(
        60.0,
        gt=0,
        description="With workers: seconds a step may take; then the instance is given up, its "
        "episode dropped and counted.",
    )
