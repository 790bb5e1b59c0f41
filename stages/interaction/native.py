"""Sampling from a Hugging Face causal model: batched, with a KV cache, log-probs in the same pass.

Sampling is by temperature only, over the whole vocabulary: top-k, top-p and penalties of a
model's generation config would make the recorded log-probs false, so they are not read. A row's
tokens depend on its prompt and its key, not on the rows beside it (up to float rounding).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stages.common.chat import encode_prompt, extend_prompt, stop_ids
from stages.common.seeding import keyed_generator
from stages.interaction.generation import Generation, Request

LEAVE_AT = 0.75
"""Finished rows leave the batch once no more than this share of it is still going: copying the
cache costs more than a few idle rows."""


class NativePolicy:
    """A ``Policy`` that samples from ``model``, whose weights it reads anew at every call.

    ``temperature`` is that of sampling and of the recorded log-probs (also of greedy replies).
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, temperature: float = 1.0, max_new_tokens: int = 96
    ) -> None:
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        self._model = model
        self._tokenizer = tokenizer
        self._temperature = temperature
        self._limit = max_new_tokens
        self._stops = stop_ids(tokenizer, getattr(model, "generation_config", None))
        self._context = context_length(model.config)

    def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        """One reply per request, in order."""
        prompts = [self._prompt(request) for request in requests]
        rows = [i for i, prompt in enumerate(prompts) if len(prompt) < self._context]
        replies = [Generation(prompt, overflow=True) for prompt in prompts]
        if not rows:
            return replies
        job = Job(
            prompts=[prompts[i] for i in rows],
            limits=[min(self._limit, self._context - len(prompts[i])) for i in rows],
            uniforms=None if greedy else self._uniforms([requests[i].key for i in rows]),
            stops=self._stops,
            temperature=self._temperature,
        )
        with evaluating(self._model):
            sampled = decode(self._model, job)
        ends = [ids[-1] in self._stops for ids, _ in sampled]
        bare = [ids[:-1] if end else ids for (ids, _), end in zip(sampled, ends, strict=True)]
        texts = self._tokenizer.batch_decode(
            bare, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        for i, (ids, logprobs), text, end in zip(rows, sampled, texts, ends, strict=True):
            replies[i] = Generation(prompts[i], ids, logprobs, text, stopped=end)
        return replies

    def _prompt(self, request: Request) -> list[int]:
        """The state's token ids; what was sampled earlier stays as it was sampled."""
        last = request.previous
        if last is not None and last.prompt_ids:
            ids = extend_prompt(
                self._tokenizer,
                previous_messages=last.messages,
                previous_ids=last.prompt_ids,
                action_text=last.action.text,
                action_ids=last.action_ids,
                messages=request.messages,
            )
            if ids is not None:
                return ids
        return encode_prompt(self._tokenizer, request.messages)

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


@torch.inference_mode()
def decode(model: Any, job: Job) -> list[tuple[list[int], list[float]]]:
    """Per row: sampled ids (with the stop token) and their log-probs at the temperature.

    Prompts are padded on the left, with explicit mask and positions; the output layer sees the
    last position only.
    """
    device, rows = model.device, len(job.prompts)
    ids, mask = left_padded(job.prompts, device)
    positions = (mask.cumsum(1) - 1).clamp_(min=0)
    limits = torch.tensor(job.limits, device=device)
    stops = torch.tensor(job.stops, device=device)
    uniforms = None if job.uniforms is None else torch.as_tensor(job.uniforms, device=device)
    steps = max(job.limits)
    out = torch.zeros(rows, steps, dtype=torch.long, device=device)
    logprobs = torch.zeros(rows, steps, dtype=torch.float32, device=device)
    lengths = torch.zeros(rows, dtype=torch.long, device=device)
    active = torch.arange(rows, device=device)
    going = torch.ones(rows, dtype=torch.bool, device=device)
    network, cache = Network(model), None
    for step in range(steps):
        logits, cache = network(ids, mask, positions, cache)
        draw = None if uniforms is None else uniforms[active, step]
        ids, chosen = pick(logits, job.temperature, draw)
        out[active, step] = ids
        logprobs[active, step] = chosen
        lengths[active[going]] = step + 1
        going &= ~(ids[:, None] == stops).any(1) & (step + 1 < limits[active])
        left = int(going.sum())
        if left == 0:
            break
        if left <= LEAVE_AT * len(active):
            keep = going.nonzero().squeeze(1)
            cache.batch_select_indices(keep)
            ids, active, mask, positions = ids[keep], active[keep], mask[keep], positions[keep]
            going = going[keep]
        ids = ids[:, None]
        positions = positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
    counts = lengths.tolist()
    every = zip(out.tolist(), logprobs.tolist(), counts, strict=True)
    return [(row[:count], values[:count]) for row, values, count in every]


def pick(logits: Tensor, temperature: float, draw: Tensor | None) -> tuple[Tensor, Tensor]:
    """Next tokens (B,) and their log-probs (B,), from logits (B, V) and uniforms (B,) or None.

    Inverse CDF in float64: the token is the first whose cumulated probability exceeds the draw,
    so rounding in a large vocabulary moves no visible probability.
    """
    logp = torch.log_softmax(logits.float() / temperature, dim=-1)
    if draw is None:
        chosen = logp.argmax(-1)
    else:
        cumulated = logp.exp().cumsum(-1, dtype=torch.float64)
        target = draw.to(torch.float64)[:, None] * cumulated[:, -1:]
        chosen = torch.searchsorted(cumulated, target, right=True).squeeze(1)
        chosen = chosen.clamp_(max=logits.shape[-1] - 1)
    return chosen, logp.gather(-1, chosen[:, None]).squeeze(1)


def left_padded(prompts: Sequence[Sequence[int]], device: Any) -> tuple[Tensor, Tensor]:
    """(ids, mask), each (rows, longest prompt); the mask is 1 at real tokens, ids elsewhere 0."""
    width = max(len(prompt) for prompt in prompts)
    ids = np.zeros((len(prompts), width), dtype=np.int64)
    mask = np.zeros((len(prompts), width), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = prompt
        mask[row, width - len(prompt) :] = 1
    return torch.as_tensor(ids, device=device), torch.as_tensor(mask, device=device)


class Network:
    """A causal model's forward with a cache, reduced to the logits of the last position."""

    def __init__(self, model: Any) -> None:
        self._model = model
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"

    def __call__(
        self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any
    ) -> tuple[Tensor, Any]:
        """((B, V) logits, cache)."""
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: cache},
        )
        return output.logits[:, -1], getattr(output, self._cache_name)


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


def context_length(config: Any) -> int:
    """Most tokens a prompt and its reply may have together; very many if the model sets none."""
    inner = getattr(config, "text_config", config)
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        if isinstance(length := getattr(inner, name, None), int) and length > 0:
            return length
    return 2**31
