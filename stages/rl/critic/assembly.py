"""The recipe's critic, or what stands in its place, built as a baseline."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from stages.common.errors import UsageError
from stages.interaction.rewards.mix import GOLD_DEPENDENT
from stages.interaction.rollout import Reviewer
from stages.recipe.models import Recipe, RlSection
from stages.recipe.offline import twins
from stages.rl.baselines import Baseline, Cadence, LearnedBaseline, LeaveOneOutBaseline
from stages.rl.critic.advantage import (
    AdvantageBaseline,
    AdvantageCadence,
    AdvantageLearner,
    load_log_ratio,
)
from stages.rl.critic.discriminator import DiscriminativeBaseline
from stages.rl.critic.iql import TWINS, IqlBaseline, IqlPlan
from stages.rl.critic.learner import CriticLearner
from stages.rl.critic.options import fit_plan, view_parts
from stages.rl.critic.q import QBaseline, QLearner, Relabelled
from stages.rl.critic.reviewer import reviewer_of
from stages.rl.critic.trunks import Network, build_network, fitting_weights, load_critic
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
    critic, offline = recipe.rl.critic, recipe.rl.offline
    if critic.kind == "none" or (offline.active and not offline.has_critic):
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
    if offline.active and offline.method == "iql":
        return _implicit_baseline(recipe, learner, pool, reward)
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
    options = recipe.rl.critic

    def weights(network: Network, folder: Path) -> dict[str, Tensor]:
        return fitting_weights(network, options, folder)

    if isinstance(baseline, LearnedBaseline):
        baseline.start_from(weights(baseline.critic.network, critic))
    elif isinstance(baseline, QBaseline):
        baseline.values.start_from(weights(baseline.values.critic.network, critic))
        baseline.q.start_from(weights(baseline.q.network, critic / TWINS[0]))
    elif isinstance(baseline, IqlBaseline):
        folders = [critic / name for name in TWINS[: len(baseline.qs)]]
        pairs = zip(baseline.qs, folders, strict=True) if all(f.is_dir() for f in folders) else ()
        qs = [weights(q.network, folder) for q, folder in pairs]
        baseline.start_from(weights(baseline.values.network, critic), qs)
    else:
        raise UsageError(
            f"--warm-start {critic} is given, but rl.critic has kind {options.kind} and trunk "
            f"{options.trunk}, which cannot take it; leave one of them out."
        )


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


def outside_reviewer(rl: RlSection, state_tokens: int, folder: Path) -> Reviewer:
    """The reviewer of a finished run for an agent at work, where nothing tells of the right answer.

    UsageError if V was trained with privileged facts: what it said of a turn would be nonsense
    without them.
    """
    if rl.critic.view.privileged:
        raise UsageError(
            f"the critic of {folder} was trained with privileged facts, which nobody has when the "
            "agent works; train one with rl.critic.view.privileged false."
        )
    blind = rl.rewards.model_copy(
        update={"weights": {**rl.rewards.weights, **dict.fromkeys(GOLD_DEPENDENT, 0.0)}}
    )
    return saved_reviewer(rl.model_copy(update={"rewards": blind}), state_tokens, folder)


def _reviewer(critic: CriticLearner, rl: RlSection, rewarding: Rewarding) -> Reviewer:
    return reviewer_of(critic.values, rewarding.turn_rewards, discount=rl.ppo.discount)


def _implicit_baseline(
    recipe: Recipe, values: CriticLearner, pool: ExperiencePool, reward: Path | None
) -> IqlBaseline:
    critic, count = recipe.rl.critic, 1 + twins(recipe.rl.offline, recipe.rl.critic)
    networks = [build_network(critic, reward=reward, actions=True) for _ in range(count)]
    plan = IqlPlan(recipe.seed, recipe.rl.offline.expectile)
    return IqlBaseline(values, [QLearner(n, values) for n in networks], pool, plan)


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
        # Offline the loop itself keeps the actor waiting, and no new episodes come to judge by.
        warm_up_iterations=0 if recipe.rl.offline.active else critic.warm_up.max_iterations,
        min_explained_variance=critic.warm_up.min_explained_variance,
    )
