"""A causal model's forward as decoding needs it: with a cache, logits of the last position only."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stages.interaction.kv_cache import ROOM, growing_cache


class Network:
    """Feeds a batch through a model, first its prompts, then token by token.

    Rows are padded on the left; ``starts`` (rows,) are the columns where they begin. With
    ``bias`` the attention mask is built here once and handed over ready-made, which spares small
    models a third of their time; ``takes_bias`` says whether a model lets us.
    """

    def __init__(self, model: Any, starts: Tensor, width: int, *, bias: bool) -> None:
        self._model = model
        # A wrapper of adapters hands on whatever it is given, so what it stands over is asked.
        own = model.get_base_model() if hasattr(model, "get_base_model") else model
        parameters = inspect.signature(own.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._starts = starts
        self._width = width
        self._ready = bias
        self._mask = self._columns(width)

    def prompts(self, ids: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """((rows, vocabulary) logits, cache) after the last columns (rows, n) of the prompts."""
        columns = torch.arange(self._width - ids.shape[1], self._width, device=ids.device)
        positions = (columns - self._starts[:, None]).clamp_(min=0)
        mask = self._mask
        if self._ready:
            later = torch.arange(self._width, device=ids.device) > columns[:, None]
            mask = mask[..., : self._width].expand(-1, 1, len(columns), -1)
            mask = mask.masked_fill(later, torch.finfo(mask.dtype).min)
        return self._forward(ids, mask, positions, cache)

    def token(self, ids: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """((rows, vocabulary) logits, cache) after one more token (rows, 1)."""
        positions = (self._width - self._starts)[:, None]
        self._width += 1
        if self._width > self._mask.shape[-1]:
            self._mask = self._columns(self._width)
        mask = self._mask[..., : self._width] if self._ready else self._mask
        return self._forward(ids, mask, positions, cache)

    def select(self, rows: Tensor) -> None:
        """Keep only these rows."""
        self._starts, self._mask = self._starts[rows], self._mask[rows]

    def _columns(self, width: int) -> Tensor:
        """Which columns count, for all rows: (rows, width) of 0 and 1, or an additive bias with
        room to grow, (rows, 1, 1, width + room)."""
        span = torch.arange(width + (ROOM if self._ready else 0), device=self._starts.device)
        real = span >= self._starts[:, None]
        if not self._ready:
            return real.long()
        bias = torch.zeros(real.shape, dtype=self._model.dtype, device=real.device)
        return bias.masked_fill_(~real, torch.finfo(bias.dtype).min)[:, None, None]

    def _forward(
        self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any
    ) -> tuple[Tensor, Any]:
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: cache},
        )
        return output.logits[:, -1], getattr(output, self._cache_name)


@torch.no_grad()
def takes_bias(model: Any) -> bool:
    """Whether a ready-made attention bias means to this model what a plain mask means; tried out.

    Some read positions off the mask, others have windows: they get the plain one.
    """
    config = getattr(model.config, "text_config", model.config)
    if getattr(config, "sliding_window", None) or growing_cache(model) is None:
        return False
    starts = torch.tensor([0, 2], device=model.device)
    ids = torch.arange(10, device=model.device).view(2, 5) % config.vocab_size
    found = []
    for bias in (False, True):
        network, cache = Network(model, starts, 4, bias=bias), growing_cache(model)
        try:
            first, cache = network.prompts(ids[:, :4], cache)
            second, _ = network.token(ids[:, 4:], cache)
        except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
            return False
        found.append(torch.stack([first, second]).float())
    return bool(torch.allclose(found[0], found[1], rtol=1e-3, atol=1e-3))


def left_padded(prompts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(ids (rows, longest prompt), columns where the rows begin); padding ids are 0."""
    width = max(len(prompt) for prompt in prompts)
    ids = np.zeros((len(prompts), width), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = prompt
    return ids, np.array([width - len(prompt) for prompt in prompts])


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """The model in evaluation mode (no dropout), and afterwards as it was."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


NO_LIMIT = 2**31
"""Context of a model that sets none."""


def context_length(config: Any) -> int:
    """Most tokens a prompt and its reply may have together; very many if the model sets none."""
    inner = getattr(config, "text_config", config)
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        if isinstance(length := getattr(inner, name, None), int) and length > 0:
            return length
    return NO_LIMIT
