"""Sums of an update over tokens and processes, and the means they become."""

from __future__ import annotations

from torch import Tensor

from stages.common.ranks import Ranks


class Tally:
    """Sums over action tokens, turned into means at the end."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.tokens = 0
        self._apart: dict[str, tuple[float, int]] = {}

    def add(self, tokens: int, **sums: Tensor) -> None:
        """Add sums over ``tokens`` action tokens."""
        self.tokens += tokens
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value.detach())

    def add_apart(self, name: str, total: Tensor, tokens: int) -> None:
        """A sum with a count of its own."""
        before, count = self._apart.get(name, (0.0, 0))
        self._apart[name] = (before + float(total.detach()), count + tokens)

    def over(self, ranks: Ranks) -> Tally:
        """The sums of all processes."""
        whole = Tally()
        for part in ranks.everyone(self):
            whole.tokens += part.tokens
            for name, value in part.sums.items():
                whole.sums[name] = whole.sums.get(name, 0.0) + value
            for name, (total, count) in part._apart.items():
                before, counted = whole._apart.get(name, (0.0, 0))
                whole._apart[name] = (before + total, counted + count)
        return whole

    def means(self) -> dict[str, float]:
        """Per action token."""
        means = {name: total / max(self.tokens, 1) for name, total in self.sums.items()}
        return means | {name: total / max(n, 1) for name, (total, n) in self._apart.items()}
