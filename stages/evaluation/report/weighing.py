"""What each turn was paid, from the raw components that lie in a run's folder and its recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stages.common.run_folder import MANIFEST
from stages.evaluation.report.runs import Run, optional
from stages.interaction.rewards.mix import RewardMix
from stages.interaction.rewards.shaping import Shaping
from stages.interaction.trajectory import Trajectory
from stages.recipe.models import RlSection

BONUS = "discriminator"
"""Name under which a discriminative critic's bonus lies in ``Turn.info``, and of its component."""
Paid = list[dict[str, float]]
"""Per turn: component -> reward in units of success; those that paid nothing are left out."""


class Payer:
    """Weighs the components of a run's episodes as its training did."""

    def __init__(self, run: Run) -> None:
        self._section = _section(run.recipe)
        self._score = _score(run, self._section) if self._section else None
        self._mix = _mix(self._section, self._score) if self._section else None
        self._kl = {row["step"]: row.get("actor/kl_coef") or 0.0 for row in run.rows}

    @property
    def note(self) -> str:
        """What a reader has to know of the figures; "" for nothing."""
        if self._section is None:
            return "Rewards are raw components, as this run's recipe is not known."
        if self._section.rewards.reward_model and self._score is None:
            return (
                "Rewards are without the reward model's share, as its folder is not where it was."
            )
        return ""

    def __call__(self, episode: Trajectory, iteration: int) -> Paid:
        """What the turns of an episode of this iteration (from 1) were paid."""
        if self._mix is None or self._section is None:
            rows = [dict(turn.rewards) for turn in episode.turns]
        else:
            rows = self._mix.weighted(episode)
        for row, turn in zip(rows, episode.turns, strict=True):
            row[BONUS] = float(turn.info.get(BONUS, 0.0))
            if self._section is not None and self._section.ppo.kl_loss == "in_reward":
                drift = float(turn.info.get("kl_to_reference", 0.0))
                row["kl"] = -self._kl.get(iteration, 0.0) * drift
        return [{name: float(v) for name, v in row.items() if v} for row in rows]


def _section(recipe: Mapping[str, Any]) -> RlSection | None:
    """None where there is none, or another version of this project wrote it."""
    try:
        return RlSection.model_validate(recipe["rl"])
    except (KeyError, ValidationError):
        return None


def _score(run: Run, section: RlSection) -> Mapping[str, float] | None:
    """Mean and spread of the reward model's scores, by the manifest of the very one that scored."""
    if not section.rewards.reward_model:
        return None
    parent = run.manifest.get("parents", {}).get("reward", {})
    for folder in (Path(parent.get("path", "")), run.path.parent / "reward"):
        made = optional(folder / MANIFEST)
        same = made.get("content_hash") == parent.get("hash") or not run.manifest
        if made.get("score") and same:
            return dict(made["score"])
    return None


def _mix(section: RlSection, score: Mapping[str, float] | None) -> RewardMix:
    rewards, shaping = section.rewards, None
    if (by := rewards.shaping) is not None:
        shaping = Shaping(by.potential, by.weight, section.ppo.discount)
    return RewardMix(
        weights=rewards.weights,
        dense_cap=rewards.dense_cap,
        caps=rewards.caps,
        reward_model_weight=rewards.reward_model if score else 0.0,
        score_clip=rewards.score_clip,
        score_mean=score["mean"] if score else 0.0,
        score_std=score["std"] if score else 1.0,
        shaping=shaping,
    )
