"""The layers below those that learn, computed once per rollout and shared by all that reads it.

With ``rl.actor.lora_layers`` the lower layers stand still: their output for a row is the same for
the reference, for the actor that sampled, and in every epoch. So it is kept with the row, and all
forwards begin above it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from stages.rl.rows import ActorRow, collate, microbatches

TOLERANCE = 1e-3
"""Relative; two forwards that differ by more than rounding are two different models."""


class LowerLayers:
    """A causal language model cut in two below its ``upper`` uppermost layers."""

    def __init__(self, model: Any, upper: int) -> None:
        self._decoder = model.get_decoder()
        self._whole: nn.ModuleList = self._decoder.layers
        self._cut = len(self._whole) - upper

    @torch.no_grad()
    def states(self, ids: Tensor) -> Tensor:
        """(B, T, H) what the lower layers make of right-padded rows (B, T)."""
        norm = self._decoder.norm
        self._decoder.norm = nn.Identity()
        try:
            with self._only(self._whole[: self._cut]):
                output = self._decoder(input_ids=ids, use_cache=False)
        finally:
            self._decoder.norm = norm
        states: Tensor = output.last_hidden_state
        return states

    @contextmanager
    def above(self) -> Iterator[None]:
        """Inside, the model's ``inputs_embeds`` are states, and only upper layers are computed."""
        with self._only(self._whole[self._cut :]):
            yield

    @contextmanager
    def _only(self, layers: nn.ModuleList) -> Iterator[None]:
        self._decoder.layers = layers
        try:
            yield
        finally:
            self._decoder.layers = self._whole


@torch.no_grad()
def lower_layers(model: Any, upper: int | None) -> LowerLayers | None:
    """The model cut in two, or None: nothing stands still below, or it cannot be cut.

    Not every architecture is a plain stack of layers, so it is tried out.
    """
    if upper is None or upper >= model.config.num_hidden_layers:
        return None
    training = model.training
    model.eval()
    try:
        halves = LowerLayers(model, upper)
        ids = torch.arange(6, device=model.device)[None] % model.config.vocab_size
        states = halves.states(ids)
        with halves.above():
            found = model(inputs_embeds=states, use_cache=False).logits
        whole = model(input_ids=ids, use_cache=False).logits
    except (AttributeError, RuntimeError, TypeError, ValueError, IndexError):
        return None
    finally:
        model.train(training)
    same = torch.allclose(found.float(), whole.float(), rtol=TOLERANCE, atol=TOLERANCE)
    return halves if same else None


def known_below(
    rows: Sequence[ActorRow], states_of: Callable[[Tensor], Tensor], *, max_tokens: int
) -> list[ActorRow]:
    """The rows with their states below, in order; ``states_of``: ids (B, T) to (B, T, H)."""
    done: dict[int, ActorRow] = {}
    for piece in microbatches(rows, max_tokens=max_tokens):
        states = states_of(collate(piece).ids)
        pairs = zip(piece, states, strict=True)
        done |= {id(row): replace(row, below=state[: len(row.ids)]) for row, state in pairs}
    return [done[id(row)] for row in rows]
