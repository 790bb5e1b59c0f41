"""Reviews of demonstrations: what a critic like RL's says of the expert's turns.

An actor that is to be shown reviews must meet such lines before RL, or it copies them into its
answers. So demonstrations are reviewed by critics of the recipe's own kind, with the view, rewards
and words of RL, fitted to the Monte-Carlo returns of other demonstrations: of two halves each is
judged by the critic of the other (cross-fitting, Chernozhukov et al. 2018), so that no review
knows how its own episode ended. Privileged facts are taken out before, as in a rollout.
"""

from __future__ import annotations

import math
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
PASSES = 4
"""How often a critic goes through its half: as RL's, it has not learned all there is to learn."""
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
        _fit(critic, _others(bare, half), keyed_generator(seed, FIT, half))
        for k in range(half, len(bare), HALVES):
            words[k] = _reviews(critic, bare[k], rewards(bare[k]))
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
    if not episodes:
        return
    steps = math.ceil(PASSES * len(episodes) / critic.plan.batch_size)
    critic.plan = replace(critic.plan, steps=steps)

    def sample(size: int) -> list[Trajectory]:
        return [episodes[k] for k in generator.integers(len(episodes), size=size)]

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
