"""KL estimators and the clipped loss: enumerated expectations, exact zeros."""

import math

import pytest
import torch

from stages.rl import kl
from stages.rl.losses import clip_count, clipped_surrogate, entropy, linear

LOGITS = torch.tensor([0.3, -1.2, 0.8, 0.1], dtype=torch.float64)
REFERENCE = torch.tensor([-0.4, 0.2, 0.5, 0.9], dtype=torch.float64)


def divergence(p, q):
    """KL(p‖q) by its definition."""
    return (p * (p / q).log()).sum()


def expected_gradient(estimator):
    """E_{x∼π}[∇_θ estimator(x)] by enumeration, samples held fixed."""
    logits = LOGITS.clone().requires_grad_()
    log_policy, log_reference = logits.log_softmax(-1), REFERENCE.log_softmax(-1)
    weights = log_policy.exp().detach()
    (weights * estimator(log_policy, log_reference)).sum().backward()
    return logits.grad


def true_gradient(forward):
    logits = LOGITS.clone().requires_grad_()
    policy, reference = logits.softmax(-1), REFERENCE.softmax(-1)
    pair = (policy, reference) if forward else (reference, policy)
    divergence(*pair).backward()
    return logits.grad


def test_k2_has_the_gradient_of_kl_from_policy_to_reference():
    torch.testing.assert_close(expected_gradient(kl.k2), true_gradient(forward=True))


def test_full_kl_is_the_definition_and_has_its_gradient():
    logits = LOGITS.clone().requires_grad_()
    value = kl.full(logits.log_softmax(-1), REFERENCE.log_softmax(-1))
    value.backward()
    expected = divergence(LOGITS.softmax(-1), REFERENCE.softmax(-1))
    torch.testing.assert_close(value.detach(), expected)
    torch.testing.assert_close(logits.grad, true_gradient(forward=True))


def test_deliberate_breaks_pull_elsewhere():
    """As losses k3 has the reverse's gradient and k1 none: the reason why k2 is trained on."""
    torch.testing.assert_close(expected_gradient(kl.k3), true_gradient(forward=False))
    torch.testing.assert_close(expected_gradient(kl.k1), torch.zeros_like(LOGITS))
    assert not torch.allclose(true_gradient(forward=True), true_gradient(forward=False))


def test_k1_and_k3_are_unbiased_and_k3_is_never_negative():
    policy = LOGITS.softmax(-1)
    log_policy, log_reference = policy.log(), REFERENCE.log_softmax(-1)
    expected = divergence(policy, REFERENCE.softmax(-1))
    for estimator in (kl.k1, kl.k3):
        torch.testing.assert_close((policy * estimator(log_policy, log_reference)).sum(), expected)
    assert bool((kl.k3(log_policy, log_reference) >= 0).all())


@pytest.mark.parametrize(
    ("advantage", "ratio", "moves"),
    [
        (1.0, 1.5, False),  # already better than 1 + ε
        (1.0, 0.5, True),
        (-1.0, 0.5, False),  # already rarer than 1 − ε
        (-1.0, 1.5, True),
        (1.0, 1.1, True),
        (-1.0, 0.9, True),
    ],
)
def test_clip_has_exactly_no_gradient_where_it_binds(advantage, ratio, moves):
    behaviour = torch.tensor([-1.0], dtype=torch.float64)
    logprobs = (behaviour + math.log(ratio)).requires_grad_()
    loss = clipped_surrogate(
        logprobs, behaviour, torch.tensor([advantage]).double(), clip_range=0.2
    )
    loss.sum().backward()
    expected = -advantage * ratio if moves else 0.0
    assert float(logprobs.grad) == pytest.approx(expected, rel=1e-9, abs=0.0)
    clipped = min(max(ratio, 0.8), 1.2)
    assert float(loss.detach()) == pytest.approx(
        -min(ratio * advantage, clipped * advantage), rel=1e-9
    )


def test_clip_count_counts_both_sides():
    behaviour = torch.zeros(4)
    logprobs = torch.tensor([0.0, math.log(1.3), math.log(0.7), math.log(1.1)])
    assert int(clip_count(logprobs, behaviour, clip_range=0.2)) == 2


def test_entropy_and_its_gradient():
    assert float(entropy(torch.full((3, 8), 1 / 8).log())[0]) == pytest.approx(math.log(8))
    logits = LOGITS.clone().requires_grad_()
    entropy(logits.log_softmax(-1)).backward()
    p = LOGITS.softmax(-1)
    expected = -p * (p.log() - (p * p.log()).sum())
    torch.testing.assert_close(logits.grad, expected)


def test_shapes_and_ranges_are_checked():
    with pytest.raises(ValueError):
        clipped_surrogate(torch.zeros(2), torch.zeros(3), torch.zeros(2), clip_range=0.2)
    with pytest.raises(ValueError):
        clipped_surrogate(torch.zeros(2), torch.zeros(2), torch.zeros(2), clip_range=0.0)
    with pytest.raises(ValueError):
        kl.k2(torch.zeros(2), torch.zeros(3))


def test_schedule_is_straight_and_clamped():
    assert [linear(0.05, 0.01, x) for x in (-1, 0, 0.5, 1, 2)] == pytest.approx(
        [0.05, 0.05, 0.03, 0.01, 0.01]
    )
