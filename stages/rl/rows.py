"""From episodes with advantages to the tensors of one forward.

A turn is a training row of its own; where each prompt extends the last token for token, the
turns of an episode share one row and every token is computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from stages.common.ranks import ALONE, Ranks
from stages.common.rows import Row, merge_turns
from stages.interaction.trajectory import Trajectory

FILLER = -1


@dataclass(frozen=True)
class ActorRow:
    """One sequence: (L,) tensors. ``mask`` is True at action tokens; off it the floats are 0."""

    ids: Tensor
    mask: Tensor
    behaviour: Tensor
    """log π before the update, at the sampling temperature: what the ratio is taken to."""
    weight: Tensor
    """min(π / μ, cap) of that π to the μ that sampled, where a rounded copy did; else 1."""
    advantage: Tensor
    """The advantage of the token's turn."""
    reference: Tensor
    """log π_ref at the sampling temperature; 0 until ``learner`` has filled it in."""
    returns: Tensor
    """G = A + V of the token's turn: what a value head on the actor's trunk is fitted to."""
    turn: Tensor
    """Index of the token's turn in its episode, -1 off the actions."""
    episode: int
    """Index of the episode in the batch it came from; ``FILLER``: counts for nothing."""
    key: tuple[int, ...] = ()
    """Key of that episode: with it a row is known again wherever it goes."""
    relabelled: bool = False
    """Hindsight chose its task by its outcome: to be imitated, never to be weighed by a ratio."""
    below: Tensor | None = None
    """(L, H) states below the layers that learn, where some stand still and they are known."""

    @property
    def actions(self) -> int:
        """Number of action tokens."""
        return int(self.mask.sum())

    @property
    def text(self) -> tuple[bytes, bytes]:
        """Which tokens, and which of them are actions: what a frozen model's log-probs hang on."""
        return self.ids.numpy().tobytes(), self.mask.numpy().tobytes()

    @property
    def first(self) -> Tensor:
        """(L,) bool, True at each turn's first action token: the model's output that chose it
        stands on the last prompt token, so its input is the actor's state S_t."""
        before = torch.cat([self.turn.new_full((1,), -1), self.turn[:-1]])
        return self.mask & (self.turn != before)


@dataclass(frozen=True)
class RowBatch:
    """Rows padded on the right to (B, T)."""

    ids: Tensor
    mask: Tensor
    behaviour: Tensor
    weight: Tensor
    advantage: Tensor
    reference: Tensor
    returns: Tensor
    first: Tensor
    below: Tensor | None
    """(B, T, H), or None unless it is known of all rows."""


def actor_rows(
    episodes: Sequence[Trajectory],
    advantages: Sequence[Sequence[float]],
    returns: Sequence[Sequence[float]] | Tensor | None = None,
) -> list[ActorRow]:
    """Rows of all episodes; ``advantages[i][t]`` and ``returns[i][t]`` belong to turn t of
    episode i.

    Prompt and action ids are those recorded at sampling; nothing is tokenised again.
    """
    rows = []
    for i, (episode, turn_advantages) in enumerate(zip(episodes, advantages, strict=True)):
        turns = episode.turns
        for merged in merge_turns([(t.prompt_ids, t.action_ids) for t in turns]):
            turn_of = torch.tensor(merged.turn_index)
            mask = torch.tensor(merged.action_mask, dtype=torch.bool)
            behaviour = torch.zeros(len(merged.ids))
            advantage, goal = torch.zeros(len(merged.ids)), torch.zeros(len(merged.ids))
            for t in sorted(set(merged.turn_index) - {-1}):
                behaviour[turn_of == t] = torch.tensor(turns[t].logprobs)
                advantage[turn_of == t] = float(turn_advantages[t])
                if returns is not None:
                    goal[turn_of == t] = float(returns[i][t])
            ids = torch.tensor(merged.ids)
            row = ActorRow(
                ids=ids,
                mask=mask,
                behaviour=behaviour,
                weight=mask.float(),
                advantage=advantage,
                reference=torch.zeros_like(behaviour),
                returns=goal,
                turn=turn_of,
                episode=i,
                key=episode.key,
                relabelled=bool(episode.relabelled_from),
            )
            rows.append(row)
    return rows


def demonstration(row: Row) -> ActorRow:
    """A row of stage 1: its replies are the actions, nothing was sampled."""
    ids, mask = torch.tensor(row.input_ids), torch.tensor(row.action_mask, dtype=torch.bool)
    nothing = torch.zeros(len(ids))
    return ActorRow(
        ids=ids,
        mask=mask,
        behaviour=nothing,
        weight=nothing,
        advantage=nothing,
        reference=nothing,
        returns=nothing,
        turn=mask.long() - 1,
        episode=0,
    )


def refuse_relabelled(rows: Sequence[ActorRow]) -> None:
    """ValueError for a row of hindsight: its task was chosen by its outcome, so that π/μ is no
    likelihood ratio of it, and its advantage none of the policy's."""
    planted = [row.key for row in rows if row.relabelled]
    if planted:
        raise ValueError(f"relabelled rows {planted} reached the clipped ratio")


def collate(rows: Sequence[ActorRow], device: torch.device | str = "cpu") -> RowBatch:
    """Pad on the right with id 0: the mask says what counts, ids never do."""
    names = [field.name for field in fields(RowBatch) if field.name != "below"]
    padded = {n: pad_sequence([getattr(r, n) for r in rows], batch_first=True) for n in names}
    known = [row.below for row in rows if row.below is not None]
    below = pad_sequence(known, batch_first=True) if len(known) == len(rows) else None
    return RowBatch(**{name: tensor.to(device) for name, tensor in padded.items()}, below=below)


def microbatches(rows: Sequence[ActorRow], *, max_tokens: int) -> Iterator[list[ActorRow]]:
    """Rows of like length together, each piece at most ``max_tokens`` with its padding."""
    piece: list[ActorRow] = []
    for row in sorted(rows, key=lambda r: len(r.ids)):
        if piece and len(row.ids) * (len(piece) + 1) > max_tokens:
            yield piece
            piece = []
        piece.append(row)
    if piece:
        yield piece


def pieces(
    rows: Sequence[ActorRow], *, max_tokens: int, ranks: Ranks = ALONE
) -> list[list[ActorRow]]:
    """This process's share of ``rows`` as microbatches, as many as every other process has.

    All processes know all rows, so each works out the shares of all. Where others have more, a
    filler stands in: under DDP and ZeRO everybody has to go forward and backward equally often.
    """
    every = [list(microbatches(own, max_tokens=max_tokens)) for own in shares(rows, ranks.size)]
    most = max(map(len, every))
    mine = every[ranks.rank]
    return mine + [[_filler(rows[0])] for _ in range(most - len(mine))]


def shares(rows: Sequence[ActorRow], count: int) -> list[list[ActorRow]]:
    """The rows dealt out so that all have about the same number of tokens: the longest first, each
    to whoever has least."""
    dealt: list[list[ActorRow]] = [[] for _ in range(count)]
    tokens = [0] * count
    for row in sorted(rows, key=lambda r: -len(r.ids)) if count > 1 else rows:
        poorest = tokens.index(min(tokens))
        dealt[poorest].append(row)
        tokens[poorest] += len(row.ids)
    return dealt


def counts(piece: Sequence[ActorRow]) -> bool:
    """Whether a microbatch holds anything but a filler."""
    return piece[0].episode != FILLER


def _filler(row: ActorRow) -> ActorRow:
    """Two tokens with one action, all numbers 0."""
    nothing, mask = torch.zeros(2), torch.tensor([False, True])
    names = ("behaviour", "weight", "advantage", "reference", "returns")
    floats: dict[str, Any] = dict.fromkeys(names, nothing)
    turn = mask.long() - 1
    short = replace(row, ids=row.ids[:2], mask=mask, turn=turn, episode=FILLER, **floats)
    return replace(short, below=None if row.below is None else row.below[:2])
