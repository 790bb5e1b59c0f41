"""Who plays during training: the actor itself, or a copy in cheaper weights (F25)."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch

from stages.common.adapters import merged_copy
from stages.common.errors import UsageError
from stages.common.gemm import plain
from stages.interaction.native import NativePolicy

INT8 = "int8"


class Sampler:
    """Gives the policy that plays an actor version; a copy is made anew when the actor moved."""

    def __init__(self, actor: Any, make: Callable[[Any], NativePolicy], dtype: str | None) -> None:
        """``make``: a policy from a model. ``dtype``: of the copy; None: the actor itself plays."""
        self._actor, self._make, self._dtype = actor, make, dtype
        self._made: tuple[int, NativePolicy] | None = None
        if dtype == INT8 and actor.device.type != "cpu":
            raise UsageError(
                "rl.generation.dtype = int8 quantises for a CPU, but the actor is on "
                f"{actor.device.type}; set it to bfloat16 or float16."
            )

    def policy(self, version: int) -> NativePolicy:
        """The policy of actor version ``version``."""
        if self._made is None or (self._dtype is not None and self._made[0] != version):
            self._made = None  # the old copy goes before the new one comes
            model = self._actor if self._dtype is None else cheaper(self._actor, self._dtype)
            self._made = version, self._make(model)
        return self._made[1]


def copy_dtype(wanted: str, *, autocast: bool, quantized: bool) -> str | None:
    """In which type rollouts are sampled from a copy; None: from the actor itself.

    ``wanted``: ``rl.generation.dtype``. ``autocast``: the actor learns in bf16 autocast, which
    would convert every weight again for every token. ``quantized``: its base is, and cannot be
    copied into another type.
    """
    if wanted != "auto":
        return wanted
    return "bfloat16" if autocast and not quantized else None


def cheaper(actor: Any, dtype: str) -> Any:
    """A copy to sample from: adapters merged, then float32, bfloat16, float16 or int8 weights.

    int8: linear layers by torch's dynamic quantisation, one scale per output channel.
    """
    model = merged_copy(actor).eval().requires_grad_(False)
    if dtype != INT8:
        return model.to(getattr(torch, dtype))
    from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic

    head = model.get_output_embeddings()
    if head.weight is model.get_input_embeddings().weight:  # the embedding is looked up in floats
        head.weight = torch.nn.Parameter(copy.copy(head.weight.detach()), requires_grad=False)
    with warnings.catch_warnings():  # torch announces a successor, which is no faster on a CPU
        warnings.simplefilter("ignore")
        layers = {torch.nn.Linear: per_channel_dynamic_qconfig}
        return quantize_dynamic(plain(model.float()), layers, inplace=True)
