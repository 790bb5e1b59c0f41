"""Offline learning: what the actor and the critic learn from a static pool, without playing."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from stages.recipe.critic import CriticSection
from stages.recipe.section import Section

Method = Literal["iql", "awr", "filtered_cloning", "rejection_sampling"]
OWN = "sft"
"""The pool that the SFT actor plays itself."""
WITH_CRITIC = ("iql", "awr")


class OfflineSection(Section):
    """Learning from a static pool. One of rl.iterations is then rl.critic.steps of the critic and
    ``steps`` of the actor (the first rl.critic.warm_up.max_iterations of them of the critic alone);
    the KL to the SFT actor, weighed by rl.ppo.kl_coef, is that over the whole vocabulary. What
    else belongs to PPO (clip, entropy, SFT mixing) takes no part."""

    pool: str | None = Field(None, min_length=1)
    """Learn from this pool instead of playing: a run's folder or its pool/, a file of aac collect
    experience, somebody's agent episodes; sft: episodes the SFT actor plays first; none: online."""
    episodes: int = Field(512, ge=2)
    """How many episodes are played, for ``pool: sft`` and by aac collect experience."""
    method: Method = "iql"
    """iql: V by expectile regression, Q by TD, actions weighed by Q - V; awr: V by
    rl.critic.target, actions weighed by their advantage; filtered_cloning: all successes alike;
    rejection_sampling: the best episode of each task, all alike."""
    steps: int = Field(16, ge=0)
    """Actor steps per iteration, each on rl.ppo.minibatch_episodes episodes; 0: it stays."""
    expectile: float = Field(0.7, gt=0, lt=1)
    """iql: τ of V; 0.5 is the mean over the pool's actions, towards 1 the best of them."""
    beta: float = Field(0.1, gt=0)
    """iql, awr: β of the weights exp(A/β), in units of success; small: the best actions alone."""
    max_weight: float = Field(20.0, ge=1)
    """iql, awr: weights above are cut to this."""
    max_length: int = Field(1024, ge=16)
    """Longest row in tokens of a turn that nobody's tokens are known of; a longer prompt loses its
    middle, never the reply."""

    @property
    def active(self) -> bool:
        """Whether learning is offline."""
        return self.pool is not None

    @property
    def has_critic(self) -> bool:
        """Whether the method fits one."""
        return self.method in WITH_CRITIC


def twins(offline: OfflineSection, critic: CriticSection) -> bool:
    """Whether the smaller of two Q networks counts."""
    return offline.active and offline.method == "iql" and critic.twin is not False


def actor_iterations(rl: Any) -> int:
    """Iterations over which the actor's rate falls: offline those after the critic's own."""
    alone = rl.critic.warm_up.max_iterations
    critic_first = rl.offline.active and rl.offline.has_critic
    return int(rl.iterations - alone if critic_first else rl.iterations)


def check_offline(rl: Any) -> None:
    """ValueError where the rl section asks its offline part for something it cannot do."""
    offline, critic = rl.offline, rl.critic
    if critic.twin and not twins(offline, critic):
        raise ValueError(
            "rl.critic.twin is true, but the smaller of two Q values is too low on purpose, which "
            "is for offline use only; leave it out, or set rl.offline.pool with method iql"
        )
    asked = offline.active or "episodes" in offline.model_fields_set
    if asked and offline.episodes % rl.episodes_per_task:
        raise ValueError(
            f"rl.offline.episodes is {offline.episodes}, expected a multiple of "
            f"rl.episodes_per_task ({rl.episodes_per_task})"
        )
    if not offline.active:
        return
    if rl.hindsight is not None:
        raise ValueError(
            "rl.hindsight is given, but offline nothing is played that could be relabelled; leave "
            "rl.hindsight or rl.offline.pool out"
        )
    if rl.ppo.kl_loss == "in_reward":
        raise ValueError(
            "rl.ppo.kl_loss is in_reward, but offline no turn is paid for its KL, which is a loss "
            "there; set it to k2 or full"
        )
    if actor_iterations(rl) < 1:
        raise ValueError(
            f"rl.critic.warm_up.max_iterations is {critic.warm_up.max_iterations}, which leaves "
            f"none of rl.iterations ({rl.iterations}) to the actor; lower it, or give more"
        )
    if offline.has_critic:
        _check_critic(offline.method, critic)


def _check_critic(method: Method, critic: CriticSection) -> None:
    if critic.kind not in ("v", "q") or critic.shared:
        raise ValueError(
            f"rl.offline.method {method} fits V to the pool, but rl.critic has kind {critic.kind} "
            f"and trunk {critic.trunk}; set kind to v or q with a trunk of its own, or choose "
            "filtered_cloning or rejection_sampling, which need no critic"
        )
    if method != "iql":
        return
    for name, plain in {"target": "td_lambda", "off_policy": "none"}.items():
        if (given := getattr(critic, name)) != plain:
            raise ValueError(
                f"rl.critic.{name} is {given}, which does nothing for rl.offline.method iql; leave "
                "it out, or set method: awr"
            )
    if critic.loss == "huber":
        raise ValueError(
            "rl.critic.loss is huber, whose weighted minimum is no expectile; set mse or hl_gauss, "
            "or rl.offline.method: awr"
        )
