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

KEPT = 2**28
"""Bytes of states that are kept from one rollout to the next, at most."""
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
        norm, training = self._decoder.norm, self._decoder.training
        self._decoder.norm = nn.Identity()
        self._decoder.eval()
        try:
            with self._only(self._whole[: self._cut]):
                output = self._decoder(input_ids=ids, use_cache=False)
        finally:
            self._decoder.norm = norm
            self._decoder.train(training)
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


class KnownBelow:
    """Gives rows their states below, each text's computed once while it may come again."""

    def __init__(self, states_of: Callable[[Tensor], Tensor], *, max_tokens: int) -> None:
        """``states_of``: ids (B, T) to (B, T, H); ``max_tokens``: padded, of one forward."""
        self._states_of, self._max_tokens = states_of, max_tokens
        self._known: dict[tuple[bytes, bytes], Tensor] = {}

    def __call__(self, rows: Sequence[ActorRow]) -> list[ActorRow]:
        """The rows, in order, with ``below``."""
        new = {row.text: row for row in rows if row.text not in self._known}
        for piece in microbatches(list(new.values()), max_tokens=self._max_tokens):
            states = self._states_of(collate(piece).ids)
            # Copies: a view of one row would hold those of all beside it.
            self._known |= {
                row.text: state[: len(row.ids)].clone()
                for row, state in zip(piece, states, strict=True)
            }
        return [replace(row, below=self._known[row.text]) for row in rows]

    def keep(self, rows: Sequence[ActorRow]) -> None:
        """Forget all but what is known of these, as far as there is room for it."""
        kept, size = {}, 0
        for row in rows:
            states = self._known.get(row.text)
            if states is not None and row.text not in kept and size + states.nbytes <= KEPT:
                kept[row.text] = states
                size += states.nbytes
        self._known = kept
