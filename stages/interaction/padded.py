"""Decoding for models whose layers keep more than keys and values, or take no positions.

Prompts are padded on the left to one rectangle and the model's own cache grows under it, so rows
begin together, and nothing is kept from turn to turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stages.interaction.batch import Asked
from stages.interaction.network import cache_name, keeps_some_keys, left_padded
from stages.interaction.replies import Sampled
from stages.interaction.sampling import finest, pick

LEAVE_AT = 0.7
"""Finished rows leave the batch once no more than this share of it is still going: copying the
cache costs more than a few idle rows."""


@torch.no_grad()
def decode_padded(
    model: Any, asked: Sequence[Asked], stops: Sequence[int], temperature: float
) -> list[Sampled]:
    """Sample every row to its stop token or limit."""
    batch = _Rectangle(model, asked)
    while batch.step(stops, temperature):
        pass
    rows = zip(batch.ids, batch.logprobs, batch.lengths, strict=True)
    return [Sampled(ids[:n].tolist(), logprobs[:n].tolist()) for ids, logprobs, n in rows]


class _Rectangle:
    """Rows that were begun together; ``rows`` says which are still in it."""

    def __init__(self, model: Any, asked: Sequence[Asked]) -> None:
        self.model, self.device = model, model.device
        ids, starts = left_padded([one.prompt for one in asked])
        self.limits = np.array([one.limit for one in asked])
        shape = (len(asked), self.limits.max())
        self.ids, self.logprobs = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        self.lengths = np.zeros(len(asked), dtype=np.int64)
        self.draws = np.zeros(shape)
        for row, one in enumerate(asked):
            if one.draws is not None:
                self.draws[row, : one.limit] = one.draws[: one.limit]
        self.greedy = asked[0].draws is None
        self.rows, self.going = np.arange(len(asked)), np.ones(len(asked), dtype=bool)
        self.cache: Any = None
        self.count, self.keyed = 0, keeps_some_keys(model)
        self.next = torch.as_tensor(ids, device=self.device)
        self.mask = torch.as_tensor(np.arange(ids.shape[1]) >= starts[:, None]).long()
        self.mask = self.mask.to(self.device)

    def step(self, stops: Sequence[int], temperature: float) -> bool:
        """One more token for every row still going; False once none is."""
        chosen, logprobs = pick(self._forward(), temperature, self._draw())
        ids = chosen.numpy(force=True)
        self.ids[self.rows, self.count] = ids
        self.logprobs[self.rows, self.count] = logprobs.numpy(force=True)
        self.count += 1
        self.lengths[self.rows[self.going]] = self.count
        self.going &= ~np.isin(ids, stops) & (self.count < self.limits[self.rows])
        self.next = chosen[:, None]
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(ids), 1)], dim=1)
        left = int(self.going.sum())
        if 0 < left <= LEAVE_AT * len(ids):
            self._leave()
        return left > 0

    def _forward(self) -> Tensor:
        positions = (self.mask.cumsum(1) - 1).clamp_(min=0)[:, -self.next.shape[1] :]
        name, parameters = cache_name(self.model)
        given = {"position_ids": positions} if "position_ids" in parameters else {}
        if self.keyed or not self.count:  # a state has taken in what came before
            given["attention_mask"] = self.mask
        output = self.model(
            input_ids=self.next,
            use_cache=True,
            logits_to_keep=1,
            **given,
            **{name: self.cache},
        )
        self.cache = getattr(output, name)
        logits: Tensor = output.logits[:, -1]
        return logits

    def _draw(self) -> Tensor | None:
        if self.greedy:
            return None
        drawn = torch.as_tensor(self.draws[self.rows, self.count])
        return drawn.to(finest(self.device)).to(self.device)

    def _leave(self) -> None:
        keep = torch.as_tensor(np.flatnonzero(self.going), device=self.device)
        self.cache.reorder_cache(keep)
        self.next, self.mask = self.next[keep], self.mask[keep]
        self.rows, self.going = self.rows[self.going], self.going[self.going]
