"""The last layer where it counts: what only the output layer reads is computed at the actions.

Of a row's tokens the actor chose a few; what the last layer's feed-forward makes of the others is
looked at by nobody, as no layer attends to it any more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from stages.common.logprobs import at_actions

TOLERANCE = 1e-4
"""Relative; two forwards that differ by more than rounding are two different models."""


@torch.no_grad()
def last_feed_forward(model: Any) -> tuple[nn.Module, ...]:
    """The feed-forward part of the last layer, for ``at_actions``; () where that cannot be told.

    Not every architecture is a plain stack of layers, so it is tried out. Where the backward pass
    computes layers again (activation checkpointing) it is left whole.
    """
    if getattr(model, "is_gradient_checkpointing", False):
        return ()
    training = model.training
    model.eval()
    try:
        found = (model.get_decoder().layers[-1].mlp,)
        head = model.get_output_embeddings()
        ids = torch.arange(12, device=model.device).view(2, 6) % model.config.vocab_size
        mask = torch.zeros_like(ids, dtype=torch.bool)
        mask[:, 2], mask[:, 4:] = True, True
        logits = []
        for last in ((), found):
            with at_actions(head, mask, last=last):
                logits.append(model(input_ids=ids, use_cache=False).logits)
    except (AttributeError, RuntimeError, TypeError, ValueError, IndexError):
        return ()
    finally:
        model.train(training)
    whole, narrowed = (x.float() for x in logits)
    same = torch.allclose(narrowed, whole, rtol=TOLERANCE, atol=TOLERANCE)
    return found if same else ()
