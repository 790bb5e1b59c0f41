"""TRL's loss of a chunk of tokens where bfloat16 is computed in: sooner, and in float32.

TRL 1.12 makes the output layer's weights float32 for every chunk, forward and again backward, and
autocast makes them bfloat16 once more; on a CPU it then takes the softmax in bfloat16, too. With
its search for the likeliest token that is an eighth of a training step of a small model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from trl.trainer import sft_trainer

from stages.common.logprobs import chosen_and_entropy

_theirs = sft_trainer._chunk
NOT_LEARNED = -100


def install() -> None:
    """From now on TRL's chunked loss goes through here."""
    sft_trainer._chunk = chunk_loss


def chunk_loss(
    states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, scale: float, cap: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """(n, H) states and (n,) labels to the summed loss, how many were likeliest (if others are
    as likely, too), and the summed entropy, all over the labels that are learned."""
    sharded = weight.numel() == 0  # ZeRO-3 gathers it in there
    here = states.is_cpu and torch.is_autocast_enabled("cpu")
    if sharded or scale != 1.0 or cap or not here:
        told: tuple[Tensor, Tensor, Tensor] = _theirs(states, weight, bias, labels, scale, cap)
        return told
    learned = labels != NOT_LEARNED
    chosen = labels[learned]
    logits = functional.linear(states[learned], weight, bias).float()
    with torch.autocast("cpu", enabled=False):
        logprobs, entropy = chosen_and_entropy(logits, chosen)
    own = logits.detach().gather(-1, chosen[:, None]).squeeze(-1)
    return -logprobs.sum(), (own >= logits.detach().amax(-1)).sum().float(), entropy.sum()
