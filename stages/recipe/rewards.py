"""The reward's part of a recipe: components, weights, caps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from stages.interaction.rewards.functions import MORE_FUNCTIONS
from stages.interaction.rewards.mix import DEFAULT_WEIGHTS, REWARD_MODEL, SUCCESS
from stages.interaction.rewards.shaping import SHAPING
from stages.recipe.messages import nearest
from stages.recipe.section import Section

FUNCTION_CAP = 0.1
"""Share of success that a person's own reward function may move an episode by."""
_ENTRY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class OffTopicSection(Section):
    """When a reply counts as off topic."""

    classifier: Path | None = None
    """Folder of a text classifier of (goal and observations, reply); none: hashed word pieces."""
    label: str = "relevant"
    """The classifier's label for a reply that is on topic."""
    threshold: float = Field(0.05, ge=0, le=1)
    """A relevance (probability or cosine) below this is off topic."""


class ShapingSection(Section):
    """Potential-based shaping: γΦ(s') − Φ(s) on every turn, Φ = 0 where the task has ended. What is
    best stays best; it is only sooner seen."""

    potential: Literal["checklist"] = "checklist"
    """Φ. checklist: the solved share of the environment's checklist, as the actor may see it."""
    weight: float = Field(0.5, gt=0, le=1)
    """Φ of a wholly solved checklist, as a share of success."""


class AuditedSection(Section):
    """Which actions are fined since a person marked them as bad."""

    verdicts: Path
    """The file audit/verdicts.json of an earlier run, as aac audit writes it."""
    similarity: float = Field(0.95, gt=0, le=1)
    """An action whose words are as similar as this to a marked one (a cosine) is fined, too."""


class RewardsSection(Section):
    """How raw components become one reward per turn. In units of the success reward."""

    functions: dict[str, str] = {}
    """More components of every turn: name to empty, babble, length, or your own module:function."""
    off_topic: OffTopicSection | None = None
    """Penalise replies that have nothing to do with the goal or with what was observed."""
    shaping: ShapingSection | None = None
    """Potential-based shaping, a component of its own beside weights and caps; {} takes the
    defaults."""
    audited: AuditedSection | None = None
    """Penalise actions like those that a person marked as bad in aac audit."""
    weights: dict[str, float] = {}
    """Overrides of the default proportions (success 10, sub_goal 1, right_tool 0.5, ...)."""
    dense_cap: float = Field(0.5, ge=0, lt=1)
    """All dense rewards of an episode together stay below this share of success."""
    reward_model: float = Field(0.5, ge=0)
    """Weight of the reward model's mean score, in the units of ``weights``; 0: not used."""
    episode_caps: dict[str, float] = {}
    """Most a component may pay or take per episode, as a share of success; 0.1 for functions of
    yours."""
    score_clip: float = Field(2.0, gt=0)
    """Reward-model scores are cut at this many standard deviations of the SFT actor's."""

    @field_validator("functions")
    @classmethod
    def _entries(cls, functions: dict[str, str]) -> dict[str, str]:
        for name, entry in functions.items():
            if name in {*DEFAULT_WEIGHTS, REWARD_MODEL, SHAPING} and entry != name:
                raise ValueError(f"{name} is a component of its own; call yours something else")
            if entry not in MORE_FUNCTIONS and not _ENTRY.fullmatch(entry):
                known = ", ".join(MORE_FUNCTIONS)
                raise ValueError(f"{name} = {entry}, expected module:function or one of {known}")
        return functions

    @field_validator("weights", "episode_caps")
    @classmethod
    def _known_components(cls, given: dict[str, float], info: ValidationInfo) -> dict[str, float]:
        known = {**DEFAULT_WEIGHTS, **info.data.get("functions", {})}
        for name, value in given.items():
            if name not in known:
                near = nearest(name, list(known))
                raise ValueError(f"{name} = {value:g}, expected one of {', '.join(known)}{near}")
            if info.field_name == "episode_caps" and value < 0:
                raise ValueError(f"{name} = {value:g}, expected a number of at least 0")
            if info.field_name == "weights" and name == SUCCESS and value <= 0:
                raise ValueError(f"{name} = {value:g}, expected a number above 0")
        return given

    @model_validator(mode="after")
    def _weighed(self) -> RewardsSection:
        bare = [n for n in self.functions if n not in {**DEFAULT_WEIGHTS, **self.weights}]
        if bare:
            raise ValueError(f"{', '.join(bare)} has no weight; give rl.rewards.weights.{bare[0]}")
        return self

    @property
    def caps(self) -> dict[str, float]:
        """Most a component may move an episode, where it has a limit of its own."""
        own = [name for name, entry in self.functions.items() if entry not in MORE_FUNCTIONS]
        return {**dict.fromkeys(own, FUNCTION_CAP), **self.episode_caps}
