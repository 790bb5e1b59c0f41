"""Sampling from a Hugging Face causal model: batched, with a KV cache, log-probs in the same pass.

Sampling is by temperature only, over the whole vocabulary: top-k, top-p and penalties of a
model's generation config would make the recorded log-probs false, so they are not read. A row's
tokens depend on its prompt and its key, not on the rows beside it (up to float rounding).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stages.common.chat import stop_ids
from stages.common.seeding import keyed_generator
from stages.interaction.generation import Generation, Request
from stages.interaction.kv_cache import Buffers, Kept, buffers_of, growing_cache, taken_over
from stages.interaction.network import (
    Network,
    context_length,
    evaluating,
    left_padded,
    takes_bias,
)
from stages.interaction.replies import Sampled, prompt_ids, replies

LEAVE_AT = 0.7
"""Finished rows leave the batch once no more than this share of it is still going: copying the
cache costs more than a few idle rows."""
LEAST_SHARED = 16
"""Fewer common tokens at the beginning of prompts are not worth a forward of their own."""


class NativePolicy:
    """A ``Policy`` that samples from ``model``, whose weights it reads anew at every call.

    ``temperature`` is that of sampling and of the recorded log-probs (also of greedy replies).
    ``reuse``: keep the KV cache from turn to turn; by default on a CPU only, since elsewhere
    prompts are cheap to compute again and memory is dear.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        temperature: float = 1.0,
        max_new_tokens: int = 96,
        reuse: bool | None = None,
    ) -> None:
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        self._model = model
        self._tokenizer = tokenizer
        self._temperature = temperature
        self._limit = max_new_tokens
        self._stops = stop_ids(tokenizer, getattr(model, "generation_config", None))
        self._context = context_length(model.config)
        self._reuse = model.device.type == "cpu" if reuse is None else reuse
        with evaluating(model):
            self._bias = model.device.type == "cpu" and takes_bias(model)
        self._kept: dict[tuple[int, ...], Kept] = {}
        self._beginning: Kept | None = None
        self._weights = -1

    def at(self, temperature: float, max_new_tokens: int | None = None) -> NativePolicy:
        """The same model sampled at another temperature, and to another limit if given."""
        return NativePolicy(
            self._model,
            self._tokenizer,
            temperature=temperature,
            max_new_tokens=max_new_tokens or self._limit,
            reuse=self._reuse,
        )

    def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        """One reply per request, in order."""
        prompts = [prompt_ids(self._tokenizer, request) for request in requests]
        answers = [Generation(prompt, overflow=True) for prompt in prompts]
        rows = [i for i, prompt in enumerate(prompts) if len(prompt) < self._context]
        if rows:
            job = self._job([requests[i] for i in rows], [prompts[i] for i in rows], greedy)
            with evaluating(self._model):
                decoded = decode(self._model, job)
            self._keep([requests[i].key for i in rows], decoded)
            sampled = [Sampled(row.ids, row.logprobs) for row in decoded]
            made = replies(self._tokenizer, job.prompts, sampled, stops=self._stops)
            for i, reply in zip(rows, made, strict=True):
                answers[i] = reply
        return answers

    def _job(
        self, requests: Sequence[Request], prompts: Sequence[Sequence[int]], greedy: bool
    ) -> Job:
        keys = [request.key for request in requests]
        return Job(
            prompts=prompts,
            limits=[min(self._limit, self._context - len(prompt)) for prompt in prompts],
            uniforms=None if greedy else self._uniforms(keys),
            stops=self._stops,
            temperature=self._temperature,
            bias=self._bias,
            kept=self._past(keys, prompts) if self._reuse else None,
        )

    def _past(
        self, keys: Sequence[tuple[int, ...]], prompts: Sequence[Sequence[int]]
    ) -> list[Kept | None]:
        """What the turn before left of each row's cache, if the weights are still the same; for
        rows that begin, what they have in common (a system message, say), computed once."""
        weights = sum(parameter._version for parameter in self._model.parameters())
        if weights != self._weights:
            self._weights, self._kept, self._beginning = weights, {}, None
        known = [self._kept.get((*key[:-1], key[-1] - 1)) for key in keys]
        fresh = [prompt for prompt, kept in zip(prompts, known, strict=True) if kept is None]
        beginning = self._begun(fresh) if len(fresh) > 1 else None
        return [kept or beginning for kept in known]

    def _begun(self, prompts: Sequence[Sequence[int]]) -> Kept | None:
        """The cache of the tokens that all these prompts begin with; None if they are too few."""
        shared = common_beginning(prompts)
        if len(shared) < LEAST_SHARED or growing_cache(self._model) is None:
            return None
        if self._beginning is None or list(self._beginning.tokens) != shared:
            with evaluating(self._model):
                self._beginning = read(self._model, shared, bias=self._bias)
        return self._beginning

    def _keep(self, keys: Sequence[tuple[int, ...]], decoded: Sequence[Decoded]) -> None:
        """Remember each row's cache for its next turn; nothing older is kept."""
        rows = zip(keys, decoded, strict=True)
        self._kept = {key: row.kept for key, row in rows if row.kept is not None}

    def _uniforms(self, keys: Sequence[tuple[int, ...]]) -> np.ndarray:
        """(rows, tokens) in [0, 1): a row's numbers are keyed by its own key alone."""
        return np.stack([keyed_generator(*key).random(self._limit) for key in keys])


@dataclass(frozen=True)
class Job:
    """One batched decoding."""

    prompts: Sequence[Sequence[int]]
    limits: Sequence[int]
    """Most new tokens of each row."""
    uniforms: np.ndarray | None
    """(rows, at least max(limits)) numbers in [0, 1) for inverse-CDF sampling; None: greedy."""
    stops: Sequence[int]
    temperature: float
    bias: bool = False
    """The model takes a ready-made attention bias."""
    kept: Sequence[Kept | None] | None = None
    """What is left of each row's previous turn; None: nothing is, and nothing is to be kept."""


@dataclass(frozen=True)
class Decoded:
    """One row's reply, and its share of the cache if that can be taken over later."""

    ids: list[int]
    """Sampled ids, with the stop token."""
    logprobs: list[float]
    kept: Kept | None


@torch.no_grad()  # not inference_mode: what ZeRO-3 gathers inside must still be trained on
def decode(model: Any, job: Job) -> list[Decoded]:
    """Sample every row of a job to its stop token or limit.

    Prompts are padded on the left, with explicit mask and positions; the output layer sees the
    last position only.
    """
    batch = _Batch(model, job)
    while batch.step():
        pass
    return batch.results()


def common_beginning(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The tokens that all prompts begin with, short of the last one of any."""
    rows = [tuple(prompt) for prompt in prompts]
    first, last = min(rows), max(rows)  # whatever these two share, all in between do
    length = min(len(prompt) for prompt in prompts) - 1
    same = (k for k in range(length) if first[k] != last[k])
    return list(first[: next(same, length)])


@torch.no_grad()
def read(model: Any, tokens: Sequence[int], *, bias: bool) -> Kept | None:
    """The cache of one row of tokens; None for a model whose cache cannot be lent."""
    ids = torch.tensor([list(tokens)], device=model.device)
    network = Network(model, torch.zeros_like(ids[:, 0]), len(tokens), bias=bias)
    _, cache = network.prompts(ids, growing_cache(model))
    buffers = buffers_of(cache)
    return Kept(buffers, 0, 0, tokens) if buffers else None


class _Batch:
    """The rows of a job while they are decoded; ``active`` says which rows are still in it.

    Book-keeping is numpy's: for small models a torch operation on a few numbers costs as much
    as a layer.
    """

    def __init__(self, model: Any, job: Job) -> None:
        self.job, self.device = job, model.device
        rows, steps = len(job.prompts), max(job.limits)
        ids, starts = left_padded(job.prompts)
        past, columns = taken_over(job.prompts, job.kept or [None] * rows)
        self.cache: Any = growing_cache(model) if past is None else past
        begin = torch.as_tensor(starts, device=self.device)
        self.network = Network(model, begin, ids.shape[1], bias=job.bias)
        self.ids = torch.as_tensor(ids[:, -columns:], device=self.device)
        self.starts = starts
        self.limits = np.asarray(job.limits)
        self.out = np.zeros((rows, steps), dtype=np.int64)
        self.logprobs = np.zeros((rows, steps), dtype=np.float32)
        self.lengths = np.zeros(rows, dtype=np.int64)
        self.active = np.arange(rows)
        self.going = np.ones(rows, dtype=bool)
        self.places: dict[int, tuple[Buffers | None, int]] = {}
        self.count = 0

    def step(self) -> bool:
        """One more token for every row still going; False once none is."""
        forward = self.network.token if self.count else self.network.prompts
        logits, self.cache = forward(self.ids, self.cache)
        chosen, logprobs = pick(logits, self.job.temperature, self._draw())
        ids = chosen.numpy(force=True)
        self.out[self.active, self.count] = ids
        self.logprobs[self.active, self.count] = logprobs.numpy(force=True)
        self.count += 1
        self.lengths[self.active[self.going]] = self.count
        self.going &= ~np.isin(ids, self.job.stops) & (self.count < self.limits[self.active])
        self.ids = chosen[:, None]
        left = int(self.going.sum())
        if left <= LEAVE_AT * len(ids):
            self._leave()
        return left > 0

    def results(self) -> list[Decoded]:
        """Ids, log-probs and cache of every row, in the job's order."""
        rows = zip(self.out.tolist(), self.logprobs.tolist(), self.lengths.tolist(), strict=True)
        made = []
        for row, (ids, logprobs, length) in enumerate(rows):
            buffers, place = self.places[row]
            # The last token was sampled but never fed, so the cache does not hold it.
            tokens = [*self.job.prompts[row], *ids[: length - 1]]
            kept = Kept(buffers, place, int(self.starts[row]), tokens) if buffers else None
            made.append(Decoded(ids[:length], logprobs[:length], kept))
        return made

    def _draw(self) -> Tensor | None:
        if self.job.uniforms is None:
            return None
        draw = torch.as_tensor(self.job.uniforms[self.active, self.count])
        return draw.to(finest(self.device)).to(self.device)

    def _leave(self) -> None:
        """Finished rows go out of the batch; their cache stays where it was."""
        buffers = None if self.job.kept is None else buffers_of(self.cache)
        for place in np.flatnonzero(~self.going).tolist():
            self.places[int(self.active[place])] = (buffers, place)
        if self.going.any():
            keep = torch.as_tensor(np.flatnonzero(self.going), device=self.device)
            self.cache.batch_select_indices(keep)
            self.network.select(keep)
            self.ids = self.ids[keep]
            self.active, self.going = self.active[self.going], self.going[self.going]


def pick(logits: Tensor, temperature: float, draw: Tensor | None) -> tuple[Tensor, Tensor]:
    """Next tokens (B,) and their log-probs (B,), from logits (B, V) and uniforms (B,) or None.

    Inverse CDF, in float64: the token is the first whose cumulated probability exceeds the draw,
    so rounding in a large vocabulary moves no visible probability.
    """
    logp = torch.log_softmax(logits.float() / temperature, dim=-1)
    if draw is None:
        chosen = logp.argmax(-1)
    else:
        cumulated = logp.exp().cumsum(-1, dtype=finest(logp.device))
        target = draw[:, None] * cumulated[:, -1:]
        chosen = torch.searchsorted(cumulated, target, right=True).squeeze(1)
        chosen = chosen.clamp_(max=logits.shape[-1] - 1)
    return chosen, logp.gather(-1, chosen[:, None]).squeeze(1)


def finest(device: torch.device) -> torch.dtype:
    """float64, or float32 where the device has no better (Apple's)."""
    return torch.float32 if device.type == "mps" else torch.float64
