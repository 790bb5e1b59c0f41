"""From raw components, scores and bonuses to one reward per turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stages.common.ranks import ALONE, Ranks
from stages.common.run_folder import read_rows
from stages.common.sharding import in_step
from stages.interaction.rewards.mix import RewardMix
from stages.interaction.rewards.scorer import RewardModelScorer
from stages.interaction.rewards.shaping import Shaping
from stages.interaction.trajectory import Trajectory
from stages.recipe.models import RlSection
from stages.rl.critic.discriminator import BONUS, HEAD, BonusPlan, Discriminator
from stages.rl.critic.options import fit_plan, view_parts
from stages.rl.critic.preferences import preference_episodes
from stages.rl.critic.trunks import build_network
from stages.rl.critic.views import ViewParts
from stages.rl.kl import KlCoefficient


@dataclass(frozen=True)
class Rewarding:
    """Raw components and scores to one reward per turn."""

    mix: RewardMix
    scorer: RewardModelScorer | None
    kl: KlCoefficient
    """Weight of a turn's KL, where that is a part of the reward."""
    discriminator: Discriminator | None = None
    ranks: Ranks = ALONE

    def score(self, episodes: Sequence[Trajectory]) -> list[Trajectory]:
        """The episodes with the reward model's raw score, and the critic's bonus, on every turn."""
        scored = list(episodes) if self.scorer is None else self._scored(self.scorer, episodes)
        return self.discriminator.with_bonuses(scored) if self.discriminator else scored

    def _scored(
        self, scorer: RewardModelScorer, episodes: Sequence[Trajectory]
    ) -> list[Trajectory]:
        """Each process scores its share, and is given all."""
        mine = [episodes[number] for number in self.ranks.share(len(episodes))]
        with in_step(scorer.model, self.ranks):
            scored = scorer.score(mine)
        return self.ranks.gather(scored)

    def turn_rewards(self, episode: Trajectory) -> list[float]:
        """One reward per turn, in units of success."""
        added = [
            float(turn.info.get(BONUS, 0.0))
            - self.kl.value * float(turn.info.get("kl_to_reference", 0.0))
            for turn in episode.turns
        ]
        return [r + a for r, a in zip(self.mix.totals(episode), added, strict=True)]


def build_rewarding(
    rl: RlSection,
    reward: Path | None,
    *,
    kl: KlCoefficient | None = None,
    state_tokens: int = 0,
    ranks: Ranks = ALONE,
) -> Rewarding:
    """The mix, the reward model where there is one, the critic's discriminator where asked for.

    ``kl``: the run's coefficient, which may move. ``state_tokens``: the budget of the actor's
    state.
    """
    scorer = RewardModelScorer(reward) if reward is not None else None
    mix = RewardMix(
        weights=rl.rewards.weights,
        dense_cap=rl.rewards.dense_cap,
        caps=rl.rewards.caps,
        reward_model_weight=rl.rewards.reward_model if scorer else 0.0,
        score_clip=rl.rewards.score_clip,
        score_mean=scorer.mean if scorer else 0.0,
        score_std=scorer.std if scorer else 1.0,
        shaping=_shaping(rl),
    )
    weight = kl or KlCoefficient(rl.ppo.kl_coef)
    in_reward = weight if rl.ppo.kl_loss == "in_reward" else KlCoefficient(0.0)
    discriminator = None
    if rl.critic.kind == "discriminative":
        parts = view_parts(rl.critic.view, state_tokens)
        discriminator = build_discriminator(rl, mix, reward, parts)
    return Rewarding(mix, scorer, in_reward, discriminator, ranks)


def _shaping(rl: RlSection) -> Shaping | None:
    section = rl.rewards.shaping
    if section is None:
        return None
    return Shaping(section.potential, section.weight, rl.ppo.discount)


def build_discriminator(
    rl: RlSection, mix: RewardMix, reward: Path | None, parts: ViewParts
) -> Discriminator:
    """Untrained, with the preferences that the reward stage left in its folder."""
    critic, options = rl.critic, rl.critic.discriminator
    return Discriminator(
        build_network(critic.model_copy(update=HEAD), reward=reward, actions=True),
        plan=fit_plan(rl),
        parts=replace(parts, privileged=parts.privileged and options.privileged),
        bonus=BonusPlan(options.weight, options.cap),
        turn_rewards=mix.totals,
        preferences=preference_episodes(read_rows(reward)) if reward else (),
    )
