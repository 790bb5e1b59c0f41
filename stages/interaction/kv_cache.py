"""A KV cache that grows in place, loses rows, and lends finished rows to the next turn.

transformers' own dynamic cache copies everything at every token, which for small models costs
as much as the model. And prompts grow turn by turn by a few tokens: what an earlier turn has
already computed of a prompt is taken over instead of computed again.

Layout: every row's tokens lie side by side, right before the column that is written next, with
padding on their left. So no row has holes, and masks and windows mean what they say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

ROOM = 32
"""Columns of slack, so that the buffers move once in so many tokens."""


class GrowingLayer(DynamicLayer):
    """Keys and values of one layer in buffers (rows, heads, columns, head size)."""

    def __init__(self, buffers: tuple[Tensor, Tensor] | None = None, length: int = 0) -> None:
        super().__init__()
        self.length = length
        if buffers is not None:
            self.buffers = buffers
            self._show()

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append states (rows, heads, tokens, head size); all states so far in that layout."""
        start, self.length = self.length, self.length + key_states.shape[-2]
        new = (key_states, value_states)
        if not self.is_initialized:
            self.buffers = (_room(new[0], self.length), _room(new[1], self.length))
        elif self.length > self.buffers[0].shape[2]:
            keys, values = self.buffers
            self.buffers = (self._grown(keys, start), self._grown(values, start))
        for buffer, states in zip(self.buffers, new, strict=True):
            buffer[:, :, start : self.length] = states
        self._show()
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Columns in use."""
        return self.length

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only these rows, in new buffers: whoever holds the old ones keeps them whole."""
        keys, values = self.buffers
        self.buffers = (self._selected(keys, indices), self._selected(values, indices))
        self._show()

    def _selected(self, buffer: Tensor, indices: Tensor) -> Tensor:
        room = _room(buffer, self.length, len(indices))
        room[:, :, : self.length] = buffer[indices, :, : self.length]
        return room

    def _grown(self, buffer: Tensor, used: int) -> Tensor:
        room = _room(buffer, max(self.length, used + used // 2))
        room[:, :, :used] = buffer[:, :, :used]
        return room

    def _show(self) -> None:
        keys, values = (buffer[:, :, : self.length] for buffer in self.buffers)
        self.keys, self.values, self.is_initialized = keys, values, True


Buffers = list[tuple[Tensor, Tensor]]
"""Per layer: keys and values, (rows, heads, columns, head size)."""


@dataclass(frozen=True)
class Kept:
    """A row of some cache's buffers: the tokens it holds, and the column where they begin."""

    buffers: Buffers
    row: int
    column: int
    tokens: Sequence[int]

    def shared(self, prompt: Sequence[int]) -> int:
        """How many leading tokens of ``prompt`` it holds."""
        count = len(self.tokens)
        if list(prompt[:count]) == list(self.tokens):
            return count
        pairs = enumerate(zip(prompt, self.tokens, strict=False))
        return next((i for i, (one, other) in pairs if one != other), len(prompt))


def growing_cache(model: Any) -> Cache | None:
    """An empty growing cache, or None for a model whose layers keep more than keys and values."""
    layers = DynamicCache(config=model.config).layers
    plain = all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)
    return Cache(layers=[GrowingLayer() for _ in layers]) if plain and layers else None


def buffers_of(cache: Any) -> Buffers | None:
    """What a growing cache holds now; None for another kind of cache."""
    layers = cache.layers
    plain = all(isinstance(layer, GrowingLayer) for layer in layers)
    return [layer.buffers for layer in layers] if plain else None


def taken_over(
    prompts: Sequence[Sequence[int]], kept: Sequence[Kept | None]
) -> tuple[Cache | None, int]:
    """(cache, columns still to compute): what every row's prompt has in common with its past.

    Prompts are padded on the left to one width; the cache holds the columns before the last
    ``columns still to compute``. Rows that could give more are computed again for the rest,
    which keeps the batch a rectangle. (None, width) if there is nothing to take over.
    """
    width = max(len(prompt) for prompt in prompts)
    known = [k.shared(prompt) if k else 0 for prompt, k in zip(prompts, kept, strict=True)]
    columns = max(max(1, len(p) - n) for p, n in zip(prompts, known, strict=True))
    groups: dict[int, list[tuple[int, Kept, int]]] = defaultdict(list)
    for row, (prompt, source) in enumerate(zip(prompts, kept, strict=True)):
        if source is not None and len(prompt) > columns:
            # Column 0 of the new cache is this column of the old one, or left of its start.
            first = source.column + len(prompt) - width
            groups[id(source.buffers)].append((row, source, first))
    if not groups:
        return None, width
    length = width - columns
    moves = [(group[0][1].buffers, *_places(group, length)) for group in groups.values()]
    full = sum(len(group) for group in groups.values()) == len(prompts)
    layers = []
    for index in range(len(moves[0][0])):
        keys, values = (_gathered(moves, (index, k), (len(prompts), length), full) for k in (0, 1))
        layers.append(GrowingLayer((keys, values), length))
    return Cache(layers=layers), columns


def _gathered(
    moves: Sequence[tuple[Buffers, Tensor, Tensor]],
    which: tuple[int, int],
    shape: tuple[int, int],
    full: bool,
) -> Tensor:
    """A new buffer, filled from the rows of old ones; rows without a past are zero."""
    layer, kind = which
    rows, columns = shape
    new = _room(moves[0][0][layer][kind], columns, rows)
    if not full:
        new[:, :, :columns] = 0
    for buffers, target, place in moves:
        old = buffers[layer][kind]
        _, heads, room, size = old.shape
        head = place[:, :1] * heads + torch.arange(heads, device=old.device)
        flat = (head[:, :, None] * room + place[:, None, 1:]).flatten()
        picked = old.view(-1, size).index_select(0, flat)
        new[target, :, :columns] = picked.view(len(target), heads, columns, size)
    return new


def _places(group: Sequence[tuple[int, Kept, int]], columns: int) -> tuple[Tensor, Tensor]:
    """(target rows, [source row, source columns...]); padding repeats a row's first token."""
    device = group[0][1].buffers[0][0].device
    target = torch.tensor([row for row, _, _ in group], device=device)
    source = torch.tensor([[k.row, k.column, first] for _, k, first in group], device=device)
    span = torch.arange(columns, device=device)
    return target, torch.cat([source[:, :1], (source[:, 2:] + span).maximum(source[:, 1:2])], 1)


def _room(like: Tensor, columns: int, rows: int | None = None) -> Tensor:
    shape = list(like.shape)
    shape[2] = columns + ROOM
    if rows is not None:
        shape[0] = rows
    return torch.empty(shape, dtype=like.dtype, device=like.device)
