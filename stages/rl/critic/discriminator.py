"""Kind ``discriminative`` (F14): a classifier of good and bad (c_t, a_t), learnt by contrast.

Pairs of turns that could be compared but came out differently are drawn from the pool: same
state of the same task, else the same task at the same turn, else the same kind of task at the
same turn (all there is where the tasks of an iteration are distinct; see
``rl.episodes_per_task``). Pairs of the reward stage's preference data join them. The loss is
−log σ(D(good) − D(bad)), on the views with their actions and on the bare views alike.

What pays is what the action adds, d_t = D(c_t, a_t) − D(c_t): an early good action makes all
later states look good, and centring D itself over the episode would take its credit away.

It scores new episodes before it is fitted to them, with what it learnt from earlier iterations:
no episode helps to judge itself. A fifth of the tasks, chosen by their name, never trains it and
gives the held-out AUC. d_t is added to the turns' rewards, centred over the episode and capped;
V stays the baseline.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stages.common.moments import load_optimizer
from stages.common.seeding import keyed_generator
from stages.interaction.preferences import returns_to_go
from stages.interaction.trajectory import Trajectory
from stages.rl.baselines import Judgement, LearnedBaseline
from stages.rl.critic.cache import EpisodeCache
from stages.rl.critic.contrast import Contrasts, Outcome, auc, preference_loss
from stages.rl.critic.learner import FitPlan, build_optimizer, descend
from stages.rl.critic.trunks import ACTIONS, Network, save_critic
from stages.rl.critic.views import ViewParts, action_views, critic_views

DISCRIMINATOR_SAMPLES = 6
"""Place in random keys, so that no two uses share numbers."""
BONUS = "discriminator"
"""Name in ``Turn.info`` of what the discriminator adds to the turn's reward."""
HELD_OUT_SHARE = 5
"""One task in so many is held out."""
HELD_OUT_PAIRS = 256
HEAD = {"loss": "mse", "ensemble": 1}
"""Its critic options whatever V's are: one plain head, whose output is a logit."""

Judged = tuple[Trajectory, int]
"""Turn t of an episode: (c_t, a_t)."""


@dataclass(frozen=True)
class BonusPlan:
    """How a classifier's output becomes a reward."""

    weight: float
    """Reward of one unit of the output, in units of success."""
    cap: float
    """Most that an episode's bonuses may add up to, their signs dropped."""


def bonuses(scores: Tensor, plan: BonusPlan) -> Tensor:
    """b_t = w·(d_t − mean d), scaled down to Σ|b_t| ≤ cap; (T,) from (T,).

    They add up to 0, so that a longer episode is not paid for its length, and an episode of one
    turn gets nothing. Raises ValueError unless ``scores`` is (T,), T ≥ 1.
    """
    if scores.dim() != 1 or not len(scores):
        raise ValueError(f"scores must be (T,) with T of at least 1, got {tuple(scores.shape)}")
    centred = plan.weight * (scores - scores.mean())
    total = float(centred.abs().sum())
    return centred * (plan.cap / total) if total > plan.cap else centred


def held_out(task_id: str) -> bool:
    """Whether a task is kept for the AUC: by its name, so that it is so in every iteration."""
    return zlib.crc32(task_id.encode()) % HELD_OUT_SHARE == 0


class Discriminator:
    """D(c_t, a_t): learns from the pool and from preferences, scores new episodes."""

    def __init__(
        self,
        network: Network,
        *,
        plan: FitPlan,
        parts: ViewParts,
        bonus: BonusPlan,
        turn_rewards: Callable[[Trajectory], list[float]],
        preferences: Sequence[tuple[Trajectory, Trajectory]] = (),
    ) -> None:
        """``turn_rewards``: without bonuses. ``preferences``: (chosen, rejected), the last turn
        of each being judged."""
        self.network, self.plan, self.bonus = network, plan, bonus
        self.preferences = [
            ((a, len(a.turns) - 1), (b, len(b.turns) - 1))
            for a, b in preferences
            if not held_out(a.task_id)
        ]
        self.optimizer = build_optimizer(plan, network.parameters())
        self._turn_rewards = turn_rewards
        self._with_actions = EpisodeCache(lambda e: network.prepare(action_views(e, parts)))
        self._bare = EpisodeCache(lambda e: network.prepare(critic_views(e, parts)[:-1]))

    def scores(self, judged: Sequence[Judged], *, actions: bool = True) -> Tensor:
        """(N,) outputs D(c_t, a_t) for turns of episodes, or D(c_t), with gradient."""
        episodes = list({id(e): e for e, _ in judged}.values())
        starts, start = {}, 0
        for episode in episodes:
            starts[id(episode)] = start
            start += len(episode.turns)
        numbers = self._with_actions if actions else self._bare
        flat: Tensor = self.network([numbers(e) for e in episodes])
        return flat[torch.tensor([starts[id(e)] + t for e, t in judged])]

    def with_bonuses(self, episodes: Sequence[Trajectory]) -> list[Trajectory]:
        """The episodes with the bonus noted on every turn; 0 until it has learnt something."""
        judged = list(_turns(episodes))
        with torch.no_grad():
            added = self.scores(judged) - self.scores(judged, actions=False)
        noted = []
        for episode, d in zip(episodes, added.split([len(e.turns) for e in episodes]), strict=True):
            pairs = zip(episode.turns, bonuses(d, self.bonus).tolist(), strict=True)
            turns = [replace(turn, info=dict(turn.info) | {BONUS: b}) for turn, b in pairs]
            noted.append(episode.with_turns(turns))
        return noted

    def fit(self, episodes: Sequence[Trajectory], rng: np.random.Generator) -> dict[str, float]:
        """``plan.steps`` steps on pairs of the episodes and of the preferences. Metrics."""
        finished = [e for e in episodes if e.terminated]
        turns = list(_turns([e for e in finished if not held_out(e.task_id)]))
        contrasts = Contrasts(self._outcomes(turns))
        metrics = {"critic/pairs": float(len(contrasts))}
        if len(contrasts) or self.preferences:
            losses = [self._step(self._draw(turns, contrasts, rng)) for _ in range(self.plan.steps)]
            metrics["critic/discriminator_loss"] = sum(losses) / len(losses)
        unseen = list(_turns([e for e in finished if held_out(e.task_id)]))
        for numbers in (self._with_actions, self._bare):
            numbers.forget([*episodes, *(e for pair in self.preferences for e, _ in pair)])
        return metrics | self._held_out_auc(unseen, rng)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""
        return {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.network.load_state_dict(state["network"])
        load_optimizer(self.optimizer, state["optimizer"], "discriminator's")

    def _draw(
        self, turns: Sequence[Judged], contrasts: Contrasts, rng: np.random.Generator
    ) -> list[tuple[Judged, Judged]]:
        """One batch of (good, bad): half of each source where there are both."""
        count = self.plan.batch_size
        told = count if not len(contrasts) else count // 2 if self.preferences else 0
        pairs = []
        if told < count:
            drawn = contrasts.draw(count - told, rng)
            pairs += [(turns[good], turns[bad]) for good, bad in drawn]
        if told:
            chosen = rng.integers(len(self.preferences), size=told)
            pairs += [self.preferences[number] for number in chosen]
        return pairs

    def _step(self, pairs: Sequence[tuple[Judged, Judged]]) -> float:
        turns = [turn for pair in pairs for turn in pair]
        scores, bare = self.scores(turns), self.scores(turns, actions=False)
        loss = preference_loss(scores[0::2], scores[1::2]).mean()
        bare_loss = preference_loss(bare[0::2], bare[1::2]).mean()
        descend(self.optimizer, loss + bare_loss, self.plan.max_grad_norm)
        return float(loss.detach())

    def _outcomes(self, turns: Sequence[Judged]) -> list[Outcome]:
        """Return-to-go of each turn, and what it may be compared with."""
        to_go = {
            id(e): returns_to_go(self._turn_rewards(e), self.plan.discount)
            for e, t in turns
            if t == 0
        }
        return [Outcome(to_go[id(e)][t], _groups(e, t)) for e, t in turns]

    def _held_out_auc(self, turns: Sequence[Judged], rng: np.random.Generator) -> dict[str, float]:
        contrasts = Contrasts(self._outcomes(turns))
        if not len(contrasts):
            return {}
        pairs = contrasts.draw(HELD_OUT_PAIRS, rng)
        good, bad = sorted({g for g, _ in pairs}), sorted({b for _, b in pairs})
        with torch.no_grad():
            scores, bare = self.scores(turns), self.scores(turns, actions=False)
        return {
            "critic/auc": auc(scores[good], scores[bad]),
            "critic/auc_without_action": auc(bare[good], bare[bad]),
        }


class DiscriminativeBaseline:
    """V as the baseline of rewards that hold a discriminator's bonus, and both learn."""

    gives_values = True

    def __init__(self, values: LearnedBaseline, discriminator: Discriminator) -> None:
        self.values, self.discriminator = values, discriminator

    @property
    def ready(self) -> bool:
        """Once V is warmed up."""
        return self.values.ready

    def listen(self, episodes: Sequence[Trajectory]) -> dict[str, float]:
        """What V says of new episodes, and the mean size of a turn's bonus."""
        paid = [abs(float(t.info.get(BONUS, 0.0))) for e in episodes for t in e.turns]
        return self.values.listen(episodes) | {"critic/bonus": float(np.mean(paid))}

    def judge(self, episodes: Sequence[Trajectory]) -> Judgement:
        """GAE with V."""
        return self.values.judge(episodes)

    def learn(self, iteration: int, actor_version: int) -> dict[str, float]:
        """V on pool samples, the discriminator on pairs of episodes of the same ages."""
        heard = self.values.learn(iteration, actor_version)
        pool, cadence = self.values.pool, self.values.cadence
        oldest = actor_version - cadence.max_age
        young = [e for e in pool.episodes if e.actor_version >= oldest]
        rng = keyed_generator(cadence.seed, iteration, DISCRIMINATOR_SAMPLES)
        return heard | self.discriminator.fit(young, rng)

    def state_dict(self) -> dict[str, Any]:
        """Of V and the discriminator."""
        return {
            "values": self.values.state_dict(),
            "discriminator": self.discriminator.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.values.load_state_dict(state["values"])
        self.discriminator.load_state_dict(state["discriminator"])

    def save(self, folder: Path, options: dict[str, Any]) -> None:
        """V as a critic's folder, the discriminator as another inside it."""
        self.values.save(folder, options)
        network = self.discriminator.network
        save_critic(network, folder / "discriminator", options | HEAD | {ACTIONS: True})


def _turns(episodes: Sequence[Trajectory]) -> Iterator[Judged]:
    return ((e, t) for e in episodes for t in range(len(e.turns)))


def _groups(episode: Trajectory, t: int) -> tuple[Any, ...]:
    shown = tuple(str(m.get("content")) for m in episode.turns[t].messages)
    task = (episode.task_id, t)
    return (("state", *task, shown), ("task", *task), ("kind", episode.kind, t))
