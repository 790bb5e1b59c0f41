"""The ``state`` section: what the actor is shown each turn, by processors with budgets."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from stages.recipe.section import Section

LEAST_WINDOW = 64
"""Tokens that must be left for the goal and the last exchange."""


class SummarySection(Section):
    """A running summary that takes in each turn as it leaves the window (F1)."""

    writer: str = "rules"
    """rules, actor (the frozen model each stage starts from: model.actor in SFT, the SFT actor from
    then on), or the folder or hub id of a separate small causal language model."""
    max_tokens: int = Field(96, ge=16)
    """Token budget of the summary."""


class FactsSection(Section):
    """Requests, finished steps, open questions and entities of turns that have left (F2)."""

    max_tokens: int = Field(96, ge=16)
    """Token budget of the facts."""
    model: str | None = None
    """Folder or hub id of a token classifier (NER) or an extractive question answerer, besides the
    rules; none: rules only."""
    questions: tuple[str, ...] = ()
    """What a question answerer is asked of every turn."""


class MemorySection(Section):
    """Long-term memory: turns that have left, embedded and recalled by the newest request (F3)."""

    max_tokens: int = Field(128, ge=16)
    """Token budget of the recalled turns."""
    top_k: int = Field(2, ge=1)
    """How many of the nearest turns are recalled."""
    embedder: str = "sentence-transformers/all-MiniLM-L6-v2"
    """Folder or hub id of a sentence encoder, or hashing: hashed words, for smoke runs."""


class StateSection(Section):
    """What the actor is shown each turn: the compact state S_t."""

    exchanges: int = Field(8, ge=1)
    """Sliding window: how many of the latest exchanges are shown."""
    max_tokens: int = Field(2048, ge=32)
    """Token budget of the whole prompt; older exchanges leave first, the goal never."""
    checklist: bool = True
    """Show goals and what is already solved after each observation (F4)."""
    tool_prompt: Literal["full", "short", "none"] = "full"
    """full: describe tools and call format in a system message; short: only the format, names and
    arguments, in a sixth of the tokens; none: the actor knows them."""
    review: Literal["none", "words"] = "none"
    """words: under each exchange the critic's review of it; under those of SFT's demonstrations, of
    critics of its kind that were fitted to other demonstrations."""
    summary: SummarySection | None = None
    """Under the goal a summary of the turns that have left the window; none: not shown."""
    facts: FactsSection | None = None
    """Under the goal key information of the turns that have left; none: not shown."""
    memory: MemorySection | None = None
    """Under the goal those turns that have left which are nearest to the newest request; none: not
    shown."""

    @model_validator(mode="after")
    def _budgets_fit(self) -> StateSection:
        parts = {"summary": self.summary, "facts": self.facts, "memory": self.memory}
        budgets = {name: part.max_tokens for name, part in parts.items() if part is not None}
        room = self.max_tokens - sum(budgets.values())
        if budgets and room < LEAST_WINDOW:
            told = ", ".join(f"state.{name}.max_tokens = {n}" for name, n in budgets.items())
            raise ValueError(
                f"{told} leave {room} of state.max_tokens = {self.max_tokens} for the goal and the "
                f"last exchange, expected at least {LEAST_WINDOW}; lower them or raise "
                "state.max_tokens"
            )
        return self

    @model_validator(mode="after")
    def _questions_are_asked(self) -> StateSection:
        if self.facts is not None and self.facts.questions and self.facts.model is None:
            raise ValueError(
                "state.facts.questions are asked by a model, expected one in state.facts.model; "
                "name an extractive question answerer or leave the questions out"
            )
        return self
