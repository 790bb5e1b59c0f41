"""The actor's update against enumerated policy gradients, and what must stay exactly zero."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from stages.common.errors import RunError
from stages.common.rows import Row
from stages.rl.learner import ActorLearner, Objective, kl_to_reference
from stages.rl.rows import actor_rows, collate, demonstration, microbatches
from stages.rl.tally import Tally
from tests.rl.worlds import BETWEEN, START, VOCABULARY, bandit_episodes, episode, setup

PLAIN = Objective(
    clip_range=0.2,
    kl_coef=0.0,
    kl_loss="k2",
    entropy_coef=0.0,
    sft_coef=0.0,
    temperature=1.0,
    max_grad_norm=1e9,
)


def make_learner(trainer, **options):
    plan = {"epochs": 1, "minibatch_episodes": 1000, "microbatch_tokens": 64} | options
    return ActorLearner(trainer, **plan)


def accumulate(learner, rows, objective):
    """Gradients of one minibatch, without the step; what was tallied."""
    tally = Tally()
    for loss in learner.ppo_losses(rows, objective, tally):
        learner.setup.descent.accumulate(loss, last=False)
    return tally


def gradient(trainer):
    return torch.cat([p.grad.flatten().double() for p in trainer.actor.parameters()])


def two_token_world():
    """Every trajectory: one token 0 ends at once, any other is followed by a second token."""
    yield [(0,)]
    for a, b in itertools.product(range(1, VOCABULARY), range(VOCABULARY)):
        yield [(a, b)]


def rewards_of(actions):
    return 4.0 if len(actions[0]) == 1 else float(actions[0][1] == 3)


def exact_gradient(trainer, weigh=lambda length: 1.0):
    """∇ Σ_τ π(τ)·R(τ) by enumeration; ``weigh`` breaks it on purpose."""
    trainer.actor.zero_grad()
    total = 0.0
    for actions in two_token_world():
        tokens = list(actions[0])
        logits = trainer.actor(torch.tensor([[START, *tokens]])).logits[0].log_softmax(-1)
        logp = sum(logits[k, token] for k, token in enumerate(tokens))
        total = total + logp.exp().detach() * logp * rewards_of(actions) * weigh(len(tokens))
    total.backward()
    return gradient(trainer)


def test_one_divisor_gives_the_policy_gradient(tmp_path):
    """Episodes of different length, several microbatches: the direction of ∇J exactly.

    A mean per episode (1/T) is not parallel to it.
    """
    trainer = setup(tmp_path)
    expected = exact_gradient(trainer)
    broken = exact_gradient(trainer, weigh=lambda length: 1.0 / length)
    worlds = list(two_token_world())
    episodes = [episode([([START], list(a[0]), 0.0)], actor=trainer.actor) for a in worlds]
    probability = [np.exp(sum(e.turns[0].logprobs)) for e in episodes]
    advantages = [[p * rewards_of(a)] for p, a in zip(probability, worlds, strict=True)]
    rows = actor_rows(episodes, advantages)
    assert len(list(microbatches(rows, max_tokens=64))) > 1
    trainer.actor.zero_grad()
    accumulate(make_learner(trainer), rows, PLAIN)
    tokens = sum(r.actions for r in rows)
    torch.testing.assert_close(-gradient(trainer) * tokens, expected, rtol=1e-4, atol=1e-6)
    cosine = torch.nn.functional.cosine_similarity
    assert float(cosine(expected, broken, dim=0)) < 0.999


def test_accumulation_changes_nothing(tmp_path):
    """1 × everything equals many microbatches, to float error."""
    trainer = setup(tmp_path)
    rng = np.random.default_rng(0)
    episodes = [random_episode(trainer, rng, turns=1 + i % 3) for i in range(8)]
    rows = actor_rows(episodes, [list(rng.normal(size=len(e.turns))) for e in episodes])
    objective = replace(PLAIN, entropy_coef=0.01, kl_coef=0.1)
    grads = []
    for tokens in (8, 10_000):
        trainer.actor.zero_grad()
        accumulate(make_learner(trainer, microbatch_tokens=tokens), rows, objective)
        grads.append(gradient(trainer))
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-6)


def random_episode(trainer, rng, *, turns, extend=True):
    ids, made = [START], []
    for _ in range(turns):
        action = rng.integers(VOCABULARY, size=int(rng.integers(1, 4))).tolist()
        made.append((list(ids), action, 0.0))
        ids = [*ids, *action, BETWEEN] if extend else [START, BETWEEN, *action]
    return episode(made, actor=trainer.actor)


def test_transcript_rows_equal_per_turn_rows(tmp_path):
    """Turns whose prompts extend each other, in one row: same loss and gradient as apart."""
    trainer = setup(tmp_path)
    rng = np.random.default_rng(1)
    whole = random_episode(trainer, rng, turns=3)
    advantages = [[0.7, -1.1, 0.4]]
    together = actor_rows([whole], advantages)
    assert len(together) == 1
    apart = [
        row
        for t, turn in enumerate(whole.turns)
        for row in actor_rows([whole.with_turns([turn])], [[advantages[0][t]]])
    ]
    assert len(apart) == 3
    grads = []
    for rows in (together, apart):
        trainer.actor.zero_grad()
        accumulate(make_learner(trainer), rows, replace(PLAIN, entropy_coef=0.1))
        grads.append(gradient(trainer))
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-6)


def test_prompts_that_do_not_extend_stay_apart(tmp_path):
    trainer = setup(tmp_path)
    lossy = random_episode(trainer, np.random.default_rng(2), turns=3, extend=False)
    rows = actor_rows([lossy], [[0.1, 0.2, 0.3]])
    assert len(rows) == 3
    for row, turn in zip(rows, lossy.turns, strict=True):
        assert row.ids.tolist() == [*turn.prompt_ids, *turn.action_ids]
        assert row.mask.tolist() == [False] * len(turn.prompt_ids) + [True] * len(turn.action_ids)
        torch.testing.assert_close(row.behaviour[row.mask], torch.tensor(turn.logprobs))


def test_prompt_and_observation_tokens_get_exactly_no_gradient(tmp_path):
    """∂loss/∂logits is zero wherever the next token was not chosen by the actor."""
    trainer = setup(tmp_path)
    rows = actor_rows(
        [random_episode(trainer, np.random.default_rng(3), turns=3) for _ in range(3)],
        [[1.0, -2.0, 0.5]] * 3,
    )
    batch = collate(rows)
    from stages.common.logprobs import log_softmax
    from stages.rl.learner import ppo_loss

    logits = trainer.actor(batch.ids).logits.detach().requires_grad_()
    chosen = log_softmax(logits[:, :-1][batch.mask[:, 1:]])
    objective = replace(PLAIN, kl_coef=0.1, entropy_coef=0.1)
    ppo_loss(chosen, batch, objective)[0].backward()
    moved = logits.grad.abs().sum(-1) > 0
    assert torch.equal(moved[:, :-1], batch.mask[:, 1:])
    assert not moved[:, -1].any()


def test_before_the_first_update_the_ratio_is_one(tmp_path):
    trainer = setup(tmp_path)
    rng = np.random.default_rng(4)
    episodes = [random_episode(trainer, rng, turns=2) for _ in range(4)]
    rows = actor_rows(episodes, [[0.5, -0.5]] * 4)
    learner = make_learner(trainer)
    means = accumulate(learner, learner.with_reference(rows, 1.0), PLAIN).means()
    assert means["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert kl_to_reference(learner.with_reference(rows, 1.0)) == pytest.approx(0.0, abs=1e-6)
    assert means["clip_fraction"] == 0.0


def test_the_reference_reads_a_text_once_an_iteration(tmp_path, monkeypatch):
    trainer = setup(tmp_path)
    rng = np.random.default_rng(4)
    episodes = [random_episode(trainer, rng, turns=2) for _ in range(4)]
    learner, read = make_learner(trainer), []
    reference = trainer.reference_logits

    def counted(ids, mask, below=None):
        read.append(len(ids))
        return reference(ids, mask, below=below)

    monkeypatch.setattr(trainer, "reference_logits", counted)
    noted = learner.with_drift(episodes, 1.0)
    assert sum(read) == 4
    rows = actor_rows(noted, [[0.5, -0.5]] * 4)
    again = learner.with_reference(rows, 1.0)
    assert sum(read) == 4
    learner.with_reference(rows, 0.5)
    assert sum(read) == 8, "another temperature is another policy"
    drift = [sum(t.info["kl_to_reference"] for t in e.turns) for e in noted]
    for row in again:
        gap = (row.behaviour - row.reference).sum()
        assert float(gap) == pytest.approx(drift[row.episode], abs=1e-6)
    learner.update(rows, PLAIN, rng)
    learner.with_reference(rows, 1.0)
    assert sum(read) == 12, "asked anew after an update"


def test_kl_pulls_back_to_the_reference(tmp_path):
    trainer = setup(tmp_path, learning_rate=3e-3, iterations=1000)
    generator = torch.Generator().manual_seed(0)
    for kind in ("k2", "full"):
        with torch.no_grad():
            for p in trainer.actor.parameters():
                p.add_(0.3 * torch.randn(p.shape, generator=generator))
        objective = replace(PLAIN, kl_coef=1.0, kl_loss=kind)
        learner = make_learner(trainer, microbatch_tokens=4096)
        seen = []
        for iteration in range(12):
            episodes = bandit_episodes(trainer.actor, 32, iteration)
            rows = actor_rows(episodes, [[0.0, 0.0]] * 32)
            seen.append(learner.update(rows, objective, np.random.default_rng(0))["actor/kl"])
        assert seen[-1] < 0.5 * seen[0]


def test_sft_mixing_raises_the_likelihood_of_the_demonstrations(tmp_path):
    trainer = setup(tmp_path, learning_rate=1e-2, iterations=1000)
    row = Row(input_ids=(START, 4, 5), action_mask=(False, True, True))
    episodes = [random_episode(trainer, np.random.default_rng(6), turns=1)]
    rows = actor_rows(episodes, [[0.0]])
    learner = make_learner(trainer, sft_rows=lambda: [demonstration(row)])
    objective = replace(PLAIN, sft_coef=1.0)
    losses = [
        learner.update(rows, objective, np.random.default_rng(i))["actor/sft_loss"]
        for i in range(20)
    ]
    assert losses[-1] < 0.5 * losses[0]


def test_a_non_finite_gradient_never_reaches_the_weights(tmp_path):
    trainer = setup(tmp_path)
    before = [p.clone() for p in trainer.actor.parameters()]
    episodes = [random_episode(trainer, np.random.default_rng(7), turns=1)]
    rows = actor_rows(episodes, [[float("nan")]])
    with pytest.raises(RunError, match="gradient"):
        make_learner(trainer).update(rows, PLAIN, np.random.default_rng(0))
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.actor.parameters(), strict=True))


def test_trl_really_sets_up(tmp_path):
    """Policy, reference, accelerator, optimizer, schedule and callbacks are TRL's own."""
    from accelerate import Accelerator
    from trl.experimental.ppo import PPOTrainer
    from trl.experimental.ppo.ppo_trainer import PolicyAndValueWrapper

    trainer = setup(tmp_path, iterations=10)
    assert isinstance(trainer, PPOTrainer) and isinstance(trainer.accelerator, Accelerator)
    assert isinstance(trainer.model, PolicyAndValueWrapper)
    owned = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert owned == {id(p) for p in trainer.actor.parameters()}
    assert trainer.callback_handler.callbacks and trainer.ref_model is not None
    assert trainer.actor.generation_config.eos_token_id == 0
    # linear from the peak to zero over the ten iterations, stepped by TRL's own schedule
    trainer.optimizer.step()
    trainer.lr_scheduler.step()
    assert trainer.lr_scheduler.get_last_lr()[0] == pytest.approx(9e-4)
