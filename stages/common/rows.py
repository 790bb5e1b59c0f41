"""Training rows: turns joined into sequences, with explicit masks. Plain lists, no torch.

A turn is a prompt and an action, both token ids. Where every prompt extends the one before
it (ids identical), the turns of an episode are one sequence, computed once; elsewhere a turn
is a row of its own. Masks are never inferred from ids: pad may equal the stop token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Ids = Sequence[int]
OFF_ACTION = -1


@dataclass(frozen=True)
class Row:
    """One sequence; ``action_mask`` is True at the tokens that are learned (stop included)."""

    input_ids: tuple[int, ...]
    action_mask: tuple[bool, ...]

    def __len__(self) -> int:
        """Tokens in the row."""
        return len(self.input_ids)


@dataclass(frozen=True)
class MergedRow:
    """Turns joined into one sequence.

    ``action_mask[k]``: token k was chosen by the actor. ``turn_index[k]``: the place of its
    turn in the sequence handed to ``merge_turns``, -1 off the actions.
    """

    ids: tuple[int, ...]
    action_mask: tuple[bool, ...]
    turn_index: tuple[int, ...]

    def __len__(self) -> int:
        """Tokens in the row."""
        return len(self.ids)


def merge_turns(turns: Sequence[tuple[Ids, Ids]]) -> list[MergedRow]:
    """Join (prompt ids, action ids) turns into as few rows as their prompts allow.

    Turn t+1 continues the row of turn t if its prompt starts with prompt_t + action_t, token
    for token; otherwise it opens a new row. Order is kept.
    """
    rows: list[MergedRow] = []
    ids: list[int] = []
    index: list[int] = []
    for t, (prompt, action) in enumerate(turns):
        if ids and list(prompt[: len(ids)]) == ids:
            new = prompt[len(ids) :]
        else:
            rows += _close(ids, index)
            ids, index, new = [], [], prompt
        ids += [*new, *action]
        index += [OFF_ACTION] * len(new) + [t] * len(action)
    return rows + _close(ids, index)


def action_spans(mask: Sequence[bool]) -> list[tuple[int, int]]:
    """(start, end) of each run of True, end exclusive."""
    edges = [k for k in range(1, len(mask)) if mask[k] != mask[k - 1]]
    bounds = [0, *edges, len(mask)]
    return [(a, b) for a, b in pairwise(bounds) if b > a and mask[a]]


def cut_row(row: Row, max_length: int) -> Row | None:
    """The row within ``max_length`` tokens: its middle goes, its last action never does.

    Whole exchanges leave first, oldest first, after the opening prompt; the observation that
    the last action answers stays. If that is not enough the middle of what precedes the last
    action goes, and only that action is learned. None if it alone does not fit.
    """
    if len(row) <= max_length:
        return row
    spans = action_spans(row.action_mask)
    for first_kept in range(1, len(spans) - 1):
        gone = range(spans[0][0], spans[first_kept][0])
        if len(row) - len(gone) <= max_length:
            return _without(row, gone)
    start, end = spans[-1]
    room = max_length - (end - start)
    if room < 1:
        return None
    context = keep_both_ends(row.input_ids[:start], room)
    mask = (False,) * len(context) + (True,) * (end - start)
    return Row(context + row.input_ids[start:end], mask)


def keep_both_ends(ids: Ids, length: int) -> tuple[int, ...]:
    """``ids`` with its middle taken out, so that ``length`` tokens remain, half at each end."""
    if len(ids) <= length:
        return tuple(ids)
    head = length // 2
    return (*ids[:head], *ids[len(ids) - (length - head) :])


def _close(ids: list[int], index: list[int]) -> list[MergedRow]:
    if not ids:
        return []
    mask = tuple(t != OFF_ACTION for t in index)
    return [MergedRow(tuple(ids), mask, tuple(index))]


def _without(row: Row, gone: range) -> Row:
    ids = row.input_ids[: gone.start] + row.input_ids[gone.stop :]
    mask = row.action_mask[: gone.start] + row.action_mask[gone.stop :]
    return Row(ids, mask)
