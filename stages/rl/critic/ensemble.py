"""Several small critics in the place of one: their mean is the value, their spread is logged.

AsyPPO (arXiv:2510.01656) finds that a few small critics, kept diverse by the data they see, value
as well as one large one. Here every member sees every episode with a weight drawn from Poisson(1)
once and for all, the online bootstrap (Osband et al. 2016, arXiv:1602.04621): members differ even
where all start from the same pretrained encoder. Members are full copies; nothing is shared.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stages.common.seeding import keyed_generator
from stages.rl.critic.network import CriticNetwork
from stages.rl.critic.views import View


@dataclass(frozen=True)
class Drawn:
    """An episode's numbers, and how much each member makes of it."""

    numbers: Any
    weights: Tensor
    """(members,)."""
    views: int


class Ensemble(nn.Module):
    """The mean of its members.

    forward: list of prepared episodes -> (sum of views,) values, as ``CriticNetwork``.
    """

    def __init__(self, members: Sequence[CriticNetwork]) -> None:
        """ValueError below two members."""
        super().__init__()
        if len(members) < 2:
            raise ValueError(f"an ensemble has at least two members, got {len(members)}")
        self.members = nn.ModuleList(members)

    @property
    def first(self) -> CriticNetwork:
        """A member; all are built alike and read with the same tokenizer."""
        member: Any = self.members[0]
        return member

    @property
    def trunk(self) -> nn.Module:
        """A member's trunk."""
        return self.first.trunk

    @property
    def value_range(self) -> tuple[float, float] | None:
        """See ``CriticNetwork``."""
        return self.first.value_range

    def prepare(self, views: Sequence[View]) -> Drawn:
        """Numbers of the views of one episode, made once and kept."""
        weights = bootstrap_weights(views[-1].text(), len(self.members))
        return Drawn(self.first.prepare(views), weights, len(views))

    def forward(self, episodes: Sequence[Drawn]) -> Tensor:
        """Mean value of all views."""
        return self.member_values(episodes).mean(1)

    def spread(self, episodes: Sequence[Drawn]) -> Tensor:
        """(sum of views,) standard deviation between the members' values."""
        return self.member_values(episodes).std(1, unbiased=False)

    def member_values(self, episodes: Sequence[Drawn]) -> Tensor:
        """(sum of views, members) values."""
        return self._values(self.outputs(episodes))

    def outputs(self, episodes: Sequence[Drawn]) -> Tensor:
        """What the heads say, (sum of views, members, …); ``loss`` takes it.

        A member's gradient is scaled by its weight for the episode; the numbers are not. So the
        plain mean of the losses trains each member on its weighted losses.
        """
        numbers = [e.numbers for e in episodes]
        said = torch.stack([member.outputs(numbers) for member in self._each()], dim=1)
        views = torch.tensor([e.views for e in episodes])
        weights = torch.stack([e.weights for e in episodes]).repeat_interleave(views, dim=0)
        weights = weights.reshape(*weights.shape, *[1] * (said.dim() - 2))
        return weights * said + (1 - weights) * said.detach() if said.requires_grad else said

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """(N,) losses of (N,) targets, the mean over the members."""
        losses = [m.loss(output[:, k], targets) for k, m in enumerate(self._each())]
        return torch.stack(losses, dim=1).mean(1)

    def values(self, output: Tensor) -> Tensor:
        """(N,) mean values of what ``outputs`` gave."""
        return self._values(output).mean(1)

    def _values(self, output: Tensor) -> Tensor:
        return torch.stack([m.values(output[:, k]) for k, m in enumerate(self._each())], dim=1)

    def _each(self) -> list[CriticNetwork]:
        members: Any = self.members
        return list(members)


def bootstrap_weights(text: str, members: int) -> Tensor:
    """(members,) draws from Poisson(1), keyed by the episode's text and the member's number."""
    key = zlib.crc32(text.encode())
    return torch.tensor([float(keyed_generator(key, k).poisson(1.0)) for k in range(members)])
