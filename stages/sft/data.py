"""What stage 1 learns from: demonstrations of an expert, or a person's own files.

Everything becomes exchanges (messages shown, wanted reply), then rows in which exactly the
replies and their stop tokens are learned, after the prompts that reinforcement learning shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stages.common.chat import (
    check_stop_token,
    dialogue_exchanges,
    exchange_rows,
    stop_ids,
)
from stages.common.errors import UsageError
from stages.common.messages import Message, is_learned, with_system
from stages.common.records import Record, read_records
from stages.common.rows import Row, cut_row
from stages.common.shapes import read_dialogue
from stages.interaction.actions import tool_prompt
from stages.interaction.trajectory import SLIP, Trajectory

Exchange = tuple[Sequence[Message], str]
"""(messages shown, wanted reply)."""


@dataclass(frozen=True)
class Example:
    """One dialogue to learn from."""

    exchanges: tuple[Exchange, ...]
    success: bool | None = None
    """None: nobody said."""
    slips: frozenset[int] = frozenset()
    """Places of exchanges that are shown and not learned."""


@dataclass(frozen=True)
class SftRows:
    """Rows to train on and held-out rows, split by dialogue."""

    train: list[Row]
    validation: list[Row]
    cut: int
    """Rows that lost the middle of their history to ``max_length``."""
    dropped: int
    """Rows left out, as a reply alone was longer."""
    clean: list[Exchange]
    """One exchange of each held-out dialogue: what stage 3 is checked on for forgetting."""

    @property
    def tokens(self) -> int:
        """Tokens of one pass over the training rows."""
        return sum(map(len, self.train))


def read_examples(path: Path) -> list[Example]:
    """Dialogues of a person's file, or the episodes of a run's ``trajectories``.

    UsageError naming file and row on whatever is in no known shape.
    """
    return [_example(record) for record in read_records(path)]


def episode_examples(episodes: Sequence[Trajectory]) -> list[Example]:
    """Every turn of every episode that the machinery did not drop."""
    examples = [_of_episode(episode) for episode in episodes if episode.error is None]
    return [example for example in examples if example.exchanges]


def only_successful(examples: Sequence[Example], source: str) -> list[Example]:
    """Those marked as successful; UsageError if none is marked or none succeeded."""
    kept = [e for e in examples if e.success]
    if not kept:
        marked = any(e.success is not None for e in examples)
        why = "none of them succeeded" if marked else "no row has a success or reward field"
        raise UsageError(
            f"sft.only_successful keeps nothing of the {len(examples)} dialogues of {source}: "
            f"{why}; set it to false or give other data."
        )
    return kept


def build_rows(
    tokenizer: Any,
    examples: Sequence[Example],
    *,
    max_length: int,
    validation_fraction: float,
    generator: np.random.Generator,
) -> SftRows:
    """Rows of all examples, a share of the dialogues held out; the stop token is checked.

    Rows whose last reply alone is longer than ``max_length`` are dropped and counted; UsageError
    if nothing is left to train on.
    """
    held_out = _held_out(len(examples), validation_fraction, generator)
    train: list[Row] = []
    validation: list[Row] = []
    cut = dropped = 0
    for number, example in enumerate(examples):
        for row in exchange_rows(tokenizer, example.exchanges, example.slips):
            fitted = cut_row(row, max_length)
            if fitted is None:
                dropped += 1
                continue
            cut += len(fitted) < len(row)
            (validation if number in held_out else train).append(fitted)
    if not train:
        raise UsageError(
            f"No row is left to train on: in all {dropped} that were dropped a reply alone is "
            f"longer than sft.max_length ({max_length} tokens); raise it."
        )
    check_stop_token([*train, *validation], stop_ids(tokenizer))
    return SftRows(train, validation, cut, dropped, _one_of_each(examples, held_out))


def _one_of_each(examples: Sequence[Example], held_out: set[int]) -> list[Exchange]:
    """The first exchange of the first held-out dialogue, the second of the second, and so on."""
    chosen = [_learned(examples[number]) for number in sorted(held_out)]
    return [turns[place % len(turns)] for place, turns in enumerate(chosen) if turns]


def _learned(example: Example) -> list[Exchange]:
    return [x for place, x in enumerate(example.exchanges) if place not in example.slips]


def _held_out(count: int, fraction: float, generator: np.random.Generator) -> set[int]:
    wanted = min(max(round(count * fraction), int(fraction > 0)), count - 1)
    return set(generator.permutation(count)[:wanted].tolist())


def _example(record: Record) -> Example:
    place, row = record
    if "turns" in row and "task_id" in row:
        return _of_episode(_episode(place, row))
    dialogue = read_dialogue(place, row)
    messages: Sequence[Message] = dialogue.messages
    if dialogue.tools:  # as an environment shows them
        messages = with_system(messages, tool_prompt(dialogue.tools))
    exchanges = dialogue_exchanges(messages, last_reply_only=dialogue.last_reply_only)
    replies = [m for m in dialogue.messages if m["role"] == "assistant"][-len(exchanges) :]
    slips = frozenset(place for place, m in enumerate(replies) if not is_learned(m))
    return Example(tuple(exchanges), dialogue.success, slips)


def _episode(place: str, row: dict[str, Any]) -> Trajectory:
    try:
        return Trajectory.from_json(row)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"{place} has turns and task_id but is no trajectory of aac ({_told(error)}); give one "
            "as aac collect writes it, or leave the row out."
        ) from error


def _told(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _of_episode(episode: Trajectory) -> Example:
    turns = [turn for turn in episode.turns if turn.action.text]
    slips = frozenset(place for place, turn in enumerate(turns) if turn.info.get(SLIP))
    return Example(tuple((t.messages, t.action.text) for t in turns), episode.success, slips)
