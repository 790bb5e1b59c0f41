"""The person at the terminal is the customer (F8)."""

from __future__ import annotations

from stages.interaction.environments.service.users.base import GOODBYE, Card, Reply
from stages.interaction.terminal import Terminal


class PersonUser:
    """Shows the card and the agent's words, and takes what is typed."""

    def __init__(self, terminal: Terminal | None = None) -> None:
        self._terminal = terminal or Terminal()

    def open(self, card: Card, key: str) -> str:
        """What the person says first; an end of input says goodbye."""
        self._terminal.show(card_text(card))
        return self._terminal.ask() or GOODBYE

    def reply(self, said: str) -> Reply:
        """What the person answers; exit, quit or an end of input ends the conversation."""
        self._terminal.show(f"agent: {said}")
        text = self._terminal.ask()
        return Reply(GOODBYE, over=True) if text is None else Reply(text)


def card_text(card: Card) -> str:
    """The card in words for a person."""
    lines = [f"You are a customer ({card.domain.name}). Say exit when you are served."]
    for wish in card.wishes:
        facts = ", ".join(f"{label} {value}" for label, value in card.facts(wish).items())
        lines.append(f"You want: {card.intent(wish).wish} ({facts}).")
    return "\n".join(lines)
