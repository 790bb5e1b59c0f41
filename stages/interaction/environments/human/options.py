"""Options of ``human``."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class HumanOptions(BaseModel):
    """A free conversation with the person at the terminal, who also says how it went."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["human"] = Field("human", description="Which environment this is.")
    max_turns: int = Field(30, ge=1, le=1000, description="Turns the actor has for one episode.")
    system: str = Field("", description="Begin with this system message, if any.")
    ask_verdict: bool = Field(
        True, description="Ask the person at the end whether the agent was of help."
    )

    @property
    def needs_person(self) -> bool:
        """Always."""
        return True

    def with_person(self) -> HumanOptions:
        """Itself."""
        return self
