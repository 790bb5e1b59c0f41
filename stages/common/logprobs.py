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
from torch.nn import functional


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
    # One place before each action, in the rows laid end to end: column 0 is never an action.
    places = action_mask.flatten().nonzero().squeeze(1) - 1

    def narrow(_: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        states = args[0].flatten(0, 1).index_select(0, places)
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


def chosen_logprobs(logits: Tensor, tokens: Tensor, temperature: float = 1.0) -> Tensor:
    """log π of the tokens that were chosen, float32; (n, V) and (n,) to (n,)."""
    losses = functional.cross_entropy(_scaled(logits, temperature), tokens, reduction="none")
    return -losses


def chosen_and_entropy(
    logits: Tensor, tokens: Tensor, temperature: float = 1.0, *, learns: bool = False
) -> tuple[Tensor, Tensor]:
    """log π of the chosen tokens and −Σ_v π(v) log π(v), both (n,), float32.

    The same as by ``log_softmax``, with one (n, V) tensor made and kept instead of five.
    ``learns``: the entropy has a gradient, too.
    """
    logprobs, entropy = _Chosen.apply(_scaled(logits, temperature), tokens, learns)
    return logprobs, entropy


class _Chosen(torch.autograd.Function):
    """∂log π(a)/∂z = 1_a − π and ∂H/∂z = −π·(log π + H), for logits z and log π = z − log Σ exp z.

    The logarithm is read off the likeliest token, whose π is never small.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor, learns: bool) -> tuple[Tensor, Tensor]:
        policy = logits.softmax(-1)
        normaliser = logits.amax(-1) - policy.amax(-1).log()
        entropy = normaliser - torch.linalg.vecdot(policy, logits)
        ctx.save_for_backward(tokens, policy, *((logits, normaliser, entropy) if learns else ()))
        if not learns:
            ctx.mark_non_differentiable(entropy)
        return logits.gather(-1, tokens[:, None]).squeeze(-1) - normaliser, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, to_chosen: Tensor, to_entropy: Tensor) -> tuple[Tensor, None, None]:
        tokens, policy, *rest = ctx.saved_tensors
        gradient = policy * -to_chosen[:, None]
        gradient.scatter_add_(-1, tokens[:, None], to_chosen[:, None])
        if rest:
            logits, normaliser, entropy = rest
            log_policy_and_entropy = logits - (normaliser - entropy)[:, None]
            gradient -= log_policy_and_entropy.mul_(policy).mul_(to_entropy[:, None])
        return gradient, None, None


def _check_mask(action_mask: Tensor, shape: Sequence[int]) -> None:
    if action_mask.shape != tuple(shape) or action_mask.dtype != torch.bool:
        raise ValueError(f"action_mask must be bool of shape {tuple(shape)}")
    if bool(action_mask[:, 0].any()):
        raise ValueError("column 0 has no prompt before it, so it cannot be an action")


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    return logits.float() if temperature == 1.0 else logits.float() / temperature
