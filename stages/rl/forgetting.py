"""Does the actor still know what stage 1 taught it, apart from the task it now trains on? (F21)

On clean dialogues: perplexity of their replies, and whether its own greedy replies keep their form
(a call that parses where a call stood, plain words where words stood). On a few plain orders:
whether it does as it is told. All figures stand beside those of the SFT actor, taken before the
first update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stages.common.chat import dialogue_exchanges, exchange_rows
from stages.common.console import warn
from stages.common.errors import UsageError
from stages.common.records import read_records
from stages.common.rows import Row, cut_row
from stages.common.run_folder import HELD_OUT
from stages.common.shapes import read_dialogue
from stages.evaluation.instructions import INSTRUCTIONS, distinct, obeyed
from stages.interaction.actions import parse_action
from stages.interaction.trajectory import Message

Exchange = tuple[Sequence[Message], str]
"""(messages shown, wanted reply)."""
LARGEST = 700.0
"""e to this is still a float."""


class CleanCheck:
    """Called with the actor's version; the figures are ``clean/*``."""

    def __init__(
        self,
        exchanges: Sequence[Exchange],
        rows: Sequence[Row],
        *,
        surprise: Callable[[Sequence[Row]], float],
        reply: Callable[[Sequence[Sequence[Message]], int], list[str]],
    ) -> None:
        """``rows``: the exchanges in tokens. ``surprise``: mean −log π of their replies' tokens.
        ``reply``: greedy replies of actor version v to some messages.
        """
        self._exchanges, self._rows = exchanges, rows
        self._surprise, self._reply = surprise, reply
        self.first: dict[str, float] = {}
        """The figures at the start, those of the SFT actor as a rule."""
        self.last: dict[str, float] = {}

    def start(self, version: int) -> None:
        """Take the actor's figures before it learns, with which all later ones are compared."""
        if not self._rows:
            warn(
                "stage 1 left no held-out dialogues, so forgetting is told by plain orders alone; "
                "run aac sft again with sft.validation_fraction above 0, or name a file in "
                "rl.forgetting.data."
            )
        self.first = self._figures(version)
        if self.first.get("clean/instructions") == 0:
            del self.first["clean/instructions"]  # it never could, so nothing can be forgotten

    def __call__(self, version: int) -> dict[str, float]:
        """The figures now, and what was lost since the start."""
        now = self._figures(version)
        if "clean/perplexity" in now:
            ratio = now["clean/perplexity"] / self.first["clean/perplexity"]
            now["clean/perplexity_ratio"] = ratio
        names = [name for name in ("clean/format", "clean/instructions") if name in self.first]
        kept = [name for name in names if name in now]
        if kept:
            now["clean/lost"] = max(self.first[name] - now[name] for name in kept)
        self.last = now
        return now

    def _figures(self, version: int) -> dict[str, float]:
        found: dict[str, float] = {}
        if self._rows:
            found["clean/perplexity"] = math.exp(min(self._surprise(self._rows), LARGEST))
        orders = [[{"role": "user", "content": i.prompt}] for i in INSTRUCTIONS]
        if self.first and "clean/instructions" not in self.first:
            orders = []
        shown = [messages for messages, _ in self._exchanges]
        said = self._reply([*shown, *orders], version)
        told, answers = said[len(shown) :], said[: len(shown)]
        if orders:
            found["clean/instructions"] = _share(obeyed(told))
        if answers:
            found |= form_kept([reply for _, reply in self._exchanges], answers)
        words = distinct(said)
        return found | ({} if words is None else {"clean/distinct_2": words})

    def state_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return {"first": dict(self.first), "last": dict(self.last)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.first, self.last = dict(state["first"]), dict(state["last"])

    def summary(self) -> dict[str, Any]:
        """For summary.json."""
        return {"clean": {"sft": self.first, "last": self.last}} if self.first else {}


def form_kept(wanted: Sequence[str], said: Sequence[str]) -> dict[str, float]:
    """``clean/format``: the share of replies in the form of the wanted ones, a well-formed call or
    plain words; ``clean/agreement``: those that call the very same tools, too.
    """
    form, same = [], []
    for text, other in zip(wanted, said, strict=True):
        ours, theirs = parse_action(text), parse_action(other)
        well_formed = theirs.error is None and bool(other.strip())
        form.append(well_formed and bool(ours.calls) == bool(theirs.calls))
        names = [[call.name for call in action.calls] for action in (ours, theirs)]
        same.append(form[-1] and names[0] == names[1])
    return {"clean/format": _share(form), "clean/agreement": _share(same)}


def clean_exchanges(data: Path | None, sft: Path, count: int) -> list[Exchange]:
    """Up to ``count`` exchanges of a person's file, or of the dialogues that stage 1 held out.

    UsageError for a file that cannot be read; none where stage 1 kept none.
    """
    file = data or sft / HELD_OUT
    if data is None and (not file.is_file() or file.stat().st_size == 0):
        return []
    exchanges = []
    for place, row in read_records(file)[:count]:
        dialogue = read_dialogue(place, row)
        exchanges.append(dialogue_exchanges(dialogue.messages, last_reply_only=True)[-1])
    return exchanges


def clean_rows(tokenizer: Any, exchanges: Sequence[Exchange], max_length: int) -> list[Row]:
    """Each exchange in tokens; what is longer loses the middle of its history. UsageError if
    nothing is left."""
    rows = [row for exchange in exchanges for row in exchange_rows(tokenizer, [exchange])]
    fitted = [kept for row in rows if (kept := cut_row(row, max_length)) is not None]
    if exchanges and not fitted:
        raise UsageError(
            f"no clean dialogue of rl.forgetting fits into {max_length} tokens; raise "
            "sft.max_length, or give shorter ones in rl.forgetting.data."
        )
    return fitted


def _share(verdicts: Sequence[bool]) -> float:
    return sum(verdicts) / len(verdicts)
