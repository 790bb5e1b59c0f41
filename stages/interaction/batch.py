"""Rows that are decoded side by side: they enter and leave one by one, and nobody waits.

Steps are taken by the first slots of a network, whoever sits there: a row whose reply has ended, or
which was left, runs along unseen until a quarter of them does, as moving rows costs more than that.
What a row has left in its slot may be read on by the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stages.interaction.network import Network
from stages.interaction.replies import Sampled
from stages.interaction.sampling import finest, pick
from stages.interaction.slots import ROOM

RUNS_ALONG = 0.25
"""Most of the rows in a step, as a share, that are none of anybody's business."""
LEAST_SHARED = 16
"""Fewer tokens are computed again sooner than copied from another row."""
CHUNK = 4096
"""Prompt tokens of one forward, unless a single row has more."""


@dataclass(eq=False)
class Seat:
    """A row of the batch for as long as somebody wants it."""

    slot: int


@dataclass(frozen=True)
class Asked:
    """One reply to be sampled."""

    prompt: Sequence[int]
    limit: int
    """Most new tokens, at least 1."""
    draws: np.ndarray | None
    """(limit or more,) numbers in [0, 1) for inverse-CDF sampling; None where it is greedy."""


class Batch:
    """Decodes replies of at most ``limit`` tokens, with one temperature and set of stop tokens."""

    def __init__(
        self,
        network: Network,
        *,
        stops: Sequence[int],
        temperature: float,
        limit: int,
        greedy: bool = False,
    ) -> None:
        self._network, self._slots, self._greedy = network, network.slots, greedy
        self._stops, self._temperature = list(stops), temperature
        self._seats: list[Seat | None] = []
        self._running = 0
        """So many slots, from the first, take part in a step."""
        fields = [
            ("going", np.bool_),
            ("last", np.int64),
            ("count", np.int64),
            ("limit", np.int64),
            ("draws", np.float64, (limit + 1,)),
            ("ids", np.int64, (limit + 1,)),
            ("logprobs", np.float32, (limit + 1,)),
        ]
        self._table = np.zeros(0, dtype=np.dtype(fields, align=True))
        """By slot. A row that runs along writes behind its end: there is one column to spare."""
        self._stopping = np.zeros(0, dtype=bool)

    @property
    def held(self) -> int:
        """How many rows have a seat."""
        return len(self._seats) - self._seats.count(None)

    @property
    def going(self) -> int:
        """How many replies are not yet at their end."""
        return int(self._table["going"][: self._running].sum())

    def seat(self) -> Seat:
        """A row more."""
        if None not in self._seats:
            self._seats.append(None)
        seat = Seat(self._seats.index(None))
        self._seats[seat.slot] = seat
        return seat

    def leave(self, seat: Seat) -> None:
        """Free a row whose reply has ended."""
        self._seats[seat.slot] = None

    def forget(self) -> None:
        """Nothing that was computed holds any more: the weights are others."""
        self._slots.length[:] = 0

    def begin(self, seats: Sequence[Seat], asked: Sequence[Asked]) -> None:
        """Read prompts and draw their first tokens. What a row, or else another one, has already
        computed of a prompt is not computed again."""
        self._make_room(asked)
        with self._network.guard():
            self._share_beginning(seats, asked)
            for seat, one in zip(seats, asked, strict=True):
                self._take_over(seat.slot, one.prompt)
                if seat.slot >= self._running:
                    self._exchange([seat.slot], [self._running])
                    self._running += 1
                self._write(seat.slot, one)
            for part in self._chunks(seats, asked):
                slots = [seats[k].slot for k in part]
                logits = self._extend(slots, [asked[k].prompt for k in part])
                self._draw(np.array(slots), logits)

    def run(self, wanted: int) -> None:
        """Decode until so many more replies have ended, or all."""
        left = max(self.going - wanted, 0)
        with self._network.guard():
            while (going := self.going) > left:
                if going <= (1 - RUNS_ALONG) * self._running:
                    self._close_ranks()
                self._step()

    def ended(self, seat: Seat) -> bool:
        """Whether a row's reply is complete."""
        return not self._table["going"][seat.slot]

    def reply(self, seat: Seat) -> Sampled:
        """The ids and log-probs of a row's reply."""
        row = self._table[seat.slot]
        count = int(row["count"])
        return Sampled(row["ids"][:count].tolist(), row["logprobs"][:count].tolist())

    def _make_room(self, asked: Sequence[Asked]) -> None:
        columns = max(len(one.prompt) + min(one.limit, ROOM) for one in asked)
        self._slots.reserve(len(self._seats), columns)
        more = self._slots.count - len(self._table)
        self._table = np.append(self._table, np.zeros(more, dtype=self._table.dtype))

    def _share_beginning(self, seats: Sequence[Seat], asked: Sequence[Asked]) -> None:
        """What new rows have in common (a system message, say) is computed in one of them."""
        new = [k for k, seat in enumerate(seats) if self._slots.length[seat.slot] == 0]
        if len(new) < 2:
            return
        shared = common_beginning([asked[k].prompt for k in new])
        if len(shared) - self._slots.known([*shared, -1]).max() >= LEAST_SHARED:
            slot = seats[new[0]].slot
            self._take_over(slot, [*shared, -1])
            self._extend([slot], [shared])

    def _take_over(self, slot: int, prompt: Sequence[int]) -> None:
        """Leave in a slot, or copy into it, as much of a prompt as some slot knows."""
        known = self._slots.known(prompt)
        best = int(known.argmax())
        if known[best] >= known[slot] + LEAST_SHARED:
            self._slots.copy(best, slot, int(known[best]))
        else:
            self._slots.length[slot] = known[slot]

    def _write(self, slot: int, asked: Asked) -> None:
        row = self._table[slot]
        row["going"], row["count"], row["limit"] = True, 0, asked.limit
        if asked.draws is not None:
            row["draws"][: asked.limit] = asked.draws[: asked.limit]

    def _chunks(self, seats: Sequence[Seat], asked: Sequence[Asked]) -> list[list[int]]:
        """Their numbers, in groups of as many tokens to compute as one forward takes."""
        parts, tokens = list[list[int]](), CHUNK
        for number, (seat, one) in enumerate(zip(seats, asked, strict=True)):
            new = len(one.prompt) - int(self._slots.length[seat.slot])
            if tokens + new > CHUNK:
                parts.append([])
                tokens = 0
            parts[-1].append(number)
            tokens += new
        return parts

    def _extend(self, slots: Sequence[int], prompts: Sequence[Sequence[int]]) -> Tensor:
        held = self._slots
        new = [prompt[held.length[slot] :] for slot, prompt in zip(slots, prompts, strict=True)]
        logits = self._network.extend(slots, new)
        for slot, prompt in zip(slots, prompts, strict=True):
            held.tokens[slot, : len(prompt)] = prompt
            held.length[slot] = len(prompt)
        return logits

    def _step(self) -> None:
        """One more token for every row that runs; of those that have ended nothing is kept."""
        held, table = self._slots, self._table[: self._running]
        if held.length[: self._running].max() >= held.columns:
            held.reserve(held.count, held.columns + 1)
        logits = self._network.step(torch.as_tensor(table["last"].copy(), device=held.device))
        going = np.flatnonzero(table["going"])
        held.tokens[going, held.length[going]] = table["last"][going]
        held.length[going] += 1
        self._draw(np.arange(self._running), logits)

    def _draw(self, slots: np.ndarray, logits: Tensor) -> None:
        """A token for each of these slots, of logits (slots, vocabulary)."""
        table, device = self._table, self._slots.device
        count, going = table["count"][slots], table["going"][slots]
        draws = None
        if not self._greedy:
            drawn = torch.as_tensor(table["draws"][slots, count])
            draws = drawn.to(finest(device)).to(device)
        chosen, logprobs = pick(logits, self._temperature, draws)
        ids = chosen.numpy(force=True)
        table["ids"][slots, count] = ids
        table["logprobs"][slots, count] = logprobs.numpy(force=True)
        table["last"][slots] = ids
        table["count"][slots] = count + going
        stopped = self._stop_table(logits.shape[-1])[ids]
        table["going"][slots] = going & ~stopped & (count + 1 < table["limit"][slots])

    def _stop_table(self, vocabulary: int) -> np.ndarray:
        if len(self._stopping) != vocabulary:
            self._stopping = np.isin(np.arange(vocabulary), self._stops)
        return self._stopping

    def _close_ranks(self) -> None:
        """Rows that still go on come first, and only they run."""
        going = self._table["going"][: self._running]
        count = int(going.sum())
        ended = np.flatnonzero(~going[:count])
        late = count + np.flatnonzero(going[count:])
        self._exchange(ended.tolist(), late.tolist())
        self._running = count

    def _exchange(self, some: Sequence[int], others: Sequence[int]) -> None:
        """The rows of two lists of slots change places."""
        if list(some) == list(others):
            return
        here, there = [*some, *others], [*others, *some]
        with self._network.guard():
            self._slots.move(here, there)
        self._table[there] = self._table[here]
        seats = [self._seats[slot] for slot in here]
        for seat, slot in zip(seats, there, strict=True):
            self._seats[slot] = seat
            if seat is not None:
                seat.slot = slot


def common_beginning(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The tokens that all prompts begin with, short of the last one of any."""
    rows = [tuple(prompt) for prompt in prompts]
    first, last = min(rows), max(rows)  # whatever these two share, all in between do
    length = min(len(prompt) for prompt in prompts) - 1
    same = (k for k in range(length) if first[k] != last[k])
    return list(first[: next(same, length)])
