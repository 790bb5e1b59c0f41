"""Kind ``q``: the value of (view, action), with V of its own regression as the baseline.

Both are fitted to one λ-return, which bootstraps with the slow target network V̄:

    G_t = r_t + γ·[(1 − λ)·V̄(c_{t+1}) + λ·G_{t+1}]
    Q(c_t, a_t) → E[G_t | c_t, a_t]        V(c_t) → E[G_t | c_t]

V̄(c_{t+1}) is the policy's mean of Q(c_{t+1}, ·), so at λ = 0 this is expected SARSA (van Seijen
et al. 2009). Plain SARSA would bootstrap with Q̄(c_{t+1}, a_{t+1}): the same mean with the noise
of a_{t+1} on top, and an episode cut by the machinery has no a_T to bootstrap with.

The actor gets A_t = Q(c_t, a_t) − V(c_t). It carries no noise of what came after a_t, which GAE
does; in return an error of Q biases the gradient. Q sees a_t, so it is never a baseline itself:
any b(c_t) may be subtracted from it and changes nothing in expectation.

Relabelled episodes (``hindsight``) join in Q's fit with the target of expected SARSA,
r_t + γ·V̄(c_{t+1}), alone: V̄ is the policy's mean whatever was played, while λ-returns and
Q̄(c_{t+1}, a_{t+1}) follow the actions that made hindsight choose the task. V never sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from stages.common.moments import load_optimizer
from stages.common.seeding import keyed_generator
from stages.interaction.trajectory import Trajectory
from stages.rl.advantages import explained_variance
from stages.rl.baselines import Judgement, LearnedBaseline
from stages.rl.critic.cache import EpisodeCache
from stages.rl.critic.correction import AS_DRAWN, Correction
from stages.rl.critic.learner import CriticLearner, Target, build_optimizer, descend
from stages.rl.critic.trunks import ACTIONS, Network, save_critic
from stages.rl.critic.views import action_views
from stages.rl.pool import ExperiencePool
from stages.rl.replay import Replay

Q_SAMPLES, RELABELLED_SAMPLES = 5, 7
"""Places in random keys, so that no two uses share numbers."""
Sample = Callable[[int], Sequence[Trajectory]]
"""Count -> that many episodes."""


@dataclass(frozen=True)
class Relabelled:
    """Episodes of hindsight, and their weight in Q's loss beside those that were played."""

    pool: ExperiencePool
    weight: float

    def sample(self, key: tuple[int, int], *, version: int, max_age: int) -> Sample | None:
        """Draws among the young ones; None where there are none, or they have no weight."""
        young = [e for e in self.pool.episodes if version - e.actor_version <= max_age]
        if not young or not self.weight:
            return None
        rng = keyed_generator(*key, RELABELLED_SAMPLES)
        return lambda count: [young[k] for k in rng.integers(len(young), size=count)]


class QLearner:
    """Q(c_t, a_t), fitted to the returns of a learner of V with that learner's plan and view."""

    def __init__(self, network: Network, values: CriticLearner) -> None:
        """``network``: on a trunk that reads actions."""
        self.network, self._v = network, values
        self.optimizer = build_optimizer(values.plan, network.parameters())
        self._numbers = EpisodeCache(lambda e: network.prepare(action_views(e, values.parts)))

    def values(self, episodes: Sequence[Trajectory]) -> list[Tensor]:
        """Q(c_0, a_0) … Q(c_{T−1}, a_{T−1}) of each episode, without gradient."""
        with torch.no_grad():
            flat = self.read(self.network, episodes)
        return list(flat.split([len(e.turns) for e in episodes]))

    def read(self, network: Network, episodes: Sequence[Trajectory]) -> Tensor:
        """(turns,) what a network built as this one says of every turn."""
        said: Tensor = network([self._numbers(e) for e in episodes])
        return said

    def outputs(self, episodes: Sequence[Trajectory]) -> Any:
        """What the head says of every turn, with gradient; the network's ``loss`` takes it."""
        return self.network.outputs([self._numbers(e) for e in episodes])

    def surprise(self, episodes: Sequence[Trajectory]) -> float:
        """Explained variance of Monte-Carlo returns on episodes it has not been fitted to."""
        now = self._v.padded(episodes, self._v.values(episodes))
        _, returns = now.gae(discount=self._v.plan.discount, gae_lambda=1.0)
        q = pad_sequence(self.values(episodes), batch_first=True)
        return explained_variance(q, returns, now.mask)

    def fit(
        self,
        sample: Sample,
        *,
        kind: Target,
        correction: Correction = AS_DRAWN,
        relabelled: Sample | None = None,
        weight: float = 0.0,
    ) -> float:
        """As many optimizer steps as V takes, on episodes drawn by ``sample``; the mean loss.

        Beside each batch one of ``relabelled`` episodes, with this weight.
        """
        losses = []
        others: Iterator[Any] = repeat(None)
        if relabelled is not None:
            others = self._v.batches(relabelled, kind="expected_sarsa")
        for batch, other in zip(self._v.batches(sample, kind=kind), others, strict=False):
            loss = self._loss(*batch, correction=correction)
            if other is not None:
                loss = loss + weight * self._loss(*other, correction=AS_DRAWN)
            losses.append(descend(self.optimizer, loss, self._v.plan.max_grad_norm))
        return sum(losses) / max(len(losses), 1)

    def _loss(
        self,
        episodes: Sequence[Trajectory],
        returns: Tensor,
        mask: Tensor,
        *,
        correction: Correction,
    ) -> Tensor:
        output = self.outputs(episodes)
        weights = correction.weights(episodes)[:, None].expand_as(returns)[mask]
        return (weights * self.network.loss(output, returns[mask])).mean()

    def start_from(self, weights: dict[str, Tensor]) -> None:
        """Weights fitted elsewhere; the optimizer stays fresh."""
        self.network.load_state_dict(weights)

    def forget(self, kept: Sequence[Trajectory]) -> None:
        """Drop the prepared numbers of episodes that have left the pool."""
        self._numbers.forget(kept)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""
        return {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.network.load_state_dict(state["network"])
        load_optimizer(self.optimizer, state["optimizer"], "critic's")


class QBaseline:
    """A_t = Q(c_t, a_t) − V(c_t); warm-up, cadence, values and reviews are those of V."""

    gives_values = True

    def __init__(
        self, values: LearnedBaseline, q: QLearner, relabelled: Relabelled | None = None
    ) -> None:
        self.values, self.q, self.relabelled = values, q, relabelled

    @property
    def ready(self) -> bool:
        """Once V is warmed up; Q has learnt as long."""
        return self.values.ready

    def listen(self, episodes: Sequence[Trajectory]) -> dict[str, float]:
        """Explained variances of V and Q on episodes that neither has been fitted to."""
        heard = self.values.listen(episodes)
        return heard | {"critic/q_explained_variance": self.q.surprise(episodes)}

    def judge(self, episodes: Sequence[Trajectory]) -> Judgement:
        """Q − V over turns."""
        judged = self.values.judge(episodes)
        q = pad_sequence(self.q.values(episodes), batch_first=True)
        advantages = torch.where(judged.mask, q - judged.values, 0.0)
        return replace(judged, advantages=advantages)

    def learn(self, iteration: int, actor_version: int) -> dict[str, float]:
        """Q first: the target network that both are fitted toward moves when V is done."""
        pool, cadence = self.values.pool, self.values.cadence
        replay = Replay(
            pool,
            keyed_generator(cadence.seed, iteration, Q_SAMPLES),
            version=actor_version,
            max_age=cadence.max_age,
        )
        relabelled, more = self.relabelled, None
        if relabelled is not None and self.values.warm:  # before, there is no V to bootstrap with
            key = (cadence.seed, iteration)
            more = relabelled.sample(key, version=actor_version, max_age=cadence.max_age)
        loss = self.q.fit(
            replay,
            kind=self.values.target,
            correction=replay,
            relabelled=more,
            weight=relabelled.weight if relabelled else 0.0,
        )
        self.q.forget([*pool.episodes, *(relabelled.pool.episodes if relabelled else ())])
        return self.values.learn(iteration, actor_version) | {"critic/q_loss": loss}

    def state_dict(self) -> dict[str, Any]:
        """Of V and Q."""
        return {"values": self.values.state_dict(), "q": self.q.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.values.load_state_dict(state["values"])
        self.q.load_state_dict(state["q"])

    def save(self, folder: Path, options: dict[str, Any]) -> None:
        """V as a critic's folder, Q as another inside it."""
        self.values.save(folder, options)
        save_critic(self.q.network, folder / "q", options | {ACTIONS: True})
