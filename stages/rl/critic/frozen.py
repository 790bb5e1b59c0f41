"""The frozen trunk: a sentence encoder that stands still under the light trunk's network.

What the encoder makes of a text is worked out once and kept with the episode, so a fit costs what
the light trunk's does; and a few hundred episodes, on which a tuned encoder would overfit, only
have to teach a projection and a recurrence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from stages.rl.critic.light import LightTrunk

BETWEEN_FACTS = "; "
"""Facts are embedded one by one: most of them stay as they are from turn to turn."""


class Embedder(Protocol):
    """Texts to rows of length 1."""

    size: int

    def embed(self, texts: list[str]) -> Any:
        """(n, size) float32."""
        ...


@dataclass(frozen=True)
class Embedded:
    """Several texts as one row each, (n, size)."""

    rows: Tensor

    def __len__(self) -> int:
        """How many texts."""
        return self.rows.shape[0]


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


class FrozenTrunk(LightTrunk):
    """``LightTrunk`` over an encoder's embeddings, which it projects to its own width."""

    def __init__(self, encoder: Embedder, hidden_size: int, *, actions: bool = False) -> None:
        super().__init__(hidden_size, actions=actions)
        self._standing = Standing(encoder)
        self.embed = nn.Linear(encoder.size, hidden_size)

    def _texts(self, texts: Sequence[str]) -> Embedded:
        return Embedded(self._standing.rows(texts))

    def _facts(self, texts: Sequence[str]) -> Embedded:
        """Each text as the mean of its facts."""
        means = [self._standing.rows(text.split(BETWEEN_FACTS)).mean(0) for text in texts]
        return Embedded(torch.stack(means))

    def _embed(self, texts: Sequence[Any]) -> Tensor:
        projected: Tensor = self.embed(torch.cat([t.rows for t in texts]))
        return projected
