"""The frozen trunk: a sentence encoder that stands still, and one hidden layer over it.

What the encoder makes of a text is worked out once and kept with the episode, so a fit costs next
to nothing. Some hundred episodes teach a network that reads whole embeddings which tasks it has
seen, and nothing of new ones: it gets each text in a few fixed directions, beside the view in
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from stages.rl.critic.numbers import NUMBERS, view_numbers
from stages.rl.critic.views import BETWEEN_FACTS, View

DIRECTIONS = 8
"""Of an embedding that the network reads: drawn once, orthogonal (Johnson and Lindenstrauss)."""
SCALE = 0.3
"""Of what it reads in them, where an embedding has a mean square of 1: the numbers speak louder."""


class Embedder(Protocol):
    """Texts to rows of length 1."""

    size: int

    def embed(self, texts: list[str]) -> Any:
        """(n, size) float32."""
        ...


class Standing:
    """Holds an encoder out of the network's weights, copies and files: it never changes."""

    def __init__(self, encoder: Embedder) -> None:
        self.encoder = encoder

    def __deepcopy__(self, memo: Any) -> Standing:
        return self

    def rows(self, texts: Sequence[str]) -> Tensor:
        """(n, size) with a mean square of 1 per number; zeros for an empty text."""
        found = torch.zeros(len(texts), self.encoder.size)
        some = [k for k, text in enumerate(texts) if text.strip()]
        if some:
            known = self.encoder.embed([texts[k] for k in some])
            found[some] = torch.as_tensor(known).float() * self.encoder.size**0.5
        return found


class FrozenTrunk(nn.Module):
    """Each view's numbers, and its goal, state, facts and newest exchange as the encoder has them.

    forward: list of (T + 1, inputs) -> (sum of views, width) features.
    """

    directions: Tensor

    def __init__(self, encoder: Embedder, hidden_size: int, *, actions: bool = False) -> None:
        """``actions``: the views hold a proposed action that is to be judged."""
        super().__init__()
        self.width = hidden_size
        self._actions = actions
        self._standing = Standing(encoder)
        drawn = torch.randn(encoder.size, DIRECTIONS, generator=torch.Generator().manual_seed(0))
        self.register_buffer("directions", torch.linalg.qr(drawn)[0])
        texts = 5 if actions else 4
        inputs = NUMBERS + texts * self.directions.shape[1]
        self.join = nn.Sequential(nn.Linear(inputs, hidden_size), nn.GELU())

    def prepare(self, views: Sequence[View]) -> Tensor:
        """The T + 1 views of one episode as numbers, (T + 1, inputs)."""
        newest = [v.history[-1] if v.history else None for v in views]
        texts = [
            self._standing.rows([views[-1].goal]).expand(len(views), -1),
            self._standing.rows([f"{v.state} {v.checklist}" for v in views]),
            self._facts([v.privileged for v in views]),
            self._standing.rows([f"{e.action} {e.result}" if e else "" for e in newest]),
        ]
        texts += [self._standing.rows([v.action for v in views])] * self._actions
        read = [rows @ self.directions * SCALE for rows in texts]
        return torch.cat([torch.tensor([view_numbers(v) for v in views]), *read], dim=-1)

    def _facts(self, texts: Sequence[str]) -> Tensor:
        """Each text as the mean of its facts, which are embedded one by one: most of them stay as
        they are from turn to turn."""
        return torch.stack([self._standing.rows(t.split(BETWEEN_FACTS)).mean(0) for t in texts])

    def forward(self, episodes: Sequence[Tensor]) -> Tensor:
        """Features of all views of the episodes, (sum of views, width)."""
        features: Tensor = self.join(torch.cat(list(episodes)))
        return features
