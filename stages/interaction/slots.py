"""The KV cache of many rows: each row has a slot, and its tokens stand there from column 0 on.

Rows of any length lie beside each other without padding between their tokens, so a row can grow,
be cut back to what a new prompt has in common with it, or leave, and no other row is touched.
What stands behind a row's end is never read: masks end where it ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

ROOM = 32
"""Columns are allocated in steps of so many."""
ALIGNMENT = 64
"""Bytes, of torch's own tensors on a CPU."""


class Slots:
    """Keys and values by layer, (slots, heads, columns, head size), and the tokens they are of.

    Buffers are made when the first states are written, so heads and sizes may differ by layer.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.tokens = np.zeros((0, 0), dtype=np.int64)
        """(slots, columns): whose keys and values they are."""
        self.length = np.zeros(0, dtype=np.int64)
        """(slots,): tokens in use, from column 0."""

    @property
    def count(self) -> int:
        """How many slots there are."""
        return self.tokens.shape[0]

    @property
    def columns(self) -> int:
        """Most tokens a slot can hold now."""
        return self.tokens.shape[1]

    def reserve(self, slots: int, columns: int) -> None:
        """Make room for so many. Columns that are too few become half as many again, at least."""
        if slots <= self.count and columns <= self.columns:
            return
        slots = max(slots, self.count)
        if columns > self.columns:
            columns = -(-max(columns, self.columns + self.columns // 2) // ROOM) * ROOM
        else:
            columns = self.columns
        used = int(self.length.max(initial=0))
        for buffers in (self.keys, self.values):
            for layer, buffer in enumerate(buffers):  # one by one: the old ones go at once
                buffers[layer] = _larger(buffer, slots, columns, used)
        tokens = np.zeros((slots, columns), dtype=np.int64)
        tokens[: self.count, : self.columns] = self.tokens
        self.length = np.append(self.length, np.zeros(slots - self.count, dtype=np.int64))
        self.tokens = tokens

    def places(self, slots: Tensor, columns: Tensor, heads: int) -> Tensor:
        """(tokens · heads,) where ``write`` puts states of tokens at these slots and columns."""
        head = torch.arange(heads, device=self.device)
        rows = (slots[:, None] * heads + head) * self.columns + columns[:, None]
        return rows.flatten()

    def write(self, layer: int, keys: Tensor, values: Tensor, places: Tensor) -> None:
        """Store states (tokens, heads, head size) of a layer. Layers come in order at first."""
        if layer == len(self.keys):
            self.keys.append(self._empty(keys))
            self.values.append(self._empty(values))
        for buffer, states in ((self.keys[layer], keys), (self.values[layer], values)):
            size = states.shape[-1]
            buffer.view(-1, size).index_copy_(0, places, states.reshape(-1, size))

    def known(self, prompt: Sequence[int]) -> np.ndarray:
        """(slots,) how many leading tokens of ``prompt`` each slot holds, all but its last."""
        width = min(len(prompt) - 1, self.columns)
        same = self.tokens[:, :width] == np.asarray(prompt[:width])
        same &= np.arange(width) < self.length[:, None]
        return np.where(same.all(axis=1), width, same.argmin(axis=1)) if width else same.sum(axis=1)

    def copy(self, source: int, target: int, length: int) -> None:
        """The first tokens of one slot become those of another."""
        for buffer in (*self.keys, *self.values):
            buffer[target, :, :length] = buffer[source, :, :length]
        self.tokens[target, :length] = self.tokens[source, :length]
        self.length[target] = length

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """What stood in ``sources`` stands in ``targets`` afterwards, all at once."""
        width = int(self.length[sources].max(initial=0))
        here = torch.as_tensor(sources, device=self.device)
        there = torch.as_tensor(targets, device=self.device)
        for buffer in (*self.keys, *self.values):
            buffer[there, :, :width] = buffer[here, :, :width]
        self.tokens[targets] = self.tokens[sources]
        self.length[targets] = self.length[sources]

    def _empty(self, states: Tensor) -> Tensor:
        _, heads, size = states.shape
        return _zeros(states, (self.count, heads, self.columns, size))


def _zeros(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Zeros, as what is masked is still multiplied by 0, which garbage could make NaN.

    numpy's come from the system page by page as they are used, torch's are written at once. They
    begin where torch's would: kernels round by how their operands lie in memory.
    """
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    size = math.prod(shape) * like.element_size()
    memory = np.zeros(size + ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return torch.from_numpy(memory[start : start + size]).view(like.dtype).view(shape)


def _larger(buffer: Tensor, slots: int, columns: int, used: int) -> Tensor:
    room = _zeros(buffer, (slots, buffer.shape[1], columns, buffer.shape[3]))
    room[: buffer.shape[0], :, :used] = buffer[:, :, :used]
    return room
