"""Sampling from rounded copies: how far they are off is measured, and made up for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from stages.rl.losses import capped_ratio, effective_share
from stages.rl.sampler import Sampler, cheaper, copy_dtype
from tests.adapted import LORA, World
from tests.rl.worlds import bandit_episodes, setup, small_actor


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """An SFT actor of whole weights."""
    made = World(tmp_path_factory.mktemp("sampler"))
    made.aac("sft", "sft")
    return made


def test_capped_ratio_and_effective_share_by_their_definitions() -> None:
    gap = torch.tensor([0.0, 0.3, -0.7, 1.5], requires_grad=True)
    weights = np.exp(gap.detach().double().numpy())
    assert np.allclose(capped_ratio(gap, cap=2.0).numpy(), np.minimum(weights, 2), rtol=1e-6)
    assert not capped_ratio(gap, cap=2.0).requires_grad
    share = weights.sum() ** 2 / (4 * (weights**2).sum())
    assert effective_share(gap.detach()) == pytest.approx(share, rel=1e-6)
    assert effective_share(torch.zeros(5)) == 1
    assert effective_share(torch.tensor([900.0, 0, 0, 0])) == pytest.approx(0.25)
    with pytest.raises(ValueError, match="at least 1"):
        capped_ratio(gap, cap=0.5)


def test_copies_are_of_the_type_that_was_asked_for_and_near_the_actor() -> None:
    actor = small_actor()
    ids = torch.tensor([[1, 3, 2, 4]])
    with torch.no_grad():
        wanted = actor(ids).logits.log_softmax(-1)
        off = {
            dtype: float((cheaper(actor, dtype)(ids).logits.log_softmax(-1) - wanted).abs().max())
            for dtype in ("float32", "float16", "bfloat16", "int8")
        }
    assert off["float32"] == 0 < off["float16"] < off["bfloat16"]
    assert 0 < off["int8"] < 0.5
    assert cheaper(actor, "bfloat16").dtype == torch.bfloat16
    quantised = cheaper(actor, "int8")
    kinds = {type(m).__module__ for m in quantised.modules() if type(m).__name__ == "Linear"}
    assert kinds == {"torch.ao.nn.quantized.dynamic.modules.linear"}
    assert not [p for p in small_actor().parameters() if not p.requires_grad]


def test_who_plays() -> None:
    assert copy_dtype("auto", autocast=False, quantized=False) is None
    assert copy_dtype("auto", autocast=True, quantized=False) == "bfloat16"
    assert copy_dtype("auto", autocast=True, quantized=True) is None
    assert copy_dtype("int8", autocast=True, quantized=False) == "int8"
    actor = small_actor()
    itself = Sampler(actor, lambda model: model, None)
    assert itself.policy(0) is itself.policy(1) is actor
    copied = Sampler(actor, lambda model: model, "float32")
    first = copied.policy(0)
    assert copied.policy(0) is first is not actor
    with torch.no_grad():
        actor.lm_head.weight += 1
    assert torch.equal(copied.policy(1).lm_head.weight, actor.lm_head.weight)


def test_rounding_is_made_up_for_by_the_weights(tmp_path: Path) -> None:
    """The gradient is that of Σ min(π/μ, cap) · ratio · A with the ratio to the actor's own π."""
    from stages.rl.learner import ActorLearner, Objective
    from stages.rl.rows import actor_rows

    trainer = setup(tmp_path)
    sampled = bandit_episodes(cheaper(trainer.actor, "int8"), 6, 0)
    rows = actor_rows(sampled, [[1.0, -0.5]] * 6)
    learner = ActorLearner(
        trainer, epochs=1, minibatch_episodes=6, microbatch_tokens=4096, importance_cap=1.002
    )
    corrected, figures = learner.with_rounding(rows, 1.0)
    mu = torch.cat([r.behaviour[r.mask] for r in rows]).double()
    own = torch.cat([r.behaviour[r.mask] for r in corrected]).double()
    weight = torch.cat([r.weight[r.mask] for r in corrected]).double()
    exact = (own - mu).exp()
    assert (exact > 1.002).any() and (exact < 1.002).any()
    assert torch.allclose(weight, exact.clamp(max=1.002), rtol=1e-5)
    assert figures["sampling/logprob_gap"] == pytest.approx(float((own - mu).abs().mean()))
    plain = Objective(0.2, 0.0, "k2", 0.0, 0.0, 1.0, 1e9)
    trainer.optimizer.zero_grad()
    from stages.rl.learner import Tally

    for loss in learner.ppo_losses(corrected, plain, Tally()):
        loss().backward()
    learned = [p for p in trainer.learned.parameters() if p.requires_grad]
    found = [p.grad.clone() for p in learned]
    trainer.optimizer.zero_grad()
    loss = torch.zeros(())
    for row in corrected:
        logp = trainer.actor_logits(row.ids[None], row.mask[None]).log_softmax(-1)
        chosen = logp.gather(-1, row.ids[row.mask][:, None]).squeeze(-1)
        loss = loss - (row.weight[row.mask] * row.advantage[row.mask] * chosen).sum()
    (loss / sum(r.actions for r in corrected)).backward()
    for parameter, grad in zip(learned, found, strict=True):
        assert torch.allclose(parameter.grad, grad, atol=1e-6)


def test_every_type_through_the_command(world: World) -> None:
    once = {"rl__iterations": 1, "rl__ppo__minibatch_episodes": 4}
    rows = {"itself": world.rl("auto", **once)[0]}
    for dtype in ("float32", "bfloat16", "float16", "int8"):
        rows[dtype] = world.rl(dtype, rl__generation__dtype=dtype, **once)[0]
    gap = {n: row.get("sampling/logprob_gap") for n, row in rows.items()}
    assert gap["itself"] is None and gap["float32"] < 1e-5
    assert 1e-5 < gap["float16"] < gap["bfloat16"] < 0.1 and gap["float32"] < gap["int8"] < 0.1
    for dtype in ("bfloat16", "float16", "int8"):
        assert 0.9 < rows[dtype]["sampling/effective_size"] < 1
        # One step: the ratio's two sides are one forward, however the sampler rounded.
        assert rows[dtype]["actor/approx_kl"] == pytest.approx(0, abs=1e-6)
    assert rows["float32"]["actor/kl"] == pytest.approx(0, abs=1e-6)
    unweighted = {"rl__generation__dtype": "bfloat16", "rl__generation__importance_cap": None}
    row = world.rl("unweighted", **unweighted, **once)[0]
    assert "sampling/logprob_gap" not in row
    # The ratio is taken to what the copy sampled with.
    assert row["actor/approx_kl"] > 1e-7 > 10 * rows["bfloat16"]["actor/approx_kl"]


def test_adapters_are_merged_into_the_copy(tmp_path: Path) -> None:
    made = World(tmp_path, model={"lora": LORA})
    made.aac("sft", "sft")
    row = made.rl("rl", rl__generation__dtype="float32", rl__iterations=2)[-1]
    assert row["sampling/logprob_gap"] < 1e-5
    assert row["sampling/effective_size"] == pytest.approx(1, abs=1e-6)
    made.rl("drift", rl__generation__dtype="int8", rl__ppo__kl_loss="in_reward")
