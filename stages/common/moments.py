"""What an optimizer remembers, checked when it comes back: right shapes, and all finite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stages.common.errors import UsageError

SHAPED = frozenset(
    ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg")
)
"""Moments of their parameter's shape, by torch's names. Factored or quantised ones differ."""


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any], whose: str) -> None:
    """``load_state_dict``, which looks at no moment itself. UsageError where one does not fit."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    check_moments(state, [p.shape for p in parameters], whose)
    optimizer.load_state_dict(dict(state))


def check_moments(state: Mapping[str, Any], shapes: Sequence[torch.Size], whose: str) -> None:
    """UsageError unless every moment that a saved state holds for parameter k is finite and of the
    k-th of ``shapes``. ``whose``: in words, for the message."""
    count = sum(len(group["params"]) for group in state["param_groups"])
    if count != len(shapes):
        raise UsageError(
            f"the checkpoint's {whose} optimizer has {count} parameters, and the model has "
            f"{len(shapes)}; {_CURE}"
        )
    for number, moments in state["state"].items():
        check_tensors(moments.items(), shapes[number], f"{whose} optimizer, parameter {number}")


def check_tensors(moments: Iterable[tuple[str, Any]], shape: torch.Size, where: str) -> None:
    """UsageError unless each tensor is finite, and of this shape where it should be."""
    for name, value in moments:
        if not isinstance(value, Tensor):
            continue
        if name in SHAPED and value.shape != shape:
            raise UsageError(
                f"the checkpoint's {where}: {name} has the shape {tuple(value.shape)}, expected "
                f"{tuple(shape)}; {_CURE}"
            )
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise UsageError(f"the checkpoint's {where}: {name} is not finite; {_CURE}")


_CURE = "name an older one with --resume DIR, or start anew with --resume never."
