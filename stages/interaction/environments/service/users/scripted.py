"""A customer by rules: tells what is asked for, checks what is to be confirmed, loses patience."""

from __future__ import annotations

from stages.interaction.environments.service.domains import OWNER
from stages.interaction.environments.service.episode import words
from stages.interaction.environments.service.tasks import Wish
from stages.interaction.environments.service.users.base import GOODBYE, Card, Reply

PUZZLED = "i do not understand"
DOUBT = "is it done?"
UNKNOWN = "i do not know"


class ScriptedUser:
    """Deterministic: what it says depends on its card and on what it was told, nothing else.

    It cannot see the database: an agent that says done is believed.
    """

    def __init__(self, *, patience: int = 3) -> None:
        self._patience = patience

    def open(self, card: Card, key: str) -> str:
        """The first wish, with what this customer tells without being asked."""
        self._card, self._index, self._puzzled = card, 0, 0
        return self._begin()

    def reply(self, said: str) -> Reply:
        """By what the agent's words look like: a question, an ending, or neither."""
        text = self._answer(said) if "?" in said else self._after(said)
        if text is None:
            self._puzzled += 1
            return Reply(PUZZLED, over=self._puzzled >= self._patience)
        if text == GOODBYE:
            self._index += 1
            over = self._index >= len(self._card.wishes)
            return Reply(GOODBYE, over=True) if over else Reply(self._begin())
        return Reply(text)

    @property
    def _wish(self) -> Wish:
        return self._card.wishes[self._index]

    def _begin(self) -> str:
        wish, self._doubted = self._wish, False
        said = self._facts()
        keys = {"number": self._card.domain.noun, "name": "name"}
        told = [f"{keys.get(part, self._last())} {said[keys.get(part, self._last())]}"
                for part in wish.told]  # fmt: skip
        return ", ".join([wish.greeting + self._card.intent(wish).wish, *told])

    def _last(self) -> str:
        return list(self._facts())[-1]

    def _facts(self) -> dict[str, str]:
        return self._card.facts(self._wish)

    def _answer(self, said: str) -> str | None:
        """The reply to a question: to a proposal yes or no, to others what was asked for."""
        asked, facts = words(said), self._facts()
        if any(word.isdigit() for word in asked):
            return self._judged(asked)
        asked |= {"name"} if "who" in asked else set()
        wanted = [label for label in facts if label in asked]
        if wanted:
            return ", ".join(f"{label} {facts[label]}" for label in wanted)
        labels = {*self._card.domain.fields, OWNER}
        return UNKNOWN if asked & labels else None

    def _judged(self, asked: set[str]) -> str:
        """Yes to a proposal that fits the wish; else no, and what would fit."""
        intent, facts = self._card.intent(self._wish), self._facts()
        verbs = {i.verb for i in self._card.domain.intents if i.tool}
        if asked & verbs and intent.verb not in asked:
            return f"no, {intent.wish}"
        noun = self._card.domain.noun
        if facts[noun] not in asked:
            return f"no, {noun} {facts[noun]}"
        if intent.chosen:
            others = {v.lower() for v in self._card.domain.fields[intent.field]}
            if asked & others and facts[intent.field].lower() not in asked:
                return f"no, {intent.field} {facts[intent.field]}"
        return "yes"

    def _after(self, said: str) -> str | None:
        """The reply to a statement: an ending is believed, after a doubt of some."""
        now, intent = words(said), self._card.intent(self._wish)
        if now & {"sorry", "cannot"}:
            return GOODBYE
        told = now & {v.lower() for v in self._card.domain.fields[intent.field]}
        if intent.tool and "done" in now and self._wish.doubts and not self._doubted:
            self._doubted = True
            return DOUBT
        if ("done" in now) if intent.tool else told:
            return GOODBYE
        facts = self._facts()
        wanted = [label for label in facts if label in now]
        return ", ".join(f"{label} {facts[label]}" for label in wanted) or None
