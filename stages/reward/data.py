"""Preference pairs as token ids: one context, a better and a worse reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stages.common.chat import (
    dialogue_exchanges,
    encode_action,
    encode_prompt,
    exchange_rows,
)
from stages.common.errors import UsageError
from stages.common.messages import Message, with_system
from stages.common.records import Record, read_records
from stages.common.rows import Row, cut_row
from stages.common.shapes import Preference, read_preference
from stages.interaction.actions import tool_prompt


@dataclass(frozen=True)
class Pair:
    """Two token sequences, each ending with a judged reply and its stop token."""

    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]
    group: str
    """Pairs of one group (task, prompt) fall on one side of the held-out split."""
    length_difference: int
    """Tokens of the chosen reply less tokens of the rejected one."""

    @property
    def longest(self) -> int:
        """Tokens of the longer side."""
        return max(len(self.chosen_ids), len(self.rejected_ids))


@dataclass
class PairCounts:
    """What became of the rows."""

    pairs: int = 0
    """Kept."""
    cut: int = 0
    """Of the kept ones: pairs that lost the middle of their context."""
    dropped: int = 0
    """A judged reply alone was longer than ``max_length``."""


@dataclass(frozen=True)
class Pairs:
    """Training pairs and held-out pairs, split by group."""

    train: list[Pair]
    held_out: list[Pair]
    counts: PairCounts = field(default_factory=PairCounts)


def read_preferences(path: Path) -> list[Record]:
    """The rows of a person's file, each checked to be in a known shape."""
    records = read_records(path)
    for place, row in records:
        read_preference(place, row)
    return records


def told_apart(tokenizer: Any, records: Sequence[Record]) -> list[Record]:
    """The rows whose two replies are different tokens: an encoder may read any case alike."""
    kept = []
    for place, row in records:
        found = read_preference(place, row)
        sides = (found.chosen, found.rejected)
        one, other = (encode_action(tokenizer, s[:-1], s[-1]["content"]) for s in sides)
        if one != other:
            kept.append((place, row))
    return kept


def build_pairs(
    tokenizer: Any,
    records: Sequence[Record],
    *,
    max_length: int,
    held_out_fraction: float,
    generator: np.random.Generator,
) -> Pairs:
    """Token pairs of all rows, a share of the groups held out.

    Contexts lose their middle to ``max_length``, judged replies nothing: where one alone does not
    fit the pair is dropped and counted. UsageError: two equal sides (with the row), nothing left,
    or a single group.
    """
    counts = PairCounts()
    pairs: list[Pair] = []
    for place, row in records:
        pair = _pair(tokenizer, place, read_preference(place, row), max_length, counts)
        if pair is None:
            counts.dropped += 1
        else:
            pairs.append(pair)
    counts.pairs = len(pairs)
    if not pairs:
        raise UsageError(
            f"All {counts.dropped} pairs were dropped: a reply alone is longer than "
            f"reward.max_length ({max_length} tokens); raise it."
        )
    held_out = _held_out(pairs, held_out_fraction, generator)
    return Pairs(
        train=[pair for pair in pairs if pair.group not in held_out],
        held_out=[pair for pair in pairs if pair.group in held_out],
        counts=counts,
    )


def _pair(
    tokenizer: Any, place: str, preference: Preference, max_length: int, counts: PairCounts
) -> Pair | None:
    sides: list[Sequence[Message]] = [preference.chosen, preference.rejected]
    if preference.tools:  # as an environment shows them
        sides = [with_system(side, tool_prompt(preference.tools)) for side in sides]
    replies = [encode_action(tokenizer, side[:-1], side[-1]["content"]) for side in sides]
    prompts = [encode_prompt(tokenizer, side[:-1]) for side in sides]
    room = max_length - max(map(len, replies))
    if room < 1:
        return None
    if max(map(len, prompts)) > room:
        # Both contexts get the same room, so that one prompt stays one prompt.
        prompts = [_shorten(tokenizer, side, room) for side in sides]
        counts.cut += 1
    chosen, rejected = ((*p, *r) for p, r in zip(prompts, replies, strict=True))
    if chosen == rejected:
        cut = " after cutting" if preference.chosen != preference.rejected else ""
        raise UsageError(f"{place}: chosen and rejected are the same{cut}; leave the row out.")
    return Pair(chosen, rejected, preference.group, len(replies[0]) - len(replies[1]))


def _shorten(tokenizer: Any, side: Sequence[Message], room: int) -> list[int]:
    """The prompt of the last reply within ``room`` tokens; whole exchanges leave first."""
    whole = exchange_rows(tokenizer, dialogue_exchanges(side))[-1]
    end = max(k for k, chosen in enumerate(whole.action_mask) if not chosen) + 1
    # One token stands for the reply: the room is what is left beside the longer of the two.
    row = Row((*whole.input_ids[:end], 0), (*whole.action_mask[:end], True))
    cut = cut_row(row, room + 1)
    assert cut is not None
    return list(cut.input_ids[:-1])


def _held_out(pairs: Sequence[Pair], fraction: float, generator: np.random.Generator) -> set[str]:
    """Groups, drawn until they hold the wanted share of the pairs; one is always left."""
    groups = sorted({pair.group for pair in pairs})
    if len(groups) < 2:
        raise UsageError(
            f"all {len(pairs)} pairs have the same prompt, so none can be held out; give pairs "
            "of at least two prompts."
        )
    sizes = dict.fromkeys(groups, 0)
    for pair in pairs:
        sizes[pair.group] += 1
    held_out: set[str] = set()
    count = 0
    for number in generator.permutation(len(groups))[: len(groups) - 1]:
        if count >= fraction * len(pairs):
            break
        held_out.add(groups[number])
        count += sizes[groups[number]]
    return held_out
