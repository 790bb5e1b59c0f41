"""What a customer is: somebody with a card of wishes who opens a conversation and replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from stages.interaction.environments.service.domains import Domain, Intent
from stages.interaction.environments.service.tasks import Case, Wish

GOODBYE = "thanks, bye"


@dataclass(frozen=True)
class Card:
    """All that a customer knows: wishes and own facts, never what the right ending is."""

    domain: Domain
    wishes: tuple[Wish, ...]

    @classmethod
    def of(cls, case: Case) -> Card:
        """The customer's part of a case."""
        return cls(case.domain, case.wishes)

    def facts(self, wish: Wish) -> dict[str, str]:
        """Label -> value of what the customer can tell for a wish."""
        known = {self.domain.noun: wish.number, "name": wish.name}
        intent = self.intent(wish)
        return {**known, intent.field: wish.value} if intent.chosen else known

    def intent(self, wish: Wish) -> Intent:
        """What kind of wish it is."""
        return self.domain.intent(wish.intent)


@dataclass(frozen=True)
class Reply:
    """What the customer says; ``over``: nothing more will come."""

    text: str
    over: bool = False
    health: Mapping[str, Any] = field(default_factory=dict)
    """How well a simulator is: tries, faults seen."""


class User(Protocol):
    """A customer. One conversation at a time: ``open`` starts afresh."""

    def open(self, card: Card, key: str) -> str:
        """The first message; ``key`` keys all randomness of the conversation."""
        ...

    def reply(self, said: str) -> Reply:
        """The answer to the agent's words. Raises SickSimulator."""
        ...
