"""How many bytes a device holds for each weight, by how processes share the work.

Rajbhandari et al. 2020 (ZeRO, arXiv:1910.02054), section 3 and figure 1: per weight, Adam in mixed
precision keeps 2 bytes of weight, 2 of gradient and 12 of optimizer; stage 2 divides the last two
by the number of processes, stage 3 all three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Strategy = Literal["ddp", "zero2", "zero3", "offload"]
STRATEGIES: tuple[Strategy, ...] = ("ddp", "zero2", "zero3", "offload")
"""``ddp`` on one process is plain training; ``offload`` is zero3 with weights and optimizer in CPU
memory."""
MAX_LIVE = 10**9
"""Weights that ZeRO-3 may keep gathered (DeepSpeed's ``stage3_max_live_parameters``)."""
_ADAM, _MASTER = 8, 4
_NF4 = 0.55
"""4 bits and the scales of their blocks."""
_OPTIMIZERS = {
    "sgd": 0, "adafactor": 0, "adamw_8bit": 2, "adamw_bnb_8bit": 2, "paged_adamw_8bit": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Precision:
    """Bytes per number."""

    weights: float
    """What learns, as the model holds it."""
    gradients: float
    optimizer: float
    """States per weight that learns, a full-precision copy included where there is one."""
    frozen: float
    """What does not learn; the reference, too."""
    compute: int
    """Activations."""
    cast: int = 0
    """A copy in the type of computation that autocast keeps from forward to backward."""
    rank: int = 0
    """Of adapters over frozen weights; 0: there are none."""


def precision_of(
    strategy: Strategy,
    *,
    bf16: bool,
    optimizer: str = "adamw",
    rank: int = 0,
    quantized: bool = False,
) -> Precision:
    """``bf16``: the type of computation; what learns is kept in float32 all the same.
    ``rank``: of adapters; then the rest is frozen in the type of computation, or (``quantized``)
    in 4 bits."""
    states, compute = _OPTIMIZERS.get(optimizer, _ADAM), 2 if bf16 else 4
    # DeepSpeed steps on a full-precision copy of its own.
    copied = _MASTER if strategy != "ddp" else 0
    learned = 2 if bf16 and strategy != "ddp" else 4
    frozen = float(learned)
    if rank:
        frozen = _NF4 if quantized else float(compute)
    cast = compute if learned > compute and not rank else 0
    return Precision(learned, learned, states + copied, frozen, compute, cast, rank)


@dataclass(frozen=True)
class Weights:
    """Numbers of weights of the actor: those that learn, those that do not."""

    learned: int
    frozen: int = 0

    @property
    def all(self) -> int:
        """Both."""
        return self.learned + self.frozen


def model_states(
    weights: Weights, strategy: Strategy, processes: int, precision: Precision
) -> dict[str, float]:
    """Bytes per device of weights, gradients, optimizer and communication buffers."""
    own = {  # share of (weights, gradients, optimizer) that lies on this device
        "ddp": (1.0, 1.0, 1.0),
        "zero2": (1.0, 1 / processes, 1 / processes),
        "zero3": (1 / processes, 1 / processes, 1 / processes),
        "offload": (0.0, 1 / processes, 0.0),
    }[strategy]
    held = weights.learned * precision.weights + weights.frozen * precision.frozen
    return {
        "weights": held * own[0],
        "gradients": weights.learned * precision.gradients * own[1],
        "optimizer": weights.learned * precision.optimizer * own[2],
        "communication": _communication(weights, strategy, processes, precision),
    }


def host_bytes(weights: Weights, strategy: Strategy, processes: int, precision: Precision) -> float:
    """Bytes of CPU memory per process that ``offload`` moves there."""
    if strategy != "offload":
        return 0.0
    states = weights.learned * (precision.weights + precision.optimizer)
    return (states + weights.frozen * precision.frozen) / processes


def _communication(
    weights: Weights, strategy: Strategy, processes: int, precision: Precision
) -> float:
    """DDP's buckets hold all gradients once more; ZeRO-3 holds what is gathered."""
    if processes == 1:
        return 0.0
    if strategy == "ddp":
        return weights.learned * precision.gradients
    if strategy == "zero2":
        return 0.0
    bytes_each = precision.weights if weights.learned >= weights.frozen else precision.frozen
    return min(weights.all, MAX_LIVE) * bytes_each
