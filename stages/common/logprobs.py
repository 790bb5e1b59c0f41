"""Log-probs of tokens, in float32. The one place where logits and tokens are shifted.

Tensors are (rows, tokens) and column t speaks of token t as an action: the model's output at
position t-1 judges token t, so column 0 is never an action and always 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def token_logprobs(logits: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
    """log π(ids[b, t] | ids[b, :t]) at a sampling temperature; (B, T), float32, column 0 is 0.

    ``logits`` (B, T, V) as a causal model returns them for ``ids`` (B, T), of any float type;
    they are divided by ``temperature`` (> 0) in float32. ValueError on other shapes.
    """
    if logits.shape[:-1] != ids.shape:
        raise ValueError(f"logits {tuple(logits.shape)} do not fit ids {tuple(ids.shape)}")
    scaled = _scaled(logits[:, :-1], temperature)
    chosen = scaled.gather(-1, ids[:, 1:, None]).squeeze(-1) - scaled.logsumexp(-1)
    return torch.cat([chosen.new_zeros(len(ids), 1), chosen], dim=1)


def action_logprobs_and_entropy(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    action_mask: Tensor,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """(log-probs, entropies in nats) of the actor at its actions; each (B, T) float32, else 0.

    The output layer is computed at the action positions only. Rows are padded on the right.
    ``action_mask`` (B, T) bool: True at the tokens the actor chose. Differentiable.
    """
    logits = action_logits(model, input_ids, attention_mask, action_mask)
    logp = log_softmax(logits, temperature)
    chosen = logp.gather(-1, input_ids[action_mask][:, None]).squeeze(-1)
    entropy = -(logp.exp() * logp).sum(-1)
    return scatter(chosen, action_mask), scatter(entropy, action_mask)


def action_logits(
    model: Any, input_ids: Tensor, attention_mask: Tensor, action_mask: Tensor
) -> Tensor:
    """Logits that chose each action token; (N, V) in row-major order of ``action_mask``.

    Goes through the model's whole forward (DDP, ZeRO-3 and a model's own scaling of logits
    included); only the input of its output layer is narrowed. ValueError if column 0 is chosen.
    """
    _check_mask(action_mask, input_ids.shape)
    with at_actions(getattr(model, "module", model).get_output_embeddings(), action_mask):
        output = model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
    logits: Tensor = output.logits[0]
    return logits


@contextmanager
def at_actions(head: Any, action_mask: Tensor) -> Iterator[None]:
    """Inside, the output layer ``head`` sees only the inputs that chose an action token.

    The model's ``logits`` then are (1, N, V), in row-major order of ``action_mask`` (B, T) bool.
    ValueError if the mask is not bool or chooses column 0.
    """
    _check_mask(action_mask, action_mask.shape)

    def narrow(_: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (args[0][:, :-1][action_mask[:, 1:]][None], *args[1:])

    hook = head.register_forward_pre_hook(narrow)
    try:
        yield
    finally:
        hook.remove()


def log_softmax(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """log π over the vocabulary at a sampling temperature, float32, shape of ``logits``."""
    return _scaled(logits, temperature).log_softmax(-1)


def scatter(values: Tensor, mask: Tensor) -> Tensor:
    """(N,) values at the True places of ``mask`` (B, T), zeros elsewhere; differentiable."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)


def _check_mask(action_mask: Tensor, shape: Sequence[int]) -> None:
    if action_mask.shape != tuple(shape) or action_mask.dtype != torch.bool:
        raise ValueError(f"action_mask must be bool of shape {tuple(shape)}")
    if bool(action_mask[:, 0].any()):
        raise ValueError("column 0 has no prompt before it, so it cannot be an action")


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    return logits.float() / temperature
