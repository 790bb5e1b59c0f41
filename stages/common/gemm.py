"""Linear layers in float32 by oneDNN, on CPUs for which torch's own choice is the slower one.

torch multiplies float32 matrices by MKL, which leaves AVX-512 unused on CPUs of other makers than
Intel: half the speed there. oneDNN, which torch has with it, uses what the CPU offers. The numbers
differ by rounding only.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

LEAST = 2**21
"""Multiplications below which a call's own cost decides, and MKL's is lower."""
CACHED_TOKENS = 2048
"""Most tokens of one forward on a CPU: what more of them leave behind falls out of its caches, and
the matrices are large enough as they are."""


def fitting(tokens: int, device: torch.device) -> int:
    """At most so many tokens in one forward, and no more than a device can make use of."""
    return min(tokens, CACHED_TOKENS) if device.type == "cpu" else tokens


class QuickLinear(nn.Linear):
    """A linear layer whose products are oneDNN's, where they are float32 on a CPU and large."""

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        fits = inputs.is_cpu and inputs.dtype == self.weight.dtype == torch.float32
        large = inputs.numel() * self.out_features >= LEAST
        if fits and large and not torch.is_autocast_enabled("cpu"):
            return linear(inputs, self.weight, self.bias)
        return super().forward(inputs)


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear`` for float32 on a CPU; only where ``is_quicker()``."""
    if torch.is_grad_enabled() and (inputs.requires_grad or weight.requires_grad):
        product: Tensor = _Linear.apply(inputs, weight, bias)
        return product
    return _product(inputs, weight, bias)


def quicken(model: nn.Module) -> nn.Module:
    """Make every plain linear layer a ``QuickLinear``, where that is of use; the model itself.

    Weights, names and what is saved stay as they are.
    """
    if is_quicker():
        for module in model.modules():
            if type(module) is nn.Linear and module.weight.device.type == "cpu":
                module.__class__ = QuickLinear
    return model


def plain(model: nn.Module) -> nn.Module:
    """Inverse of ``quicken``, for those who look for torch's own linear layers."""
    for module in model.modules():
        if type(module) is QuickLinear:
            module.__class__ = nn.Linear  # type: ignore[assignment]
    return model


@cache
def is_quicker() -> bool:
    """Whether oneDNN has wider instructions here than MKL; the same answer on every run."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    usable = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return bool(wide and usable and _maker() == "AuthenticAMD")


def _maker() -> str:
    """Of the CPU; '' where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return ""
    return next((line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")), "")


def _product(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """inputs · weightᵀ + bias; (..., k), (n, k) -> (..., n)."""
    made: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
    return made


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return _product(inputs, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        to_inputs = to_weight = to_bias = None
        if ctx.needs_input_grad[0]:
            to_inputs = _product(gradient, weight.t())
        rows = gradient.reshape(-1, gradient.shape[-1])
        if ctx.needs_input_grad[1]:
            to_weight = _transposed_product(rows, inputs.reshape(-1, inputs.shape[-1]))
        if ctx.needs_input_grad[2]:
            to_bias = rows.sum(0)
        return to_inputs, to_weight, to_bias


def _transposed_product(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ · right of (rows, n) and (rows, k); the narrower one is the one that is copied."""
    if left.shape[1] > right.shape[1]:
        return _product(right.t(), left.t()).t()
    return _product(left.t(), right.t())
