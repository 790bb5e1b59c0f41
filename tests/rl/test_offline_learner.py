"""The actor's part of offline learning: the policy it goes to, the KL, what takes no part."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stages.common.errors import RunError
from stages.rl.offline.learner import Imitation, ImitationLearner, weighted_rows
from stages.rl.offline.losses import exponential_weights
from tests.rl.test_learner import gradient
from tests.rl.worlds import BETWEEN, START, VOCABULARY, episode, setup, small_actor

PLAIN = Imitation(kl_coef=0.0, temperature=1.0, max_grad_norm=1e9)
COUNTS = torch.tensor([1, 3, 2, 6, 4, 4], dtype=torch.float64)
ADVANTAGES = torch.tensor([0.5, -0.5, 0.0, -0.25, 0.25, 0.1], dtype=torch.float64)


def learner_of(trainer, tokens=64):
    return ImitationLearner(trainer, epochs=1, minibatch_episodes=8, microbatch_tokens=tokens)


def policy_of(actor, temperature=1.0):
    with torch.no_grad():
        return (actor(torch.tensor([[START]])).logits[0, -1].double() / temperature).softmax(-1)


def bandit_rows(beta):
    """Every token as often as μ took it, nobody's log-probs known."""
    tokens = [a for a in range(VOCABULARY) for _ in range(int(COUNTS[a]))]
    pool = [episode([([START], [a], 0.0)]) for a in tokens]
    bare = [e.with_turns([replace(e.turns[0], logprobs=())]) for e in pool]
    weights = exponential_weights(ADVANTAGES, beta=beta, max_weight=1e6)
    return weighted_rows(bare, [[float(weights[a])] for a in tokens])


@pytest.mark.parametrize(("beta", "temperature"), [(0.25, 1.0), (0.5, 1.5)])
def test_the_policy_goes_to_mu_exp_a_over_z(beta, temperature, tmp_path):
    trainer = setup(tmp_path, learning_rate=0.01, lr_scheduler_type="constant")
    objective = replace(PLAIN, temperature=temperature)
    learner_of(trainer).imitate([bandit_rows(beta)] * 250, objective)
    expected = COUNTS * torch.exp(ADVANTAGES / beta)
    expected = expected / expected.sum()
    found = policy_of(trainer.actor, temperature)
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=0)
    assert float((expected - COUNTS / COUNTS.sum()).abs().max()) > 0.05


def test_a_strong_kl_keeps_the_policy_at_the_reference(tmp_path):
    trainer = setup(tmp_path, learning_rate=0.01, lr_scheduler_type="constant")
    objective = replace(PLAIN, kl_coef=100.0)
    learner_of(trainer).imitate([bandit_rows(0.25)] * 60, objective)
    drift = (policy_of(trainer.actor) - policy_of(small_actor())).abs().max()
    assert float(drift) < 0.03


def test_the_kl_is_that_over_the_vocabulary(tmp_path):
    """Told per action token, and its gradient is that of the definition."""
    trainer = setup(tmp_path)
    with torch.no_grad():
        for parameter in trainer.actor.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.manual_seed(1)))
    rows = weighted_rows([episode([([START], [4], 0.0)])], [[0.0]])
    trainer.actor.zero_grad()
    now = trainer.actor(torch.tensor([[START]])).logits[0, -1].log_softmax(-1)
    before = policy_of(small_actor()).log().float()
    expected = (now.exp() * (now - before)).sum()
    (3.0 * expected).backward()
    wanted = gradient(trainer)
    trainer.actor.zero_grad()
    objective = replace(PLAIN, kl_coef=3.0)
    seen = []
    trainer.descent.step = lambda _: seen.append(gradient(trainer)) or 0.0
    told = learner_of(trainer).imitate([rows], objective)
    assert told["actor/kl"] == pytest.approx(float(expected.detach()), rel=1e-4)
    torch.testing.assert_close(seen[0], wanted, rtol=1e-3, atol=5e-6)


def test_a_turns_weight_is_that_of_all_its_tokens():
    one = episode([([START], [3, 4], 0.0), ([START, 3, 4, BETWEEN], [5, 5, 1], 0.0)])
    lost = one.with_turns([one.turns[0], replace(one.turns[1], prompt_ids=(), action_ids=())])
    (row,) = weighted_rows([one], [[2.0, 0.5]])
    assert row.advantage.tolist() == [0.0, 2.0, 2.0, 0.0, 0.5, 0.5, 0.5]
    (row,) = weighted_rows([lost], [[2.0, 0.5]])
    assert row.ids.tolist() == [START, 3, 4]


def test_accumulation_changes_nothing_and_weight_0_teaches_nothing(tmp_path):
    trainer = setup(tmp_path)
    rows = bandit_rows(0.5)
    found = []
    for tokens in (4, 10_000):
        seen = []
        trainer.descent.step = lambda _, seen=seen: seen.append(gradient(trainer)) or 0.0
        trainer.actor.zero_grad()
        learner_of(trainer, tokens).imitate([rows], replace(PLAIN, kl_coef=0.1))
        found.append(seen[0])
    torch.testing.assert_close(*found, rtol=1e-4, atol=2e-6)
    trainer.actor.zero_grad()
    seen = []
    trainer.descent.step = lambda _: seen.append(gradient(trainer)) or 0.0
    nothing = [replace(r, advantage=torch.zeros_like(r.advantage)) for r in rows]
    learner_of(trainer).imitate([nothing], PLAIN)
    assert float(seen[0].abs().max()) == 0.0


def test_a_gradient_that_is_no_number_ends_the_run(tmp_path):
    trainer = setup(tmp_path)
    (row,) = weighted_rows([episode([([START], [4], 0.0)])], [[float("inf")]])
    with pytest.raises(RunError, match="nothing was written into the weights"):
        learner_of(trainer).imitate([[row]], PLAIN)
