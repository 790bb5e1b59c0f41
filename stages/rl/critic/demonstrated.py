"""Reviews of demonstrations: what a critic like RL's says of the expert's turns.

An actor that is to be shown reviews must meet such lines before RL, or it copies them into its
answers. So demonstrations are reviewed by critics of the recipe's own kind, with the view, rewards
and words of RL, fitted to the Monte-Carlo returns of other demonstrations: of two halves each is
judged by the critic of the other (cross-fitting, Chernozhukov et al. 2018), so that no review
knows how its own episode ended. Privileged facts are taken out before, as in a rollout.

A critic that has just begun speaks otherwise than a practised one, and RL's actor hears both: a
half is dealt out over the critic's ages, the first share judged before any fit and each further
one after one more fit of the recipe's ``rl.critic.steps``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from stages.common.seeding import derived_seed, keyed_generator
from stages.interaction.trajectory import Trajectory
from stages.recipe.models import RlSection
from stages.rl.critic.learner import CriticLearner
from stages.rl.critic.options import fit_plan, view_parts
from stages.rl.critic.reviewer import in_words
from stages.rl.critic.trunks import build_network
from stages.rl.rewarding import build_rewarding

HALVES, FIT = 2, 20
"""Folds of the cross-fitting; place in random keys."""
AGES = 8
"""Ages of a critic: as many as its half is dealt out over."""
TurnRewards = Callable[[Trajectory], list[float]]


def review_demonstrations(
    rl: RlSection, episodes: Sequence[Trajectory], *, state_tokens: int, seed: int
) -> list[list[str]]:
    """The review in words of every turn of every episode, in their order.

    ``state_tokens`` is the budget of the actor's state. A lone episode has no others to be judged
    by: its critic is a fresh one.
    """
    bare = [_unprivileged(episode) for episode in episodes]
    rewards = build_rewarding(rl, None).turn_rewards
    words: list[list[str]] = [[] for _ in bare]
    for half in range(HALVES):
        critic = _fresh(rl, rewards, state_tokens=state_tokens, key=(seed, FIT, half))
        others, rng = _others(bare, half), keyed_generator(seed, FIT, half)
        judged = range(half, len(bare), HALVES)
        for age in range(AGES):
            for k in judged[age::AGES]:
                words[k] = _reviews(critic, bare[k], rewards(bare[k]))
            _fit(critic, others, rng)
    return words


def _fresh(
    rl: RlSection, rewards: TurnRewards, *, state_tokens: int, key: tuple[int, ...]
) -> CriticLearner:
    """The recipe's critic at its beginning; torch's own random numbers are left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(*key))
        return CriticLearner(
            build_network(rl.critic),
            plan=fit_plan(rl),
            parts=view_parts(rl.critic.view, state_tokens),
            turn_rewards=rewards,
        )


def _others(episodes: Sequence[Trajectory], half: int) -> list[Trajectory]:
    return [e for k, e in enumerate(episodes) if k % HALVES != half and e.turns]


def _fit(
    critic: CriticLearner, episodes: Sequence[Trajectory], generator: np.random.Generator
) -> None:
    """One fit, as after an iteration of RL, to Monte-Carlo returns."""

    def sample(size: int) -> list[Trajectory]:
        return [episodes[k] for k in generator.integers(len(episodes), size=size)]

    if episodes:
        critic.fit(sample, kind="monte_carlo")


def _reviews(critic: CriticLearner, episode: Trajectory, rewards: Sequence[float]) -> list[str]:
    """r_t + γV(c_{t+1}) − V(c_t) of each turn, in words."""
    if not episode.turns:
        return []
    [values] = critic.values([episode])
    now, then = values[:-1].tolist(), values[1:].tolist()
    turns = zip(rewards, then, now, strict=True)
    return [in_words(r + critic.plan.discount * after - before) for r, after, before in turns]


def _unprivileged(episode: Trajectory) -> Trajectory:
    turns = [replace(turn, privileged={}) for turn in episode.turns]
    return replace(episode.with_turns(turns), initial_privileged={})
