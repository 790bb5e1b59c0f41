"""A trained critic as judge of proposed actions at run time (B1).

Kind ``q`` scores a proposal by A = Q(c_t, a_t) − V(c_t), kind ``discriminative`` by
D(c_t, a_t) − D(c_t): what the action adds to where the episode stands, so that one threshold
serves good and hopeless states alike. Only a critic without privileged facts can judge where the
right answer is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from stages.common.errors import UsageError
from stages.interaction.supervision import Judge
from stages.interaction.trajectory import Trajectory
from stages.recipe.critic import CriticSection
from stages.rl.critic.options import view_parts
from stages.rl.critic.trunks import Network, load_critic
from stages.rl.critic.views import View, ViewParts, action_views, critic_views

INSIDE = {"q": "q", "discriminative": "discriminator"}
"""Kinds that judge actions, and the folder of the network that does it inside the critic's."""

Views = Callable[[Trajectory], Sequence[View]]


def saved_judge(folder: Path, state_tokens: int) -> Judge:
    """The judge in a critic's folder; ``state_tokens`` is the budget of the actor's state.

    UsageError for a critic that judges no actions, or that needs privileged facts.
    """
    values, options = load_critic(folder)
    critic = CriticSection.model_validate(options)
    if critic.kind not in INSIDE:
        raise UsageError(
            f"{folder} holds a critic of kind {critic.kind}, which judges states and no proposed "
            "actions; train one with rl.critic.kind q or discriminative, or use "
            "--supervise-mode review."
        )
    acting, _ = load_critic(folder / INSIDE[critic.kind])
    alone = critic.kind == "discriminative"
    told = critic.view.privileged and (critic.discriminator.privileged or not alone)
    if told:
        raise UsageError(
            f"{folder} holds a critic that was trained with privileged facts, which nobody has "
            "when the agent works; train one with rl.critic.view.privileged false."
        )
    parts = replace(view_parts(critic.view, state_tokens), privileged=False)
    return judge_of(acting, acting if alone else values, parts)


def judge_of(acting: Network, bare: Network, parts: ViewParts) -> Judge:
    """Scores ``acting``(c_t, a_t) − ``bare``(c_t) of proposals."""

    def judged(groups: Sequence[Sequence[Trajectory]]) -> list[list[float]]:
        flat = [proposed for group in groups for proposed in group]
        with torch.no_grad():
            done = _last(acting, flat, lambda e: action_views(e, parts))
            stood = _last(bare, flat, lambda e: critic_views(e, parts)[:-1])
        scores = iter((done - stood).tolist())
        return [[next(scores) for _ in group] for group in groups]

    return judged


def _last(network: Network, episodes: Sequence[Trajectory], views: Views) -> Tensor:
    """(N,) what a network says of the last view of each episode."""
    flat: Tensor = network([network.prepare(views(episode)) for episode in episodes])
    ends = torch.tensor([len(episode.turns) for episode in episodes]).cumsum(0) - 1
    return flat[ends]
