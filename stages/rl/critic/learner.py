"""The critic learns here: own optimizer, rate, number of steps, target network, pool samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from stages.common.errors import RunError
from stages.common.moments import load_optimizer
from stages.interaction.trajectory import Trajectory
from stages.rl.advantages import explained_variance, gae
from stages.rl.critic.cache import EpisodeCache
from stages.rl.critic.correction import AS_DRAWN, Correction
from stages.rl.critic.ensemble import Ensemble
from stages.rl.critic.heads import share_outside
from stages.rl.critic.network import CriticNetwork
from stages.rl.critic.views import ViewParts, critic_views
from stages.rl.targets import Trace, n_step_returns, vtrace

Target = Literal["td_lambda", "monte_carlo", "n_step", "expected_sarsa"]
"""``expected_sarsa``: one reward, then the policy's mean over actions, V̄ of the next view."""
TargetUpdate = Literal["polyak", "periodic"]
OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
}
FUSED = ("adamw", "adam")
"""Those of which torch has a step in one pass over each tensor."""


@dataclass(frozen=True)
class FitPlan:
    """How the critic is fitted: cadence and targets."""

    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    steps: int = 30
    batch_size: int = 32
    target_update: TargetUpdate = "polyak"
    target_rate: float = 0.5
    target_period: int = 1
    discount: float = 1.0
    gae_lambda: float = 0.95
    n_steps: int = 5
    rho_bar: float = 1.0
    c_bar: float = 1.0
    max_grad_norm: float = 1.0


def build_optimizer(plan: FitPlan, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The plan's optimizer at its rate, with torch's other settings."""
    build: Any = OPTIMIZERS[plan.optimizer]
    fused = {"fused": True} if plan.optimizer in FUSED else {}
    optimizer: torch.optim.Optimizer = build(parameters, lr=plan.learning_rate, **fused)
    return optimizer


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, max_grad_norm: float) -> float:
    """One clipped step on a loss; its value before the step. RunError where it is not finite."""
    if not torch.isfinite(loss):
        raise RunError(
            f"the critic's loss is {float(loss)}: nothing was written into its weights; lower "
            "rl.critic.learning_rate or look at the rewards of the last iteration."
        )
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    refuse_non_finite(nn.utils.clip_grad_norm_(parameters, max_grad_norm))
    optimizer.step()
    return float(loss.detach())


def refuse_non_finite(norm: Tensor) -> None:
    """RunError before a gradient of this norm reaches the critic's weights."""
    if not torch.isfinite(norm):
        raise RunError(
            f"the critic's gradient is {float(norm)}: nothing was written into its weights; lower "
            "rl.critic.learning_rate or look at the rewards of the last iteration"
        )


@dataclass(frozen=True)
class Padded:
    """Turns of several episodes as (B, N) tensors."""

    rewards: Tensor
    values: Tensor
    mask: Tensor
    bootstrap: Tensor

    def gae(self, *, discount: float, gae_lambda: float) -> tuple[Tensor, Tensor]:
        """Advantages and returns, (B, N); see ``advantages.gae``."""
        return gae(
            self.rewards,
            self.values,
            self.mask,
            bootstrap=self.bootstrap,
            discount=discount,
            gae_lambda=gae_lambda,
        )

    def n_step(self, *, discount: float, n_steps: int) -> Tensor:
        """(B, N); see ``targets.n_step_returns``."""
        return n_step_returns(
            self.rewards,
            self.values,
            self.mask,
            bootstrap=self.bootstrap,
            discount=discount,
            n_steps=n_steps,
        )

    def vtrace(self, log_ratios: Tensor, *, discount: float, trace: Trace) -> Tensor:
        """(B, N); see ``targets.vtrace``."""
        return vtrace(
            self.rewards,
            self.values,
            log_ratios,
            self.mask,
            bootstrap=self.bootstrap,
            discount=discount,
            trace=trace,
        )


def padded(
    episodes: Sequence[Trajectory],
    values: Sequence[Tensor],
    turn_rewards: Callable[[Trajectory], list[float]],
) -> Padded:
    """Episodes with V(c_0) … V(c_T) of each as (B, N); only a truncated one bootstraps."""
    rewards = [torch.tensor(turn_rewards(e)) for e in episodes]
    cut = torch.tensor([e.truncated and not e.terminated for e in episodes])
    last = torch.stack([v[-1] for v in values])
    pad = torch.nn.utils.rnn.pad_sequence
    mask = pad([torch.ones(len(e.turns), dtype=torch.bool) for e in episodes], batch_first=True)
    return Padded(
        rewards=pad(rewards, batch_first=True),
        values=pad([v[:-1] for v in values], batch_first=True),
        mask=mask,
        bootstrap=torch.where(cut, last, 0.0),
    )


class CriticLearner:
    """V(c_t) with a slow target network.

    ``values`` gives each episode V(c_0) … V(c_T); the last one bootstraps if the machinery cut
    the episode and counts 0 if the task ended it.
    """

    def __init__(
        self,
        network: CriticNetwork | Ensemble,
        *,
        plan: FitPlan,
        parts: ViewParts,
        turn_rewards: Callable[[Trajectory], list[float]],
    ) -> None:
        self.network, self.plan, self.parts = network, plan, parts
        self.target = copy.deepcopy(network).requires_grad_(False)
        self.optimizer = build_optimizer(plan, network.parameters())
        self.fits = 0
        self._turn_rewards = turn_rewards
        self._numbers = EpisodeCache(lambda e: network.prepare(critic_views(e, parts)))

    def values(self, episodes: Sequence[Trajectory], *, slow: bool = False) -> list[Tensor]:
        """V(c_0) … V(c_T) of each episode, without gradient; ``slow``: by the target network."""
        if not episodes:
            return []
        with torch.no_grad():
            return self._forward(self.target if slow else self.network, episodes)

    def padded(self, episodes: Sequence[Trajectory], values: Sequence[Tensor]) -> Padded:
        """Rewards, values and mask as (B, N), with the bootstrap of truncated episodes."""
        return padded(episodes, values, self._turn_rewards)

    def targets(
        self,
        episodes: Sequence[Trajectory],
        slow_values: Sequence[Tensor],
        *,
        kind: Target,
        log_ratios: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """What V is fitted to, from the target network's values: (B, N) returns and mask.

        td_lambda: λ-returns; monte_carlo: λ=1; n_step: n rewards, then a value. Truncated
        episodes bootstrap in all. With ``log_ratios`` of the turns they become V-trace targets.
        ValueError for relabelled episodes but with ``expected_sarsa``: what followed in them is
        why they have their task, so any longer return speaks of "success, given that the goal was
        chosen with hindsight".
        """
        if kind != "expected_sarsa" and any(e.relabelled_from for e in episodes):
            raise ValueError(f"relabelled episodes cannot be fitted to {kind} returns")
        slow, plan = self.padded(episodes, slow_values), self.plan
        gae_lambda = plan.gae_lambda if kind == "td_lambda" else 1.0
        if log_ratios is not None:
            ratios = nn.utils.rnn.pad_sequence(list(log_ratios), batch_first=True)
            ahead = plan.n_steps if kind == "n_step" else None
            trace = Trace(plan.rho_bar, plan.c_bar, gae_lambda, ahead)
            return slow.vtrace(ratios, discount=plan.discount, trace=trace), slow.mask
        if kind in ("n_step", "expected_sarsa"):
            steps = plan.n_steps if kind == "n_step" else 1
            return slow.n_step(discount=plan.discount, n_steps=steps), slow.mask
        _, returns = slow.gae(discount=plan.discount, gae_lambda=gae_lambda)
        return returns, slow.mask

    def surprise(self, episodes: Sequence[Trajectory]) -> float:
        """Explained variance of Monte-Carlo returns on episodes it has not been fitted to."""
        now = self.padded(episodes, self.values(episodes))
        return explained_variance(now.values, self._monte_carlo(now), now.mask)

    def remarks(self, episodes: Sequence[Trajectory]) -> dict[str, float]:
        """What else is to be said of new episodes, by the kind of network.

        The share of Monte-Carlo returns outside the head's range, where it has one; an ensemble's
        disagreement, the mean spread between its members.
        """
        said = {}
        if self.network.value_range is not None:
            now = self.padded(episodes, self.values(episodes))
            returns = self._monte_carlo(now)[now.mask]
            said["clipped_targets"] = share_outside(returns, self.network.value_range)
        if isinstance(self.network, Ensemble):
            with torch.no_grad():
                spread = self.network.spread([self._numbers(e) for e in episodes])
            said["disagreement"] = float(spread[_before_actions(episodes)].mean())
        return said

    def warm_start(self, weights: dict[str, Tensor]) -> None:
        """Another critic's weights, also for the target network; the optimizer stays fresh."""
        self.network.load_state_dict(weights)
        self.target.load_state_dict(weights)

    def fit(
        self,
        sample: Callable[[int], Sequence[Trajectory]],
        *,
        kind: Target,
        correction: Correction = AS_DRAWN,
    ) -> float:
        """``plan.steps`` optimizer steps on episodes drawn by ``sample``; the mean loss."""
        losses = []
        for episodes, returns, mask in self.batches(sample, kind=kind, correction=correction):
            output = self.outputs(episodes)
            weights = correction.weights(episodes)[:, None].expand_as(returns)[mask]
            loss = (weights * self.network.loss(output, returns[mask])).mean()
            error = torch.zeros_like(returns)
            error[mask] = self.network.values(output).detach() - returns[mask]
            correction.observe(episodes, mean_size(error, mask))
            losses.append(descend(self.optimizer, loss, self.plan.max_grad_norm))
        self._follow()
        return sum(losses) / max(len(losses), 1)

    def outputs(self, episodes: Sequence[Trajectory]) -> Any:
        """What the head says of every turn, with gradient; the network's ``loss`` takes it.

        c_T is read only to bootstrap: it has no target of its own.
        """
        output = self.network.outputs([self._numbers(e) for e in episodes])
        return output[_before_actions(episodes)]

    def batches(
        self,
        sample: Callable[[int], Sequence[Trajectory]],
        *,
        kind: Target,
        correction: Correction = AS_DRAWN,
    ) -> Iterator[tuple[Sequence[Trajectory], Tensor, Tensor]]:
        """``plan.steps`` batches drawn by ``sample``: episodes, their (B, N) targets and mask.

        The target network and the rewards stand still during a fit, so all is drawn before it, and
        every drawn episode's targets are worked out once.
        """
        drawn = [sample(self.plan.batch_size) for _ in range(self.plan.steps)]
        every = list({id(e): e for episodes in drawn for e in episodes}.values())
        known: dict[int, Tensor] = {}
        for start in range(0, len(every), self.plan.batch_size):
            some = every[start : start + self.plan.batch_size]
            slow, ratios = self.values(some, slow=True), correction.log_ratios(some)
            returns, _ = self.targets(some, slow, kind=kind, log_ratios=ratios)
            known |= {id(e): row[: len(e.turns)] for e, row in zip(some, returns, strict=True)}
        for episodes in drawn:
            rows = [known[id(e)] for e in episodes]
            lengths = torch.tensor([len(e.turns) for e in episodes])
            mask = torch.arange(int(lengths.max())) < lengths[:, None]
            yield episodes, nn.utils.rnn.pad_sequence(rows, batch_first=True), mask

    def forget(self, kept: Sequence[Trajectory]) -> None:
        """Drop the prepared numbers of episodes that have left the pool."""
        self._numbers.forget(kept)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on: weights, target, optimizer moments."""
        return {
            "network": self.network.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "fits": self.fits,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.network.load_state_dict(state["network"])
        self.target.load_state_dict(state["target"])
        load_optimizer(self.optimizer, state["optimizer"], "critic's")
        self.fits = state["fits"]

    def _forward(
        self, network: CriticNetwork | Ensemble, episodes: Sequence[Trajectory]
    ) -> list[Tensor]:
        flat = network([self._numbers(e) for e in episodes])
        return list(flat.split([len(e.turns) + 1 for e in episodes]))

    def _monte_carlo(self, now: Padded) -> Tensor:
        _, returns = now.gae(discount=self.plan.discount, gae_lambda=1.0)
        return returns

    def _follow(self) -> None:
        """After a fit: target ← (1−τ)·target + τ·network, or a plain copy now and then.

        Lillicrap et al. 2016, arXiv:1509.02971 (polyak); Mnih et al. 2015 (periodic).
        """
        self.fits += 1
        if self.plan.target_update == "periodic":
            if self.fits % self.plan.target_period == 0:
                self.target.load_state_dict(self.network.state_dict())
            return
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.network.parameters(), strict=True):
                slow.lerp_(fast, self.plan.target_rate)


def mean_size(error: Tensor, mask: Tensor) -> list[float]:
    """Mean absolute error over the turns of each episode; both (B, N)."""
    means = torch.where(mask, error.abs(), 0.0).sum(1) / mask.sum(1).clamp(min=1)
    return means.tolist()


def _before_actions(episodes: Sequence[Trajectory]) -> Tensor:
    """Which of the views c_0 … c_T of each episode stand before an action: all but the last."""
    return torch.cat([torch.arange(len(e.turns) + 1) < len(e.turns) for e in episodes])
