"""Options of ``code``: plain data, importable without anything heavy."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stages.interaction.environments.parallel import ParallelOptions

Probability = Annotated[float, Field(ge=0.0, le=1.0)]

TEMPLATES = ("count", "add", "highest", "lowest", "changes", "second")
"""What the programs do; the kind of a task."""

WORDS = (
    "price", "cost", "size", "age", "weight", "height", "fee", "salary", "rate", "level",
    "distance", "amount", "balance", "length", "quantity", "rank",
)  # fmt: skip
"""What the programs are about; the group of a task."""

UNSEEN_WORDS = ("balance", "length", "quantity", "rank")
"""Words of half of the test tasks, in no other split."""


class DebuggerOptions(BaseModel):
    """How often the scripted debugger makes each of its mistakes, per demonstration.

    The first two spoil the result and pass the visible tests; the others are recovered from.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    quick_patch: Probability = Field(
        0.6, description="Corrects the returned number by what the tests were off, not the bug."
    )
    half_fix: Probability = Field(
        0.6, description="Of two bugs repairs only the one that the visible tests show."
    )
    wrong_edit: Probability = Field(0.15, description="Tries a wrong line first, then recovers.")
    look_first: Probability = Field(0.5, description="Runs the tests before the first edit.")
    experiment: Probability = Field(0.1, description="Runs the program on an input of its own.")

    @classmethod
    def clean(cls) -> DebuggerOptions:
        """A debugger without mistakes."""
        return cls(quick_patch=0.0, half_fix=0.0, wrong_edit=0.0)


class CodeOptions(ParallelOptions):
    """Debugging small programs in a sandbox: edit, run, test, submit."""

    name: Literal["code"] = Field("code", description="Which environment this is.")
    max_turns: int = Field(10, ge=2, le=100, description="Turns the actor has for one episode.")
    templates: tuple[str, ...] = Field(
        TEMPLATES, min_length=1, description="What the programs do: any of the known templates."
    )
    unseen_words: tuple[str, ...] = Field(
        UNSEEN_WORDS, description="Words of half of the test tasks, in no other split."
    )
    two_bugs: Probability = Field(
        0.3, description="Share of tasks with a second bug that no visible test shows."
    )
    visible_tests: int = Field(2, ge=1, le=8, description="Tests the actor is shown.")
    hidden_tests: int = Field(6, ge=3, le=50, description="Tests that judge what is submitted.")
    expert: DebuggerOptions = Field(
        default_factory=DebuggerOptions, description="Mistakes of the demonstrations."
    )
    max_bytes: int = Field(600, ge=100, le=20_000, description="Bytes of output that are shown.")
    time_limit_s: float = Field(2.0, gt=0, le=60, description="Seconds one run may take.")
    memory_mb: int = Field(256, ge=64, le=4096, description="Memory one run may use.")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        unknown = sorted(set(self.templates) - set(TEMPLATES))
        if unknown:
            raise ValueError(f"unknown templates {unknown}; known: {', '.join(TEMPLATES)}")
        strange = sorted(set(self.unseen_words) - set(WORDS))
        if strange or set(self.unseen_words) == set(WORDS):
            raise ValueError(f"unseen_words {strange} must be some, not all, of {', '.join(WORDS)}")
        return self
