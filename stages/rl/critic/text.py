"""A view as token ids within a budget: what is cut first, and what never is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stages.common.errors import UsageError
from stages.rl.critic.light import BUCKETS, bucket, words
from stages.rl.critic.views import View

Ids = list[int]


class Reader(Protocol):
    """A critic's tokenizer."""

    before: Ids
    """What stands before every text ([CLS] and the like)."""
    after: Ids
    """What stands behind it."""

    def ids(self, texts: Sequence[str]) -> list[Ids]:
        """Token ids of each text, bare."""
        ...

    def save(self, folder: Path) -> None:
        """Keep what cannot be rebuilt."""
        ...


class TokenizerReader:
    """A Hugging Face tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.before, self.after = special_frame(tokenizer)

    def ids(self, texts: Sequence[str]) -> list[Ids]:
        """Token ids of each text, bare."""
        rows = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        return [list(row) for row in rows]

    def save(self, folder: Path) -> None:
        """The tokenizer as a plain Hugging Face folder."""
        self.tokenizer.save_pretrained(folder)


class WordReader:
    """Stable hashes of lower-cased words: a tokenizer without files, shared with nobody."""

    vocabulary = BUCKETS + 1

    def __init__(self) -> None:
        self.before: Ids = [BUCKETS]
        self.after: Ids = []

    def ids(self, texts: Sequence[str]) -> list[Ids]:
        """Token ids of each text, bare."""
        return [[bucket(word) for word in words(text)] for text in texts]

    def save(self, folder: Path) -> None:
        """Nothing to keep."""


@dataclass(frozen=True)
class Pieces:
    """A view's parts as token ids, in the order in which they are read."""

    start: Ids
    """Goal and privileged facts: never cut."""
    history: list[Ids]
    """Earlier exchanges, oldest first."""
    limits: Ids
    """Turns and tokens left: never cut."""
    state: Ids
    """The actor's checklist and state."""
    action: Ids
    """A proposed action."""

    def __len__(self) -> int:
        return len(self._joined(self.history, self.state, self.action))

    def within(self, budget: int) -> Ids:
        """At most ``budget`` ids.

        A proposed action, the last exchange, the state and the older history are served in this
        order, each with at least half of what is left, or all it wants where the rest fits beside
        it. All but the history lose their own middle; it keeps its newest exchanges whole.

        Raises ValueError when goal, facts and limits alone are longer than the budget.
        """
        room = budget - len(self.start) - len(self.limits)
        if room < 0:
            raise ValueError(f"goal, facts and limits take {budget - room} tokens of {budget}")
        *older, last = self.history or [[]]
        wants = [len(self.action), len(last), len(self.state), sum(map(len, older))]
        given = []
        for k, want in enumerate(wants):
            given.append(min(want, max((room + 1) // 2, room - sum(wants[k + 1 :]))))
            room -= given[-1]
        kept = newest(older, given[3])
        return self._joined(
            [kept, keep_mostly_end(last, given[1])],
            keep_mostly_end(self.state, given[2]),
            keep_mostly_end(self.action, given[0]),
        )

    def _joined(self, history: Sequence[Ids], state: Ids, action: Ids) -> Ids:
        between = [i for exchange in history for i in exchange]
        return [*self.start, *between, *self.limits, *state, *action]


def view_texts(view: View) -> list[str]:
    """Start, limits, state, action (or nothing), then the exchanges; each ends its line."""
    action = view.proposed() if view.action else ""
    exchanges = (e.text() for e in view.history)
    parts = [view.start(), view.limits(), view.shown(), action, *exchanges]
    return [f"{text}\n" if text else "" for text in parts]


def view_ids(view: View, ids: Mapping[str, Ids], room: int, *, frame: int = 0) -> Ids:
    """At most ``room`` ids of a view whose texts have these; ``frame`` more stand around them.

    Raises UsageError when goal, facts and limits alone do not fit.
    """
    start, limits, shown, proposed, *history = [ids[text] for text in view_texts(view)]
    try:
        return Pieces(start, history, limits, shown, proposed).within(room)
    except ValueError:
        least = len(start) + len(limits)
        raise UsageError(
            f"rl.critic.view.max_tokens leaves {room} tokens, but goal, facts and limits of a view "
            f"alone take {least}; set it to at least {least + frame}, within what the encoder can "
            "read."
        ) from None


def newest(exchanges: Sequence[Ids], room: int) -> Ids:
    """The newest exchanges that fit whole; the beginning of the others fills what room is left."""
    first = len(exchanges)
    while first and len(exchanges[first - 1]) <= room:
        first -= 1
        room -= len(exchanges[first])
    front = [i for exchange in exchanges[:first] for i in exchange][:room]
    return front + [i for exchange in exchanges[first:] for i in exchange]


def keep_mostly_end(ids: Ids, room: int) -> Ids:
    """At most ``room`` ids: a quarter from the front, the rest from the end."""
    if len(ids) <= room:
        return ids
    front = room // 4
    return ids[:front] + ids[len(ids) - (room - front) :] if room else []


def special_frame(tokenizer: Any) -> tuple[Ids, Ids]:
    """The ids a tokenizer puts before and after a text ([CLS] … [SEP] and the like)."""
    plain = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    framed = list(tokenizer("a")["input_ids"])
    for start in range(len(framed) - len(plain) + 1):
        if framed[start : start + len(plain)] == plain:
            return framed[:start], framed[start + len(plain) :]
    return [], []
