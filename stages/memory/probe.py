"""A short measurement of the recipe's own model on this machine: tokens per second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stages.memory.job import Job
from stages.memory.work import Rates

_ROWS, _NEW, _LONGEST = 16, 16, 512
"""Rows sampled at once, new tokens of each, and the longest sequence tried."""


def probe(actor: str, job: Job, *, dtype: str) -> Rates:
    """Forward, sampling and learning rates of a model. UsageError if it cannot be loaded."""
    import torch

    from stages.common.models import load_actor

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_actor(actor, dtype=dtype).to(device)
    length = min(job.play.row, _LONGEST, _context(model))
    ids = torch.randint(0, job.model.vocabulary, (1, length), device=device)
    forward = length / _seconds(lambda: _forward(model, ids))
    learning = length / _seconds(lambda: _learn(model, ids))
    rows = min(_ROWS, job.play.episodes)
    seconds = _seconds(lambda: _sample(model, ids[0, : min(length, 32)].tolist(), rows))
    name = torch.cuda.get_device_name() if device == "cuda" else "this CPU"
    return Rates(forward, rows * _NEW / seconds, learning, name)


def _context(model: Any) -> int:
    return int(getattr(model.config, "max_position_embeddings", None) or _LONGEST)


def _seconds(work: Callable[[], None]) -> float:
    """Of the second of two calls: the first one warms up."""
    import torch

    work()
    started = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _forward(model: Any, ids: Any) -> None:
    import torch

    with torch.no_grad():
        model(input_ids=ids, use_cache=False)


def _learn(model: Any, ids: Any) -> None:
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    model.zero_grad(set_to_none=True)


def _sample(model: Any, prompt: list[int], rows: int) -> None:
    import numpy as np

    from stages.interaction.native import Job as Decoding
    from stages.interaction.native import decode

    uniforms = np.random.default_rng(0).random((rows, _NEW))
    decode(model, Decoding([prompt] * rows, [_NEW] * rows, uniforms, stops=(), temperature=1.0))
