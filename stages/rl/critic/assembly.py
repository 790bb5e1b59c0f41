"""The recipe's critic, or what stands in its place, built as a baseline."""

from __future__ import annotations

from pathlib import Path

from stages.common.errors import UsageError
from stages.interaction.rollout import Reviewer
from stages.recipe.models import Recipe, RlSection
from stages.rl.baselines import Baseline, Cadence, LearnedBaseline, LeaveOneOutBaseline
from stages.rl.critic.advantage import (
    AdvantageBaseline,
    AdvantageCadence,
    AdvantageLearner,
    load_log_ratio,
)
from stages.rl.critic.discriminator import DiscriminativeBaseline
from stages.rl.critic.learner import CriticLearner
from stages.rl.critic.options import fit_plan, view_parts
from stages.rl.critic.q import QBaseline, QLearner, Relabelled
from stages.rl.critic.reviewer import reviewer_of
from stages.rl.critic.trunks import build_network, fitting_weights, load_critic
from stages.rl.pool import ExperiencePool
from stages.rl.replay import TurnLogRatios
from stages.rl.rewarding import Rewarding, build_rewarding
from stages.rl.shared import SharedBaseline, SharedCritic
from stages.rl.trainer import AsymmetricPPOTrainer


def build_baseline(
    recipe: Recipe,
    rewarding: Rewarding,
    pool: ExperiencePool,
    *,
    sft: Path,
    turn_log_ratios: TurnLogRatios,
    relabelled: ExperiencePool | None = None,
) -> Baseline:
    """What the actor is measured against, but for a critic on the actor's own trunk.

    ``relabelled``: where hindsight keeps its episodes, which Q alone may learn from.
    """
    critic = recipe.rl.critic
    if critic.kind == "none":
        return LeaveOneOutBaseline(
            rewarding.turn_rewards,
            discount=recipe.rl.ppo.discount,
            within_task=recipe.rl.episodes_per_task > 1,
        )
    if critic.kind == "advantage":
        return _log_ratio_baseline(recipe, rewarding, pool, sft)
    reward = rewarding.scorer.folder if rewarding.scorer else None
    learner = CriticLearner(
        build_network(critic, reward=reward),
        plan=fit_plan(recipe.rl),
        parts=view_parts(recipe.rl.critic.view, recipe.state.max_tokens),
        turn_rewards=rewarding.turn_rewards,
    )
    corrected = turn_log_ratios if critic.off_policy == "vtrace" else None
    values = LearnedBaseline(learner, pool, _cadence(recipe), corrected)
    if critic.kind == "q":
        q = QLearner(build_network(critic, reward=reward, actions=True), learner)
        section = recipe.rl.hindsight
        if section is None or relabelled is None:
            return QBaseline(values, q)
        return QBaseline(values, q, Relabelled(relabelled, section.critic))
    if rewarding.discriminator is not None:
        return DiscriminativeBaseline(values, rewarding.discriminator)
    return values


def build_shared_baseline(
    recipe: Recipe, rewarding: Rewarding, pool: ExperiencePool, trainer: AsymmetricPPOTrainer
) -> SharedBaseline:
    """The critic on the trainer's own actor, for ``critic.trunk: shared``."""
    critic, ppo = recipe.rl.critic, recipe.rl.ppo
    shared = SharedCritic(
        trainer,
        turn_rewards=rewarding.turn_rewards,
        discount=ppo.discount,
        microbatch_tokens=ppo.microbatch_tokens,
    )
    return SharedBaseline(
        shared,
        pool,
        _cadence(recipe),
        steps=critic.steps,
        batch_size=critic.batch_size,
        max_grad_norm=critic.max_grad_norm,
    )


def warm_start(recipe: Recipe, baseline: Baseline, critic: Path) -> None:
    """Give the baseline a saved critic's weights. Raises UsageError unless it is built alike."""
    if not isinstance(baseline, LearnedBaseline):
        raise UsageError(
            f"--warm-start {critic} is given, but rl.critic has kind {recipe.rl.critic.kind} and "
            f"trunk {recipe.rl.critic.trunk}, which cannot take it; leave one of them out."
        )
    baseline.start_from(fitting_weights(baseline.critic.network, recipe.rl.critic, critic))


def build_reviewer(recipe: Recipe, baseline: Baseline, rewarding: Rewarding) -> Reviewer | None:
    """The critic's reviews in words, as it stands at each turn; None if the state shows none."""
    if recipe.state.review == "none" or not isinstance(baseline, LearnedBaseline):
        return None
    return _reviewer(baseline.critic, recipe.rl, rewarding)


def saved_reviewer(rl: RlSection, state_tokens: int, folder: Path) -> Reviewer:
    """The reviewer of a finished run, from its ``critic`` folder. UsageError if that is missing."""
    network, _ = load_critic(folder / "critic")
    rewarding = build_rewarding(rl, None)
    parts = view_parts(rl.critic.view, state_tokens)
    critic = CriticLearner(
        network, plan=fit_plan(rl), parts=parts, turn_rewards=rewarding.turn_rewards
    )
    return _reviewer(critic, rl, rewarding)


def _reviewer(critic: CriticLearner, rl: RlSection, rewarding: Rewarding) -> Reviewer:
    return reviewer_of(critic.values, rewarding.turn_rewards, discount=rl.ppo.discount)


def _log_ratio_baseline(
    recipe: Recipe, rewarding: Rewarding, pool: ExperiencePool, sft: Path
) -> AdvantageBaseline:
    critic = recipe.rl.critic
    network = load_log_ratio(
        sft if critic.trunk == "actor" else critic.trunk,
        max_tokens=critic.view.max_tokens,
        length_normalised=critic.length_normalised,
    )
    learner = AdvantageLearner(
        network,
        plan=fit_plan(recipe.rl),
        parts=view_parts(recipe.rl.critic.view, recipe.state.max_tokens),
        turn_rewards=rewarding.turn_rewards,
    )
    cadence = AdvantageCadence(recipe.seed, recipe.rl.pool.max_age, critic.warm_up.max_iterations)
    return AdvantageBaseline(learner, pool, cadence)


def _cadence(recipe: Recipe) -> Cadence:
    """When the critic learns and how its judgement is discounted."""
    critic, ppo = recipe.rl.critic, recipe.rl.ppo
    return Cadence(
        seed=recipe.seed,
        discount=ppo.discount,
        gae_lambda=ppo.gae_lambda,
        target=critic.target,
        max_age=recipe.rl.pool.max_age,
        warm_up_iterations=critic.warm_up.max_iterations,
        min_explained_variance=critic.warm_up.min_explained_variance,
    )
