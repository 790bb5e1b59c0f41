"""Options of ``service``: plain data, importable without anything heavy."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stages.interaction.environments.parallel import ParallelOptions
from stages.interaction.environments.service.domains import DOMAINS
from stages.interaction.speaker import SpeakerOptions

Probability = Annotated[float, Field(ge=0.0, le=1.0)]

RUBRIC = (
    "The agent did what the customer wished, or refused because the policy forbids it.",
    "The agent told the customer what was asked for, and nothing that is not true.",
    "The agent kept every rule of the policy.",
)
"""What a model judge is asked about an episode unless a recipe says otherwise."""


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HabitOptions(_Options):
    """How often the scripted agent makes each of its mistakes, per demonstration.

    The first five spoil the episode and are systematic: always the same wrong form. The last
    three are recovered from, so they teach recovery and cost a turn.
    """

    skipped_name: Probability = Field(0.5, description="Never asks whose record it is.")
    ignored_status: Probability = Field(0.5, description="Acts whatever the status forbids.")
    skipped_confirmation: Probability = Field(0.5, description="Changes without asking first.")
    wrong_tool: Probability = Field(0.3, description="Cancels where another change was wished.")
    early_done: Probability = Field(0.2, description="Says done before anything was changed.")
    wrong_number: Probability = Field(0.1, description="Looks up a number that does not exist.")
    vague_question: Probability = Field(0.1, description="Asks what nobody understands.")
    redundant_call: Probability = Field(0.1, description="Looks a record up twice.")

    @classmethod
    def clean(cls) -> HabitOptions:
        """An agent without mistakes."""
        return cls(**dict.fromkeys(cls.model_fields, 0.0))


class UserOptions(_Options):
    """Who the customer is."""

    kind: Literal["scripted", "model", "human"] = Field(
        "scripted", description="scripted: by rules; model: a language model; human: you."
    )
    speaker: SpeakerOptions | None = Field(None, description="The model that plays the customer.")
    patience: int = Field(
        3, ge=1, description="A scripted customer leaves when it understood nothing this often."
    )
    retries: int = Field(
        2, ge=0, le=10, description="New tries of a model that falls out of its role."
    )

    @model_validator(mode="after")
    def _has_speaker(self) -> Self:
        _check_speaker(self)
        return self


class JudgeOptions(_Options):
    """Who decides whether an episode was a success; the rules' components are always there."""

    kind: Literal["rules", "model"] = Field(
        "rules", description="rules: final state, information, policy; model: a rubric."
    )
    speaker: SpeakerOptions | None = Field(None, description="The model that judges.")
    rubric: tuple[str, ...] = Field(
        RUBRIC, min_length=1, description="Statements a model judge answers with yes or no."
    )
    retries: int = Field(2, ge=0, le=10, description="New tries of a judge that gives no verdict.")

    @model_validator(mode="after")
    def _has_speaker(self) -> Self:
        _check_speaker(self)
        return self


class ServiceOptions(ParallelOptions):
    """Customer service: a policy, a database behind tools, a customer with a wish."""

    name: Literal["service"] = Field("service", description="Which environment this is.")
    isolation: Literal["thread"] = Field(
        "thread", description="With workers: a customer or judge that is a model is waited for."
    )
    max_turns: int = Field(14, ge=1, le=200, description="Turns the actor has for one episode.")
    domains: tuple[str, ...] = Field(
        tuple(DOMAINS), min_length=1, description="Desks to draw tasks from."
    )
    wishes: int = Field(1, ge=1, le=4, description="Wishes of one customer, one after another.")
    records: int = Field(3, ge=1, le=50, description="Records in the database of a task.")
    refusals: Probability = Field(
        0.3, description="Share of wishes that the policy forbids: by status or by owner."
    )
    show_policy: bool = Field(True, description="Begin with the policy as a system message.")
    expert: HabitOptions = Field(
        default_factory=HabitOptions, description="Mistakes of the demonstrations."
    )
    user: UserOptions = Field(default_factory=UserOptions, description="The customer.")
    judge: JudgeOptions = Field(default_factory=JudgeOptions, description="The judge.")

    @property
    def needs_person(self) -> bool:
        """Whether the customer is the person at the terminal."""
        return self.user.kind == "human"

    def with_person(self) -> ServiceOptions:
        """The same desk with the person at the terminal as its customer."""
        return self.model_copy(update={"user": UserOptions(kind="human")})

    @model_validator(mode="after")
    def _known_domains(self) -> Self:
        unknown = sorted(set(self.domains) - set(DOMAINS))
        if unknown:
            raise ValueError(f"unknown domains {unknown}; known: {', '.join(DOMAINS)}")
        if self.wishes > self.records:
            raise ValueError(f"wishes {self.wishes} must not be more than records {self.records}")
        return self


def _check_speaker(section: UserOptions | JudgeOptions) -> None:
    if (section.kind == "model") != (section.speaker is not None):
        raise ValueError("kind model and a speaker go together: give both or neither")
