"""Key information of the turns that have left the window, as structure (F2).

By rules: a call is a step, finished or failed by what came back; a user's message settles the
request before it, or answers the agent's question; quoted texts, numbered names and addresses are
entities. A small extraction model may add what it finds. Everything follows from visible texts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from stages.interaction.environments.base import Reset
from stages.interaction.states.fitting import Line, Meter, fit
from stages.interaction.states.options import RULES, FactsOptions
from stages.interaction.states.words import (
    action_words,
    call_words,
    content,
    one_line,
    result_words,
    turn_words,
    user_words,
)
from stages.interaction.trajectory import Turn

TITLE = "facts:"
KINDS = ("open", "done", "did", "failed", "known", "entities")
"""In the order in which they are shown."""
LONGEST_LINE, MOST_FACTS, MOST_ENTITIES, ENTITIES_RANK = 200, 256, 6, 2
_WORD = re.compile(r"[\w#@.-]*\w")
_ENTITY = re.compile(
    r"[\w.+-]+@[\w-]+\.[\w.]+"  # an address
    r"|\"[^\"\n]{1,40}\"|'[^'\n]{1,40}'"  # something quoted
    r"|#?\b(?=[\w-]*[A-Za-z])(?=[\w-]*\d)[A-Za-z0-9][\w-]+"  # a name with a number in it
)


class Extractor(Protocol):
    """A model that finds key information in a text."""

    identity: str

    def find(self, text: str) -> list[tuple[str, str]]:
        """(question or label, value): ``("city", "Rome")``."""
        ...


@dataclass(frozen=True)
class Fact:
    """One piece of key information."""

    kind: str
    text: str
    turn: int
    """The turn that told it, -1 for the reset."""
    words: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def row(self) -> dict[str, Any]:
        """For the record."""
        return {"kind": self.kind, "text": self.text, "turn": self.turn}


class Facts:
    """Lines of facts: what is open first, then what the newest request speaks of, then the newest.

    A fact is shown once the turn that told it has left, as it stands by then.
    """

    name = "facts"

    def __init__(
        self, options: FactsOptions, meter: Meter, extractor: Extractor | None = None
    ) -> None:
        self._budget, self._meter, self._extractor = options.max_tokens, meter, extractor
        self._shown: list[Fact] = []
        self._clear()

    def reset(self, reset: Reset) -> None:
        """Forget everything and start an episode."""
        self._clear()
        asked = [content(m) for m in reset.messages if m["role"] == "user"]
        self._request = (one_line(asked[-1]) if asked else "", -1)

    def update(self, turn: Turn) -> None:
        """Find what a finished turn tells."""
        result = result_words(turn)
        failed = bool(turn.action.error) or result.lower().startswith("error")
        said = user_words(turn)
        for call in turn.action.calls if failed or not said else ():
            words = f"{call_words(call)}: {result}" if result else call_words(call)
            self._add(call.key(), "failed" if failed else "did", words, turn.index)
        for words in said:
            self._hear(words, turn)
        for entity in _entities([action_words(turn.action), *said]):
            self._add(f"entity {entity}", "entities", entity, turn.index)
        for label, value in self._extractor.find(turn_words(turn)) if self._extractor else ():
            self._add(f"known {label}", "known", f"{label} {value}".strip(), turn.index)

    def leave(self, left: int) -> None:
        """Facts of the first ``left`` turns may be shown."""
        self._left = left

    def render(self, query: str) -> str:
        """As many facts as the budget holds."""
        told = [fact for fact in self._facts.values() if fact.turn < self._left]
        names = [fact for fact in told if fact.kind == "entities"][-MOST_ENTITIES:]
        ranked = self._ranked([fact for fact in told if fact.kind != "entities"], query)
        if names:
            joined = ", ".join(fact.text for fact in reversed(names))
            ranked.insert(ENTITIES_RANK, Fact("entities", joined, names[-1].turn))
        lines = [
            Line(f"{fact.kind}: {fact.text}", (KINDS.index(fact.kind), fact.turn, number))
            for number, fact in enumerate(ranked)
        ]
        text, shown = fit(self._meter, TITLE, lines, self._budget)
        self._shown = [ranked[line.place[-1]] for line in shown]
        return text

    def produced(self) -> dict[str, Any]:
        """The facts that were shown, and who found them."""
        if not self._shown:
            return {}
        model = f" + {self._extractor.identity}" if self._extractor else ""
        return {"items": [fact.row() for fact in self._shown], "writer": RULES + model}

    def _clear(self) -> None:
        self._facts: dict[str, Fact] = {}
        self._count: Counter[str] = Counter()
        self._request, self._left = ("", -1), 0
        self._shown = []

    def _hear(self, said: str, turn: Turn) -> None:
        """The user's words answer the agent's question, or else settle the request before."""
        question = "" if turn.action.calls else action_words(turn.action)
        if question.endswith("?"):
            self._add(f"asked {question}", "done", f"{question} -> {said}", turn.index)
            return
        request, since = self._request
        self._drop(f"request {request}")
        settled = f"{request} -> {action_words(turn.action)}"
        self._add(f"settled {request}", "done", settled, since)
        self._request = (said, turn.index)
        self._add(f"request {said}", "open", said, turn.index)

    def _add(self, key: str, kind: str, text: str, turn: int) -> None:
        self._drop(key)
        line = one_line(text, LONGEST_LINE)
        fact = Fact(kind, line, turn, frozenset(_words(line)))
        self._facts[key] = fact
        self._count.update(fact.words)
        if len(self._facts) > MOST_FACTS:
            self._drop(next(iter(self._facts)))

    def _drop(self, key: str) -> None:
        if (fact := self._facts.pop(key, None)) is not None:
            self._count.subtract(fact.words)

    def _ranked(self, facts: list[Fact], query: str) -> list[Fact]:
        """By what is open, by words shared with the query (rare ones weigh more), by age."""
        asked = set(_words(query))

        def rank(fact: Fact) -> tuple[bool, float, int]:
            shared = sum(1 / self._count[word] for word in asked & fact.words)
            return fact.kind == "open", shared, fact.turn

        # An open request that the query itself holds is on show already.
        shown = [f for f in facts if not (f.kind == "open" and f.text in query)]
        return sorted(shown, key=rank, reverse=True)


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _entities(texts: Iterable[str]) -> list[str]:
    found = [match.strip("\"'") for text in texts for match in _ENTITY.findall(text)]
    return [entity for entity in dict.fromkeys(found) if entity]
