"""Many raw components become one reward per turn, in units where success is 1.

Weights are proportions (success 10, a sub-goal 1, ...); all dense rewards of an episode together
stay within ±``dense_cap``, and reward-model scores enter as a mean over the episode's turns. So
success always pays most, and an episode that only prolongs itself gains nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from stages.interaction.rewards.shaping import SHAPING, Shaping
from stages.interaction.trajectory import Trajectory, Turn

DEFAULT_WEIGHTS: Mapping[str, float] = {
    "success": 10.0,
    "sub_goal": 1.0,
    "right_tool": 0.5,
    "right_arguments": 0.5,
    "useful_result": 0.1,
    "final_state": 1.0,
    "information": 0.5,
    "judge": 1.0,
    "policy_violation": -1.0,
    "invalid": -0.5,
    "off_topic": -0.3,
    "format": -0.2,
    "repeated": -0.3,
    "empty": -0.2,
    "babble": -0.3,
    "length": -0.1,
    "audited": -1.0,
}
GOLD_DEPENDENT = ("sub_goal", "right_tool", "right_arguments", "useful_result")
"""Dense components that an environment may pay by what it knows of the right answer."""
SUCCESS = "success"
REWARD_MODEL = "reward_model"
"""Name of the raw score that a reward model puts on a turn."""
_ROUNDING = 1e-12


@dataclass(frozen=True)
class RewardMix:
    """How raw components are weighed. ``weights`` override the default proportions."""

    weights: Mapping[str, float] = field(default_factory=dict)
    dense_cap: float = 0.5
    """Most that all positive dense rewards of an episode may add up to (negative ones alike)."""
    caps: Mapping[str, float] = field(default_factory=dict)
    """Most that a component may add to, or take from, an episode: what could be farmed."""
    reward_model_weight: float = 0.0
    """Weight of the episode's mean score, in the units of ``weights``."""
    score_clip: float = 2.0
    """Scores are cut at this many standard deviations."""
    score_mean: float = 0.0
    """Mean score of the SFT actor's turns: the offset."""
    score_std: float = 1.0
    """Spread of the SFT actor's scores."""
    shaping: Shaping | None = None
    """Potential-based shaping: beside weights and caps, which would make it move the optimum."""

    def __post_init__(self) -> None:
        weights = {**DEFAULT_WEIGHTS, **self.weights}
        if weights[SUCCESS] <= 0:
            raise ValueError(f"weight of success must be above 0, got {weights[SUCCESS]}")
        unknown = sorted(set(self.caps) - {*weights, REWARD_MODEL})
        if unknown or any(cap < 0 for cap in self.caps.values()):
            raise ValueError(f"caps must be 0 or more, of known components, got {self.caps}")
        if self.score_std < 0:
            raise ValueError(f"score_std must not be negative, got {self.score_std}")
        object.__setattr__(self, "weights", weights)

    @property
    def components(self) -> tuple[str, ...]:
        """Every component that can pay; each appears in every ``weighted`` row."""
        model = (REWARD_MODEL,) if self.reward_model_weight else ()
        return (*self.weights, *model, *((SHAPING,) if self.shaping else ()))

    def weighted(self, trajectory: Trajectory) -> list[dict[str, float]]:
        """Per turn: component -> reward in units of success, caps applied.

        Caps are causal: a turn is paid what the turns before it have left of the cap.
        """
        left = {True: self.dense_cap, False: self.dense_cap}
        rows = self._capped(trajectory)
        for row in rows:
            for positive in (True, False):
                names = [n for n, v in row.items() if n != SUCCESS and v and (v > 0) == positive]
                wanted = sum(abs(row[name]) for name in names)
                paid = min(wanted, left[positive])
                left[positive] -= paid
                for name in names:
                    row[name] *= paid / wanted
        if self.shaping is None:
            return rows
        return [{**row, SHAPING: f} for row, f in zip(rows, self.shaping(trajectory), strict=True)]

    def capped(self, trajectory: Trajectory) -> dict[str, float]:
        """What each component with a cap of its own lost to it in an episode, where it bit."""
        if not self.caps:
            return {}
        lost = dict.fromkeys(self.caps, 0.0)
        for turn, paid in zip(trajectory.turns, self._capped(trajectory), strict=True):
            raw = self._raw(turn, len(trajectory.turns))
            for name in (name for name in lost if name in raw):
                lost[name] += abs(raw[name]) - abs(paid[name])
        return {name: value for name, value in lost.items() if value > _ROUNDING}

    def totals(self, trajectory: Trajectory) -> list[float]:
        """Per turn: the sum of its components."""
        return [sum(row.values()) for row in self.weighted(trajectory)]

    def _capped(self, trajectory: Trajectory) -> list[dict[str, float]]:
        """Raw rows in which no component with a cap of its own moves an episode by more."""
        rows = [self._raw(turn, len(trajectory.turns)) for turn in trajectory.turns]
        for name, cap in self.caps.items():
            left = cap
            for row in (row for row in rows if name in row):
                paid = min(abs(row[name]), left)
                left -= paid
                row[name] = math.copysign(paid, row[name])
        return rows

    def _raw(self, turn: Turn, turns: int) -> dict[str, float]:
        unit = self.weights[SUCCESS]
        row = {n: w * float(turn.rewards.get(n, 0.0)) / unit for n, w in self.weights.items()}
        if self.reward_model_weight:
            score = turn.rewards.get(REWARD_MODEL)
            normal = 0.0 if score is None else self._normal(float(score))
            row[REWARD_MODEL] = self.reward_model_weight / unit * normal / turns
        return row

    def _normal(self, score: float) -> float:
        if self.score_std == 0:
            return 0.0
        return max(
            -self.score_clip, min(self.score_clip, (score - self.score_mean) / self.score_std)
        )
