"""Log-probs of tokens, in float32. The one place where logits and tokens are shifted.

Tensors are (rows, tokens) and column t speaks of token t as an action: the model's output at
position t-1 judges token t, so column 0 is never an action and always 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def at_actions(
    head: Any, action_mask: Tensor, read: Callable[[Tensor], None] | None = None
) -> Iterator[None]:
    """Inside, the output layer ``head`` sees only the inputs that chose an action token.

    The model's ``logits`` then are (1, N, V), in row-major order of ``action_mask`` (B, T) bool.
    ``read`` is handed those inputs, (N, H), within the model's own forward.
    ValueError if the mask is not bool or chooses column 0.
    """
    _check_mask(action_mask, action_mask.shape)

    def narrow(_: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        states = args[0][:, :-1][action_mask[:, 1:]]
        if read is not None:
            read(states)
        return (states[None], *args[1:])

    hook = head.register_forward_pre_hook(narrow)
    try:
        yield
    finally:
        hook.remove()


def log_softmax(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """log π over the vocabulary at a sampling temperature, float32, shape of ``logits``."""
    return _scaled(logits, temperature).log_softmax(-1)


def _check_mask(action_mask: Tensor, shape: Sequence[int]) -> None:
    if action_mask.shape != tuple(shape) or action_mask.dtype != torch.bool:
        raise ValueError(f"action_mask must be bool of shape {tuple(shape)}")
    if bool(action_mask[:, 0].any()):
        raise ValueError("column 0 has no prompt before it, so it cannot be an action")


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    return logits.float() / temperature
