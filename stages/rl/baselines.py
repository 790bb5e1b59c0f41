"""What an action is measured against: a learned critic, or the other episodes of the rollout."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from stages.common.console import warn
from stages.common.errors import UsageError
from stages.common.seeding import keyed_generator
from stages.interaction.trajectory import Trajectory
from stages.rl.advantages import gae, leave_one_out, whiten
from stages.rl.critic.learner import CriticLearner, Padded, Target
from stages.rl.critic.trunks import save_critic
from stages.rl.pool import ExperiencePool
from stages.rl.replay import Replay, TurnLogRatios


@dataclass(frozen=True)
class Judgement:
    """(B, N) tensors over turns: advantages before whitening, values, reviews; mask True = turn."""

    advantages: Tensor
    values: Tensor
    reviews: Tensor
    mask: Tensor

    @property
    def returns(self) -> Tensor:
        """G = A + V, what the values would have had to be."""
        return self.advantages + self.values


class Baseline(Protocol):
    """One kind of baseline. ``listen`` before ``judge`` before ``learn``, once per iteration."""

    gives_values: bool
    """Whether its judgement of an episode holds a critic's values, whatever else is judged."""

    def listen(self, episodes: Sequence[Trajectory]) -> dict[str, float]:
        """Look at new episodes before anything is fitted to them. Metrics."""
        ...

    @property
    def ready(self) -> bool:
        """May the actor move now?"""
        ...

    def judge(self, episodes: Sequence[Trajectory]) -> Judgement:
        """Advantages of every turn."""
        ...

    def learn(self, iteration: int, actor_version: int) -> dict[str, float]:
        """Fit to the pool. Metrics."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on: tensors and plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        ...

    def save(self, folder: Path, options: dict[str, Any]) -> None:
        """Hand over the critic; ``options`` are the recipe's, which rebuild it."""
        ...


@dataclass(frozen=True)
class Cadence:
    """When and on what the critic learns, and how its judgement is discounted."""

    seed: int
    discount: float
    gae_lambda: float
    target: Target
    max_age: int
    warm_up_iterations: int
    min_explained_variance: float


class Critic(Protocol):
    """What gives values to episodes."""

    def values(self, episodes: Sequence[Trajectory]) -> list[Tensor]:
        """V before every turn of each episode, and after its last."""
        ...

    def padded(self, episodes: Sequence[Trajectory], values: Sequence[Tensor]) -> Padded:
        """Rewards, values and mask as (B, N), with the bootstrap of truncated episodes."""
        ...

    def surprise(self, episodes: Sequence[Trajectory]) -> float:
        """Explained variance of Monte-Carlo returns."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        ...


class CriticBaseline:
    """GAE over turns with V from a critic, which warms up while the actor stands still.

    New episodes are judged by a critic that has not been fitted to them: V(c_t) must not know
    how *this* episode went on. (The warm-up's episodes are judged after the critic has seen
    them, once.)
    """

    critic: Critic
    gives_values = True

    def __init__(self, critic: Critic, cadence: Cadence) -> None:
        self.critic, self.cadence = critic, cadence
        self.warm_ups = 0
        self.warm = cadence.warm_up_iterations == 0
        self.fitted = False

    @property
    def ready(self) -> bool:
        """True once warmed up: explained variance of unseen episodes passed, or the limit came."""
        return self.warm

    @property
    def target(self) -> Target:
        """What values are fitted to now."""
        return self.cadence.target if self.warm else "monte_carlo"

    def listen(self, episodes: Sequence[Trajectory]) -> dict[str, float]:
        """Explained variance on the newest episodes before they are fitted; ends the warm-up."""
        explained = self.critic.surprise(episodes)
        if not self.warm:
            self._gate(explained)
        return {"critic/explained_variance": explained, "critic/warm": float(self.warm)}

    def _gate(self, explained: float) -> None:
        """End the warm-up if the critic explains what it has not seen, or if the limit has come."""
        limit, least = self.cadence.warm_up_iterations, self.cadence.min_explained_variance
        fitted = self.fitted or self.warm_ups > 0  # an untrained critic's zero is not a verdict
        good = fitted and explained > least
        self.warm = good or self.warm_ups >= limit
        if not self.warm:
            self.warm_ups += 1
        elif not good:
            seen = (
                "is undefined as the returns do not vary"
                if math.isnan(explained)
                else f"is {explained:.2f}, not above {least:g}"
            )
            many = "1 iteration" if limit == 1 else f"{limit} iterations"
            warn(
                f"the critic's warm-up ends at its limit, {many}, though its explained variance "
                f"{seen}; rl.critic.warm_up.max_iterations gives it more."
            )

    def state_dict(self) -> dict[str, Any]:
        """The critic's state and where the warm-up stands."""
        critic = self.critic.state_dict()
        stand = {"warm": self.warm, "warm_ups": self.warm_ups, "fitted": self.fitted}
        return {"critic": critic, **stand}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.critic.load_state_dict(state["critic"])
        self.warm, self.warm_ups = state["warm"], state["warm_ups"]
        self.fitted = state["fitted"]

    def judge(self, episodes: Sequence[Trajectory]) -> Judgement:
        """GAE(γ, λ) over turns, and the review of every finished turn."""
        now = self.critic.padded(episodes, self.critic.values(episodes))
        discount = self.cadence.discount
        advantages, _ = now.gae(discount=discount, gae_lambda=self.cadence.gae_lambda)
        reviewed, _ = now.gae(discount=discount, gae_lambda=0.0)
        return Judgement(advantages, now.values, reviewed, now.mask)


class LearnedBaseline(CriticBaseline):
    """A critic that lives apart and learns from the pool; while it warms up, from Monte-Carlo
    returns."""

    critic: CriticLearner

    def __init__(
        self,
        critic: CriticLearner,
        pool: ExperiencePool,
        cadence: Cadence,
        turn_log_ratios: TurnLogRatios | None = None,
    ) -> None:
        """``turn_log_ratios``: of the current actor, for V-trace; None: no correction."""
        super().__init__(critic, cadence)
        self.pool = pool
        self._turn_log_ratios = turn_log_ratios
        self._warned = False

    def listen(self, episodes: Sequence[Trajectory]) -> dict[str, float]:
        """Besides: what the critic's kind of network has to say of new episodes."""
        metrics = super().listen(episodes)
        remarks = self.critic.remarks(episodes)
        clipped = remarks.get("clipped_targets", 0.0)
        if clipped and not self._warned:
            self._warned = True
            warn(
                f"{clipped:.0%} of the returns lie outside rl.critic.value_range and are clipped; "
                "widen it."
            )
        return metrics | {f"critic/{name}": figure for name, figure in remarks.items()}

    def start_from(self, weights: dict[str, Tensor]) -> None:
        """A critic fitted elsewhere: its first judgement may already end the warm-up."""
        self.critic.warm_start(weights)
        self.fitted = True

    def learn(self, iteration: int, actor_version: int) -> dict[str, float]:
        """The critic's own number of steps on pool samples of bounded age."""
        replay = Replay(
            self.pool,
            keyed_generator(self.cadence.seed, iteration, 1),
            version=actor_version,
            max_age=self.cadence.max_age,
            turn_log_ratios=self._turn_log_ratios,
        )
        loss = self.critic.fit(replay, kind=self.target, correction=replay)
        self.critic.forget(self.pool.episodes)
        return {
            "critic/loss": loss,
            "critic/steps": float(self.critic.plan.steps),
            "critic/learning_rate": self.critic.plan.learning_rate,
            **replay.finish(),
            **self.pool.metrics(actor_version),
        }

    def save(self, folder: Path, options: dict[str, Any]) -> None:
        """The network as a critic's folder."""
        save_critic(self.critic.network, folder, options)


class LeaveOneOutBaseline:
    """No critic: return-to-go minus the mean return-to-go of the other episodes at that turn.

    ``within_task``: of the other episodes of the same task (RLOO, Ahmadian et al. 2024,
    arXiv:2402.14740), where every task is played several times.
    """

    ready = True
    gives_values = False

    def __init__(
        self,
        turn_rewards: Callable[[Trajectory], list[float]],
        *,
        discount: float,
        within_task: bool = False,
    ) -> None:
        self._turn_rewards, self._discount = turn_rewards, discount
        self._within_task = within_task

    def listen(self, episodes: Sequence[Trajectory]) -> dict[str, float]:
        """Nothing to measure."""
        return {}

    def judge(self, episodes: Sequence[Trajectory]) -> Judgement:
        """Monte-Carlo returns minus the leave-one-out mean, which stands in for the value."""
        rewards = pad_sequence(
            [torch.tensor(self._turn_rewards(e)) for e in episodes], batch_first=True
        )
        turns = [torch.ones(len(e.turns), dtype=torch.bool) for e in episodes]
        mask = pad_sequence(turns, batch_first=True)
        nothing = torch.zeros_like(rewards)
        _, returns = gae(
            rewards,
            nothing,
            mask,
            bootstrap=nothing[:, 0],
            discount=self._discount,
            gae_lambda=1.0,
        )
        baseline = torch.zeros_like(returns)
        for rows in self._groups(episodes):
            baseline[rows] = leave_one_out(returns[rows], mask[rows])
        advantages = torch.where(mask, returns - baseline, 0.0)
        return Judgement(advantages, baseline, torch.zeros_like(returns), mask)

    def _groups(self, episodes: Sequence[Trajectory]) -> list[list[int]]:
        """Episodes that are each other's baseline, by their numbers."""
        groups: dict[str, list[int]] = {}
        for i, episode in enumerate(episodes):
            groups.setdefault(episode.task_id if self._within_task else "", []).append(i)
        return list(groups.values())

    def learn(self, iteration: int, actor_version: int) -> dict[str, float]:
        """Nothing to fit."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Nothing to remember."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing was remembered."""

    def save(self, folder: Path, options: dict[str, Any]) -> None:
        """Nothing to hand over."""


def whitened(judgement: Judgement, *, min_std: float) -> tuple[list[list[float]], dict[str, float]]:
    """Advantages whitened over the turns of the whole rollout, per episode; and what was there."""
    white, mean, std = whiten(judgement.advantages, judgement.mask, min_std=min_std)
    rows = [row[mask].tolist() for row, mask in zip(white, judgement.mask, strict=True)]
    return rows, {"advantage/mean": mean, "advantage/std": std}


def judged_apart(baseline: Baseline, episodes: Sequence[Trajectory]) -> list[Trajectory]:
    """Episodes that nothing is learnt from, with the critic's value and review on every turn.

    As they are where no critic gives values, or where its view has no room for one of them. A
    reward model has not scored them, so its share of the reward is not in the reviews.
    """
    if not episodes or not baseline.gives_values:
        return list(episodes)
    # Without their keys, as a critic remembers by them the episodes that it learns from.
    apart = [replace(episode, key=()) for episode in episodes]
    try:
        return annotated(episodes, baseline.judge(apart))
    except UsageError:
        return list(episodes)


def annotated(
    episodes: Sequence[Trajectory],
    judgement: Judgement,
    advantages: Sequence[Sequence[float]] | None = None,
) -> list[Trajectory]:
    """The episodes with value and the critic's review noted on every turn, and the advantage that
    it was weighed by, where it was."""
    noted = []
    for i, episode in enumerate(episodes):
        turns = []
        for t, turn in enumerate(episode.turns):
            found = {
                "value": float(judgement.values[i, t]),
                "review": float(judgement.reviews[i, t]),
            }
            if advantages is not None:
                found["advantage"] = advantages[i][t]
            turns.append(replace(turn, info=dict(turn.info) | found))
        noted.append(episode.with_turns(turns))
    return noted
