"""Scores of a reward model, batched and without gradient.

A score is read at the last token of a reply, its stop token. Where the trunk is causal, all
replies of one sequence are scored in one forward, as what stands before a token decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from stages.common.gemm import fitting
from stages.common.rows import Ids

MAX_TOKENS = 16384
"""Padded tokens of one forward."""


def sequence_scores(
    model: Any, rows: Sequence[Ids], *, max_tokens: int = MAX_TOKENS
) -> list[float]:
    """The score of each token sequence (a dialogue up to a reply), in order; float32."""
    return [score for (score,) in _scores(model, [(row, None) for row in rows], max_tokens)]


def reply_scores(
    model: Any,
    rows: Sequence[Ids],
    ends: Sequence[Sequence[int]],
    *,
    max_tokens: int = MAX_TOKENS,
) -> list[list[float]]:
    """Scores of the replies that end (exclusive) at ``ends[k]`` within row k; float32.

    The same numbers as ``sequence_scores`` of ``row[:end]``, in a fraction of the time; only for
    a model that ``scores_every_token``.
    """
    return _scores(model, list(zip(rows, ends, strict=True)), max_tokens)


def scores_every_token(model: Any) -> bool:
    """Whether every position can be scored on its own: a decoder under a linear head."""
    from transformers.modeling_layers import GenericForSequenceClassification

    return isinstance(model, GenericForSequenceClassification)


@torch.no_grad()
def _scores(
    model: Any, jobs: Sequence[tuple[Ids, Sequence[int] | None]], max_tokens: int
) -> list[list[float]]:
    was_training = model.training
    model.eval()
    found: list[list[float]] = [[] for _ in jobs]
    most = fitting(max_tokens, model.device)
    for numbers in _batches([len(row) for row, _ in jobs], most):
        ids, mask = _padded([jobs[n][0] for n in numbers], model)
        if jobs[numbers[0]][1] is None:
            scores = model(input_ids=ids, attention_mask=mask).logits.float()
            for place, n in enumerate(numbers):
                found[n] = scores[place].tolist()
        else:
            scores = _at_every_token(model, ids)
            for place, n in enumerate(numbers):
                row, ends = jobs[n]
                found[n] = scores[place, _last_tokens(row, ends or (), model)].tolist()
    model.train(was_training)
    return found


def _at_every_token(model: Any, ids: Tensor) -> Tensor:
    """What the head says of every token, within the model's own forward: ZeRO gathers by that.

    Padding stands on the right, where no token of a causal model looks: it needs no mask.
    """
    heard: list[Tensor] = []
    hook = model.score.register_forward_hook(lambda *call: heard.append(call[-1]))
    try:
        model(input_ids=ids, use_cache=False)
    finally:
        hook.remove()
    return heard[0].float().squeeze(-1)


def _last_tokens(row: Ids, ends: Sequence[int], model: Any) -> list[int]:
    """Where a Hugging Face head reads: the last token before each end that is not the pad."""
    pad, places = model.config.pad_token_id, []
    for end in ends:
        place = end - 1
        while place > 0 and row[place] == pad:
            place -= 1
        places.append(place)
    return places


def _batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Row numbers, like lengths together, within ``max_tokens`` with their padding."""
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda n: lengths[n]):
        if batch and lengths[number] * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def _padded(rows: Sequence[Ids], model: Any) -> tuple[Tensor, Tensor]:
    """(ids, mask), padded on the right with the id that the head passes over."""
    longest = max(map(len, rows))
    pad = model.config.pad_token_id or 0
    ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return ids.to(model.device), mask.to(model.device)
