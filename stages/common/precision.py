"""What a recipe's ``model.dtype`` comes to: the types of weights and of what is computed."""

from __future__ import annotations

from functools import cache

import torch

from stages.common.console import warn
from stages.common.machine import bf16_instructions


def precision(dtype: str, *, adapters: bool) -> tuple[str, bool]:
    """(type to load weights in, bf16 autocast?) for training.

    Weights that learn are float32 whatever is computed in: AdamW steps at the usual rates are
    smaller than bf16 weights can take up. A base under ``adapters`` stands still, so bf16 will do.
    """
    autocast = computed_in(dtype) == "bfloat16"
    return "bfloat16" if autocast and adapters else "float32", autocast


def computed_in(dtype: str) -> str:
    """float32 or bfloat16: what a recipe's ``model.dtype`` comes to on this machine.

    A CPU without instructions for bfloat16 takes float32, with a notice: it would be slower there.
    """
    on_gpu = torch.cuda.is_available()
    if dtype == "auto":
        return "bfloat16" if on_gpu else "float32"
    if dtype == "bfloat16" and not on_gpu and not bf16_instructions():
        _notice_of_bf16()
        return "float32"
    return dtype


@cache
def _notice_of_bf16() -> None:
    warn(
        "model.dtype is bfloat16, but this CPU has no instructions for it; float32 is used, which "
        "is faster here and takes twice the memory."
    )
