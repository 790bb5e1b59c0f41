"""Log-probs against the definition in float64, and the identities of masks."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from stages.common.logprobs import (
    action_logits,
    action_logprobs_and_entropy,
    at_actions,
    log_softmax,
    token_logprobs,
)
from stages.common.models import load_actor
from tests.tiny_models import tiny_qwen3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    return load_actor(tiny_qwen3(Path(tmp_path_factory.mktemp("qwen3"))))


def definition(logits: np.ndarray, ids: np.ndarray, temperature: float) -> np.ndarray:
    """log softmax by hand in float64; column t is the log-prob of token t."""
    out = np.zeros(ids.shape)
    for b in range(ids.shape[0]):
        for t in range(1, ids.shape[1]):
            z = logits[b, t - 1].astype(np.float64) / temperature
            out[b, t] = z[ids[b, t]] - math.log(np.exp(z - z.max()).sum()) - z.max()
    return out


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_token_logprobs_equal_the_definition(temperature: float) -> None:
    rng = np.random.default_rng(0)
    logits, ids = rng.normal(size=(3, 6, 11)) * 4, rng.integers(11, size=(3, 6))
    got = token_logprobs(torch.tensor(logits), torch.tensor(ids), temperature)
    np.testing.assert_allclose(got.numpy(), definition(logits, ids, temperature), rtol=1e-5)
    assert got.dtype == torch.float32 and got[:, 0].abs().sum() == 0


def test_half_precision_logits_are_normalised_in_float32() -> None:
    logits = torch.randn(1, 2, 4096, generator=torch.Generator().manual_seed(0)).bfloat16()
    ids = torch.tensor([[0, 7]])
    expected = torch.log_softmax(logits[0, 0].double(), -1)[7]
    assert float(token_logprobs(logits, ids)[0, 1]) == pytest.approx(float(expected), abs=1e-5)


def test_wrong_shapes_and_temperatures_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        token_logprobs(torch.zeros(1, 3, 5), torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(ValueError, match="temperature"):
        token_logprobs(torch.zeros(1, 3, 5), torch.zeros(1, 3, dtype=torch.long), 0.0)
    with pytest.raises(ValueError, match="temperature"):
        log_softmax(torch.zeros(1, 5), -1.0)


def test_masks_that_cannot_be_actions_are_refused(model: torch.nn.Module) -> None:
    ids = torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="column 0"):
        action_logits(model, ids, ids, torch.tensor([[True, False, False]]))
    with pytest.raises(ValueError, match="bool"):
        action_logits(model, ids, ids, torch.ones(1, 3))
    with pytest.raises(ValueError, match="bool"):
        action_logits(model, ids, ids, torch.ones(1, 4, dtype=torch.bool))


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two rows of length 9 and 6, padded on the right; actions in two places."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 300, (2, 9), generator=generator)
    attention = torch.ones_like(ids)
    attention[1, 6:] = 0
    mask = torch.zeros(2, 9, dtype=torch.bool)
    mask[0, 2:4], mask[0, 7:9], mask[1, 4:6] = True, True, True
    return ids, attention, mask


def test_narrowed_output_layer_gives_the_full_models_numbers(model: torch.nn.Module) -> None:
    ids, attention, mask = batch()
    with torch.no_grad():
        logits = model(ids, attention_mask=attention).logits.double()
        logprobs, entropy = action_logprobs_and_entropy(model, ids, attention, mask, 0.7)
    full = torch.log_softmax(logits / 0.7, -1)
    for b, t in mask.nonzero().tolist():
        p = full[b, t - 1]
        assert float(logprobs[b, t]) == pytest.approx(float(p[ids[b, t]]), rel=1e-5)
        assert float(entropy[b, t]) == pytest.approx(float(-(p.exp() * p).sum()), rel=1e-5)
    assert logprobs[~mask].abs().sum() == 0 and entropy[~mask].abs().sum() == 0
    # The hook is gone: a plain forward sees every position again.
    assert model(ids).logits.shape[:2] == ids.shape


def test_hook_works_through_a_wrapper_and_is_removed_after_an_error(
    model: torch.nn.Module,
) -> None:
    ids, attention, mask = batch()
    narrow = action_logits(model, ids, attention, mask)
    wrapper = torch.nn.ModuleList([model])
    with at_actions(model.get_output_embeddings(), mask):
        inside = wrapper[0](ids, attention_mask=attention).logits
    torch.testing.assert_close(inside[0], narrow)
    with pytest.raises(RuntimeError), at_actions(model.get_output_embeddings(), mask):
        raise RuntimeError
    wide = model(ids, attention_mask=attention).logits
    picked = torch.stack([wide[b, t - 1] for b, t in mask.nonzero().tolist()])
    torch.testing.assert_close(narrow, picked, rtol=1e-5, atol=1e-5)


def test_padding_content_changes_nothing(model: torch.nn.Module) -> None:
    ids, attention, mask = batch()
    other = ids.clone()
    other[1, 6:] = 5
    first = action_logprobs_and_entropy(model, ids, attention, mask)[0]
    assert torch.equal(first, action_logprobs_and_entropy(model, other, attention, mask)[0])
    alone = action_logprobs_and_entropy(model, ids[1:, :6], attention[1:, :6], mask[1:, :6])[0]
    torch.testing.assert_close(alone, first[1:, :6], rtol=1e-5, atol=1e-6)


def test_gradient_reaches_only_what_the_actions_read(model: torch.nn.Module) -> None:
    """The state that judges any other token gets exactly no gradient."""
    ids, attention, mask = batch()
    states: list[torch.Tensor] = []

    def keep(_: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        args[0].retain_grad()
        states.append(args[0])

    hook = model.get_output_embeddings().register_forward_pre_hook(keep)
    try:
        logprobs, entropy = action_logprobs_and_entropy(model, ids, attention, mask)
    finally:
        hook.remove()
    (logprobs + entropy).sum().backward()
    assert states[0].grad is not None
    touched = states[0].grad.abs().sum(-1) > 0
    assert torch.equal(touched[:, :-1], mask[:, 1:]) and not touched[:, -1].any()
