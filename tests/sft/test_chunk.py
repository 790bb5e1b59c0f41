"""TRL's loss of a chunk, and ours in its place where bfloat16 is computed in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from stages.sft import chunk

theirs = chunk._theirs
EVERY_THIRD_NOT = torch.where(torch.arange(24) % 3 == 0, chunk.NOT_LEARNED, torch.arange(24))


def given(dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
    """(24, 16) states and (50, 16) weights."""
    draw = torch.Generator().manual_seed(0)
    states = torch.randn(24, 16, generator=draw)
    return states.requires_grad_(), torch.randn(50, 16, generator=draw).to(dtype)


def told(
    loss_of: Any, labels: Tensor, *, autocast: bool = True, scale: float = 1.0, **kind: Any
) -> tuple[list[float], Tensor]:
    """What a loss tells of them, and its gradient to the states."""
    states, weight = given(**kind)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        figures = loss_of(states, weight, None, labels, scale, None)
    figures[0].backward()
    assert states.grad is not None
    return [float(figure.detach()) for figure in figures], states.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_autocast_it_is_the_cross_entropy_of_logits_in_bfloat16(dtype: torch.dtype) -> None:
    states, weight = (tensor.bfloat16() for tensor in given(dtype))
    logits, learned = functional.linear(states, weight).double(), EVERY_THIRD_NOT >= 0
    policy = logits[learned].softmax(-1)
    right = (logits.argmax(-1) == EVERY_THIRD_NOT).sum()
    loss = functional.cross_entropy(logits, EVERY_THIRD_NOT, reduction="sum")
    figures, gradient = told(chunk.chunk_loss, EVERY_THIRD_NOT, dtype=dtype)
    expected = [float(loss.detach()), float(right), float(-(policy * policy.log()).sum().detach())]
    assert figures == pytest.approx(expected, rel=1e-5)
    assert gradient[learned].any() and not gradient[~learned].any()


def test_trl_s_is_the_same_but_rounded_to_bfloat16() -> None:
    (figures, gradient), (other, theirs_) = (
        told(loss_of, EVERY_THIRD_NOT) for loss_of in (chunk.chunk_loss, theirs)
    )
    assert figures == pytest.approx(other, rel=0.01)
    assert functional.cosine_similarity(gradient.flatten(), theirs_.flatten(), dim=0) > 0.999


def test_a_chunk_without_a_learned_label_is_nothing() -> None:
    figures, gradient = told(chunk.chunk_loss, torch.full((24,), chunk.NOT_LEARNED))
    assert figures == [0, 0, 0] and not gradient.any()


@pytest.mark.parametrize("where", [{"autocast": False, "dtype": torch.float32}, {"scale": 0.5}])
def test_elsewhere_it_is_trl_s_own(where: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(chunk, "_theirs", lambda *words: asked.append(1) or theirs(*words))
    ours, reference = (told(f, EVERY_THIRD_NOT, **where) for f in (chunk.chunk_loss, theirs))
    assert ours[0] == reference[0] and torch.equal(ours[1], reference[1])
    assert asked
