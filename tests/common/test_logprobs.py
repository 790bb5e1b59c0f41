"""Log-probs against the definition in float64, and the identities of masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from stages.common.logprobs import (
    at_actions,
    chosen_and_entropy,
    chosen_logprobs,
    log_softmax,
)
from stages.common.models import load_actor
from tests.tiny_models import tiny_qwen3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    return load_actor(tiny_qwen3(Path(tmp_path_factory.mktemp("qwen3"))))


def at(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(N, V) logits as stage 3 takes them: right padding, and no attention mask."""
    with at_actions(model.get_output_embeddings(), mask):
        return model(input_ids=ids, use_cache=False).logits[0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_log_softmax_is_its_definition(temperature: float) -> None:
    logits = np.random.default_rng(0).normal(size=(6, 11)) * 4
    got = log_softmax(torch.tensor(logits), temperature)
    z = logits / temperature
    expected = z - np.log(np.exp(z).sum(-1, keepdims=True))
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert got.dtype == torch.float32


def test_half_precision_logits_are_normalised_in_float32() -> None:
    logits = torch.randn(1, 4096, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected = torch.log_softmax(logits.double(), -1)
    torch.testing.assert_close(log_softmax(logits).double(), expected, atol=1e-5, rtol=0.0)


def test_a_temperature_must_be_positive() -> None:
    with pytest.raises(ValueError, match="temperature"):
        log_softmax(torch.zeros(1, 5), -1.0)


def test_masks_that_cannot_be_actions_are_refused(model: torch.nn.Module) -> None:
    ids = torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="column 0"):
        at(model, ids, torch.tensor([[True, False, False]]))
    with pytest.raises(ValueError, match="bool"):
        at(model, ids, torch.ones(1, 3))


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
    """Also without an attention mask: causal rows never look at padding on their right."""
    ids, attention, mask = batch()
    with torch.no_grad():
        wide = model(ids, attention_mask=attention).logits
        narrow = at(model, ids, mask)
    picked = torch.stack([wide[b, t - 1] for b, t in mask.nonzero().tolist()])
    torch.testing.assert_close(narrow, picked, rtol=1e-5, atol=1e-5)
    # The hook is gone: a plain forward sees every position again.
    assert model(ids).logits.shape[:2] == ids.shape


def test_the_hook_is_removed_after_an_error(model: torch.nn.Module) -> None:
    ids, _, mask = batch()
    with pytest.raises(RuntimeError), at_actions(model.get_output_embeddings(), mask):
        raise RuntimeError
    assert model(ids).logits.shape[:2] == ids.shape


def test_padding_content_and_other_rows_change_nothing(model: torch.nn.Module) -> None:
    ids, _, mask = batch()
    other = ids.clone()
    other[1, 6:] = 5
    assert torch.equal(at(model, ids, mask), at(model, other, mask))
    alone = at(model, ids[1:, :6], mask[1:, :6])
    torch.testing.assert_close(at(model, ids, mask)[-2:], alone, rtol=1e-5, atol=1e-5)


def test_gradients_pass_the_narrowed_layer(model: torch.nn.Module) -> None:
    ids, _, mask = batch()
    logits = at(model, ids, mask)
    torch.autograd.grad(logits.square().sum(), next(model.parameters()))


def _logits(rows: int = 7, vocabulary: int = 23) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(rows, vocabulary, generator=generator) * 3
    return logits, torch.randint(vocabulary, (rows,), generator=generator)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_chosen_logprobs_are_entries_of_the_log_softmax(temperature: float) -> None:
    logits, tokens = _logits()
    expected = log_softmax(logits, temperature).gather(-1, tokens[:, None]).squeeze(-1)
    torch.testing.assert_close(chosen_logprobs(logits, tokens, temperature), expected)
    torch.testing.assert_close(chosen_and_entropy(logits, tokens, temperature)[0], expected)


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_fused_entropy_and_gradients_are_those_of_the_definition(
    learns: bool, temperature: float
) -> None:
    logits, tokens = _logits()
    weigh, other = torch.linspace(-1, 2, 7), torch.linspace(3, -1, 7)

    def loss(x: torch.Tensor, fused: bool) -> tuple[torch.Tensor, torch.Tensor]:
        if fused:
            chosen, entropy = chosen_and_entropy(x, tokens, temperature, learns=learns)
        else:
            logp = torch.log_softmax(x.double() / temperature, -1)
            chosen = logp.gather(-1, tokens[:, None]).squeeze(-1)
            entropy = -(logp.exp() * logp).sum(-1)
        total = (weigh * chosen).sum()
        return total + (other * entropy).sum() if learns else total, entropy

    found = {}
    for fused in (False, True):
        x = logits.clone().requires_grad_()
        total, entropy = loss(x, fused)
        total.backward()
        found[fused] = x.grad.double(), entropy.detach().double()
        assert not fused or entropy.requires_grad == learns
    torch.testing.assert_close(found[True], found[False], rtol=1e-5, atol=1e-6)


def test_a_policy_as_sure_as_can_be_gives_finite_gradients() -> None:
    logits = torch.tensor([[90.0, -90.0, 0.0]], requires_grad=True)
    chosen, entropy = chosen_and_entropy(logits, torch.tensor([1]), learns=True)
    (chosen + entropy).sum().backward()
    torch.testing.assert_close(chosen, torch.tensor([-180.0]))
    torch.testing.assert_close(logits.grad, torch.tensor([[-1.0, 1.0, 0.0]]))
