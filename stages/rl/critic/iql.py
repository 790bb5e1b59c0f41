"""Implicit Q-learning: V and Q of the best that a static pool holds, without a guess at any action
that is not in it (Kostrikov et al. 2022, arXiv:2110.06169).

    V(c_t) → τ-expectile over the pool's actions of min_k Q̄_k(c_t, a_t)
    Q_k(c_t, a_t) → r_t + γ·V(c_{t+1})

Q̄ are slow copies. Where a tool or a user answers by chance, Q takes the mean over that, and only
V, over actions, leans to the better ones: so luck of the world is not taken for skill.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.common.seeding import keyed_generator
from stages.interaction.trajectory import Trajectory
from stages.rl.baselines import Judgement
from stages.rl.critic.learner import CriticLearner, FitPlan, descend
from stages.rl.critic.q import QLearner
from stages.rl.critic.trunks import ACTIONS, save_critic
from stages.rl.offline.losses import expectile_weights, smaller_of
from stages.rl.pool import ExperiencePool
from stages.rl.replay import Replay

IQL_SAMPLES = 8
"""Place in random keys, so that no two uses share numbers."""
TWINS = ("q", "twin")
"""Folders of the Q networks inside that of V."""


@dataclass(frozen=True)
class IqlPlan:
    """What is drawn, and how far V leans to the better actions."""

    seed: int
    expectile: float


class IqlBaseline:
    """A_t = min_k Q̄_k(c_t, a_t) − V(c_t), all of them fitted to the pool alone."""

    ready = True
    gives_values = True

    def __init__(
        self, values: CriticLearner, qs: Sequence[QLearner], pool: ExperiencePool, plan: IqlPlan
    ) -> None:
        """``values``: V, with the plan of all; ``qs``: one Q, or twins."""
        self.values, self.qs, self.pool, self.plan = values, list(qs), pool, plan
        self.slow = [copy.deepcopy(q.network).requires_grad_(False) for q in self.qs]

    def listen(self, episodes: Sequence[Trajectory]) -> dict[str, float]:
        """Explained variance of whole returns by V."""
        return {"critic/explained_variance": self.values.surprise(episodes)}

    def judge(self, episodes: Sequence[Trajectory]) -> Judgement:
        """Q − V over turns."""
        now = self.values.padded(episodes, self.values.values(episodes))
        reviewed, _ = now.gae(discount=self.values.plan.discount, gae_lambda=0.0)
        q = torch.zeros_like(now.values)
        q[now.mask] = self._least(episodes)
        return Judgement(torch.where(now.mask, q - now.values, 0.0), now.values, reviewed, now.mask)

    def learn(self, iteration: int, actor_version: int) -> dict[str, float]:
        """``plan.steps`` steps of V, then Q, each on the same episodes; the slow copies follow."""
        rng = keyed_generator(self.plan.seed, iteration, IQL_SAMPLES)
        replay = Replay(self.pool, rng, version=actor_version, max_age=0)
        plan, v_loss, q_loss = self.values.plan, 0.0, 0.0
        for _ in range(plan.steps):
            episodes = replay(plan.batch_size)
            v_loss += self._fit_v(episodes, replay) / plan.steps
            q_loss += self._fit_q(episodes, replay) / plan.steps
            self._follow(polyak_step(plan))
        self.values.fits += 1
        self._copy_now_and_then()
        self.values.forget(self.pool.episodes)
        for q in self.qs:
            q.forget(self.pool.episodes)
        return {
            "critic/loss": v_loss,
            "critic/q_loss": q_loss,
            "critic/steps": float(plan.steps),
            "critic/learning_rate": plan.learning_rate,
            **replay.finish(),
            **self.pool.metrics(actor_version),
        }

    def start_from(self, values: dict[str, Tensor], qs: Sequence[dict[str, Tensor]]) -> None:
        """Weights fitted elsewhere, of V and, where they are known, of every Q."""
        self.values.warm_start(values)
        for q, slow, weights in zip(self.qs, self.slow, qs, strict=False):
            q.start_from(weights)
            slow.load_state_dict(weights)

    def state_dict(self) -> dict[str, Any]:
        """Of V, Q and the slow copies."""
        return {
            "values": self.values.state_dict(),
            "qs": [q.state_dict() for q in self.qs],
            "slow": [network.state_dict() for network in self.slow],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.values.load_state_dict(state["values"])
        for q, found in zip(self.qs, state["qs"], strict=True):
            q.load_state_dict(found)
        for network, found in zip(self.slow, state["slow"], strict=True):
            network.load_state_dict(found)

    def save(self, folder: Path, options: dict[str, Any]) -> None:
        """V as a critic's folder, each Q as another inside it."""
        save_critic(self.values.network, folder, options)
        for q, name in zip(self.qs, TWINS, strict=False):
            save_critic(q.network, folder / name, options | {ACTIONS: True})

    def _fit_v(self, episodes: Sequence[Trajectory], replay: Replay) -> float:
        """One step of V towards the expectile."""
        network, wanted = self.values.network, self._least(episodes)
        output = self.values.outputs(episodes)
        errors = wanted - network.values(output).detach()
        sizes = errors.abs().split([len(e.turns) for e in episodes])
        replay.observe(episodes, [float(size.mean()) for size in sizes])
        lean = expectile_weights(errors, expectile=self.plan.expectile)
        loss = (per_turn(replay, episodes) * lean * network.loss(output, wanted)).mean()
        return descend(self.values.optimizer, loss, self.values.plan.max_grad_norm)

    def _fit_q(self, episodes: Sequence[Trajectory], replay: Replay) -> float:
        """One step of each Q towards what a turn paid and V of the view after it; the mean loss."""
        plan = self.values.plan
        now = self.values.padded(episodes, self.values.values(episodes))
        wanted = now.n_step(discount=plan.discount, n_steps=1)[now.mask]
        losses = []
        for q in self.qs:
            loss = per_turn(replay, episodes) * q.network.loss(q.outputs(episodes), wanted)
            losses.append(descend(q.optimizer, loss.mean(), plan.max_grad_norm))
        return sum(losses) / len(losses)

    def _least(self, episodes: Sequence[Trajectory]) -> Tensor:
        """(turns,) the smaller slow Q of what was done."""
        with torch.no_grad():
            said = [
                q.read(network, episodes) for q, network in zip(self.qs, self.slow, strict=True)
            ]
        return smaller_of(torch.stack(said))

    def _follow(self, step: float) -> None:
        with torch.no_grad():
            for q, slow in zip(self.qs, self.slow, strict=True):
                for old, new in zip(slow.parameters(), q.network.parameters(), strict=True):
                    old.lerp_(new, step)

    def _copy_now_and_then(self) -> None:
        plan = self.values.plan
        if plan.target_update == "periodic" and self.values.fits % plan.target_period == 0:
            self._follow(1.0)


def polyak_step(plan: FitPlan) -> float:
    """How far slow copies go after each step, so that an iteration's steps go ``target_rate``.

    1 − (1 − ρ)^(1/n): TD passes a reward back one turn per move of the copies, so that moving
    once an iteration would take as many iterations as an episode has turns.
    """
    if plan.target_update == "periodic":
        return 0.0
    return float(1.0 - (1.0 - plan.target_rate) ** (1.0 / plan.steps))


def per_turn(replay: Replay, episodes: Sequence[Trajectory]) -> Tensor:
    """(turns,) importance weight of each turn's episode."""
    counts = torch.tensor([len(e.turns) for e in episodes])
    return replay.weights(episodes).repeat_interleave(counts)
