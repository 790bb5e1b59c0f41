"""Who writes summaries: rules, or a frozen model (a summary written by the actor would be an action
of it that nobody trains).

A model's merges are collected and written in one batch when the first of them is read: the turns
of all episodes of a tick leave before any state of the next tick is rendered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from stages.interaction.generation import Policy, Request
from stages.interaction.states.fitting import Meter
from stages.interaction.states.options import RULES
from stages.interaction.states.words import one_line

BATCH = 64
"""Merges written at once."""
LINE, HEAD = 240, 32
"""Characters of a turn in a summary by rules; of what was done, and of the names and numbers that
came of it, when only these are kept."""
_TELLING = re.compile(r"\S*\d\S*|\"[^\"]*\"|'[^']*'")


class Merge(NamedTuple):
    """A summary to be written anew."""

    goal: str
    summary: str
    turns: tuple[str, ...]
    """What has left the window since, one line each."""
    budget: int
    """Tokens."""


class Written(Protocol):
    """A summary that is there when it is asked for."""

    writer: str
    """Who wrote it, once it is read."""

    def text(self) -> str:
        """The summary. Waits for the writer."""
        ...

    def withdraw(self) -> None:
        """Nobody will ask."""
        ...


class SummaryWriter(Protocol):
    """Merges turns into a summary."""

    def submit(self, merge: Merge, meter: Meter) -> Written:
        """Take an order."""
        ...


class RulesWriter:
    """One line a turn, newest last. When room is short only what was done and the names and numbers
    that came of it are kept of a turn, then nothing; always the oldest first."""

    def submit(self, merge: Merge, meter: Meter) -> Written:
        """Written at once."""
        return _Done(by_rules(merge, meter))


class ModelWriter:
    """A frozen model behind the policy interface, asked greedily."""

    def __init__(self, policy: Policy, identity: str) -> None:
        self._policy, self.identity = policy, identity
        self._orders: list[_Order] = []

    def submit(self, merge: Merge, meter: Meter) -> Written:
        """Written with all others that wait, when the first of them is read."""
        order = _Order(self, merge, meter)
        self._orders.append(order)
        return order

    def write(self) -> None:
        """Write all that waits. Where the model says nothing, the rules write."""
        orders, self._orders = [o for o in self._orders if not o.withdrawn], []
        for start in range(0, len(orders), BATCH):
            batch = orders[start : start + BATCH]
            requests = [Request(instruction(o.merge), (), (0, k)) for k, o in enumerate(batch)]
            replies = self._policy.generate(requests, greedy=True)
            for order, reply in zip(batch, replies, strict=True):
                order.take(" ".join(reply.text.split()), self.identity)


def instruction(merge: Merge) -> Sequence[dict[str, str]]:
    """What a model is told."""
    new = "\n".join(f"- {turn}" for turn in merge.turns)
    text = (
        f"Keep notes for an agent with this goal: {one_line(merge.goal)}\n"
        f"Notes so far: {merge.summary or 'none'}\n"
        f"What happened next:\n{new}\n"
        f"Write the notes anew in at most {max(merge.budget * 3 // 4, 1)} words, with every name, "
        "number and result that may be needed later. Reply with the notes only."
    )
    return [{"role": "user", "content": text}]


def by_rules(merge: Merge, meter: Meter) -> str:
    """The lines known so far and one for each new turn, none twice."""
    lines = merge.summary.split("\n") if merge.summary else []
    for turn in merge.turns:
        line = one_line(turn, LINE)
        lines = [known for known in lines if known != line] + [line]
    return _shortened(lines, merge.budget, meter)


@dataclass
class _Done:
    result: str
    writer: str = RULES

    def text(self) -> str:
        return self.result

    def withdraw(self) -> None:
        return


class _Order:
    def __init__(self, asked: ModelWriter, merge: Merge, meter: Meter) -> None:
        self.merge, self.withdrawn, self.writer = merge, False, ""
        self._asked, self._meter, self._result = asked, meter, ""

    def take(self, text: str, writer: str) -> None:
        self._result, self.writer = text, writer
        if not text:
            self._result, self.writer = by_rules(self.merge, self._meter), RULES

    def text(self) -> str:
        if not self.writer:
            self._asked.write()
        return self._result

    def withdraw(self) -> None:
        self.withdrawn = True


def _shortened(lines: list[str], budget: int, meter: Meter) -> str:
    """Within the budget; the newest line is the last to suffer."""
    for place, line in enumerate(lines):
        if _length(lines, meter) <= budget:
            break
        lines[place] = _gist(line)
    while len(lines) > 1 and _length(lines, meter) > budget:
        lines.pop(0)
    return "\n".join(lines) if _length(lines, meter) <= budget else meter.cut(lines[0], budget - 1)


def _length(lines: Sequence[str], meter: Meter) -> int:
    return sum(meter(line) + 1 for line in lines)


def _gist(line: str) -> str:
    """What was done or said, and what names and numbers came of it."""
    did, *said = line.split("; user: ")
    told = [did] if ": " in did or not said else []  # talk around what the user said says nothing
    return "; ".join(map(_core, [*told, *(f"user: {words}" for words in said)]))


def _core(part: str) -> str:
    speaker = "user: " if part.startswith("user: ") else ""
    head = one_line(part.removeprefix(speaker).partition(": ")[0], HEAD)
    rest = part[len(speaker) + len(head.removesuffix("...")) :]
    telling = dict.fromkeys(word.strip(".,;:") for word in _TELLING.findall(rest))
    return speaker + ": ".join([head, *filter(None, [one_line(" ".join(telling), HEAD)])])
