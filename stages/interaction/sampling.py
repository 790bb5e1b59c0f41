"""The next token of each row, drawn by that row's own random number, with its log-prob.

By temperature only, over the whole vocabulary: top-k, top-p and penalties of a model's generation
config would make the recorded log-probs false, so they are not read.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pick(logits: Tensor, temperature: float, draw: Tensor | None) -> tuple[Tensor, Tensor]:
    """Next tokens (B,) and their log-probs (B,), from logits (B, V) and uniforms (B,) or None.

    Inverse CDF, in float64: the token is the first whose cumulated probability exceeds the draw,
    so rounding in a large vocabulary moves no visible probability.
    """
    logits = logits.float()
    logp = torch.log_softmax(logits if temperature == 1 else logits / temperature, dim=-1)
    if draw is None:
        chosen = logp.argmax(-1)
    else:
        cumulated = logp.exp().cumsum(-1, dtype=finest(logp.device))
        target = draw[:, None] * cumulated[:, -1:]
        chosen = torch.searchsorted(cumulated, target, right=True).squeeze(1)
        chosen = chosen.clamp_(max=logits.shape[-1] - 1)
    return chosen, logp.gather(-1, chosen[:, None]).squeeze(1)


def finest(device: torch.device) -> torch.dtype:
    """float64, or float32 where the device has no better (Apple's)."""
    return torch.float32 if device.type == "mps" else torch.float64
