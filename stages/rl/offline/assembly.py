"""The parts of offline learning, built from the recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from stages.interaction.network import context_length
from stages.interaction.trajectory import Trajectory
from stages.recipe.models import Recipe, RlSection
from stages.recipe.offline import OWN
from stages.rl.baselines import Baseline
from stages.rl.losses import effective_share
from stages.rl.offline.learner import Imitation, ImitationLearner
from stages.rl.offline.losses import exponential_weights
from stages.rl.offline.pool import Reader, fitted, read_episodes, refuse_unscored
from stages.rl.offline.trainer import OfflinePlan
from stages.rl.trainer import AsymmetricPPOTrainer


def given_episodes(rl: RlSection) -> list[Trajectory]:
    """The episodes of the pool that the recipe names; none where one is still to be played."""
    if rl.offline.pool in (None, OWN):
        return []
    return read_episodes(Path(str(rl.offline.pool)))


def fit_to_actor(
    rl: RlSection, episodes: Sequence[Trajectory], trainer: AsymmetricPPOTrainer
) -> list[Trajectory]:
    """The episodes with this actor's tokens. UsageError where they are another's."""
    actor = trainer.actor
    length = min(rl.offline.max_length, context_length(actor.config))
    vocabulary = actor.get_input_embeddings().num_embeddings
    done = fitted(episodes, Reader(trainer.processing_class, vocabulary, length))
    if rl.offline.has_critic and rl.critic.off_policy == "vtrace":
        refuse_unscored(done)
    return done


def plan_of(rl: RlSection) -> OfflinePlan:
    """How long the run is; methods without a critic need no warm-up."""
    return OfflinePlan(
        iterations=rl.iterations,
        warm_up=rl.critic.warm_up.max_iterations if rl.offline.has_critic else 0,
        steps=rl.offline.steps,
        episodes=rl.ppo.minibatch_episodes,
    )


def build_imitation(recipe: Recipe, trainer: AsymmetricPPOTrainer) -> ImitationLearner:
    """The actor's learner."""
    ppo = recipe.rl.ppo
    return ImitationLearner(
        trainer,
        epochs=1,
        minibatch_episodes=ppo.minibatch_episodes,
        microbatch_tokens=ppo.microbatch_tokens,
    )


def imitation_of(rl: RlSection, kl_coef: float) -> Imitation:
    """The coefficients; ``kl_coef`` may have been steered."""
    return Imitation(kl_coef, rl.actor.temperature, rl.actor.max_grad_norm)


class Weights:
    """The weight of every turn by a critic's advantage, or 1; and figures of those given out."""

    def __init__(self, rl: RlSection, baseline: Baseline) -> None:
        self._options, self._baseline = rl.offline, baseline
        self._advantages: list[Tensor] = []

    def __call__(self, episodes: Sequence[Trajectory]) -> list[list[float]]:
        """Per episode, per turn."""
        if not self._options.has_critic:
            return [[1.0] * len(e.turns) for e in episodes]
        judged = self._baseline.judge(episodes)
        self._advantages.append(judged.advantages[judged.mask])
        weights = self._weigh(judged.advantages)
        return [row[mask].tolist() for row, mask in zip(weights, judged.mask, strict=True)]

    def remarks(self) -> dict[str, float]:
        """Of all advantages since the last call, before they were made weights."""
        if not self._advantages:
            return {}
        advantages, self._advantages = torch.cat(self._advantages), []
        weights, cut = self._weigh(advantages), math.log(self._options.max_weight)
        return {
            "advantage/mean": float(advantages.mean()),
            "advantage/std": float(advantages.std(unbiased=False)),
            "advantage/weight": float(weights.mean()),
            "advantage/capped": float((advantages / self._options.beta >= cut).float().mean()),
            "advantage/effective_size": effective_share(weights.log()),
        }

    def _weigh(self, advantages: Tensor) -> Tensor:
        options = self._options
        return exponential_weights(advantages, beta=options.beta, max_weight=options.max_weight)
