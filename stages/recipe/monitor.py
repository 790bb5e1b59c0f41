"""What a run watches itself by: one field per alarm of ``stages.rl.monitor``, and clean data."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from stages.recipe.section import Section

Action = Literal["warn", "lower_rate", "raise_kl", "roll_back", "stop"]


class MonitorSection(Section):
    """Action on each alarm. warn: a line and no more; lower_rate: half the actor's rate; raise_kl:
    twice the KL coefficient; roll_back: the best actor so far, at half the rate; stop: the run ends
    with the best actor so far. All of them warn, too."""

    kl_surge: Action = "warn"
    """The actor leaps away from its reference."""
    reward_collapse: Action = "warn"
    """The reward leapt and has fallen again."""
    reward_hacking: Action = "warn"
    """Training reward rises while held-out success falls."""
    entropy_collapse: Action = "warn"
    """The actor always says the same without success."""
    template_collapse: Action = "warn"
    """The actor says the same whatever its task is, without success."""
    repetition: Action = "warn"
    """More and more episodes loop, more calls are repeated, or replies repeat their own words."""
    explained_variance: Action = "warn"
    """The critic is worse than a constant for long."""
    clip_fraction: Action = "warn"
    """Updates run far past the clip range."""
    invalid_actions: Action = "warn"
    """More and more actions cannot be carried out."""
    out_of_budget: Action = "warn"
    """More and more episodes run into a limit."""
    drops: Action = "warn"
    """More and more episodes are lost to faults of the machinery."""
    gradient_spike: Action = "warn"
    """The actor's gradient is many times its usual size."""
    forgetting: Action = "warn"
    """The clean check (rl.forgetting) finds that it lost what stage 1 taught."""
    non_finite: Action = "warn"
    """A figure is not finite; a gradient that is not ends the run before it is written."""
    max_rollbacks: int = Field(3, ge=0)
    """Roll-backs of a run; where one more is called for, it stops."""

    def uses(self, *actions: Action) -> list[str]:
        """The alarms with one of these actions."""
        return [name for name, action in self if action in actions]


class ForgettingSection(Section):
    """The check on clean data apart from the task, which comes with evaluations."""

    every: int = Field(1, ge=0)
    """Evaluations from one check to the next; 0: never."""
    data: Path | None = None
    """Clean dialogues in any shape that stage 1 reads; none: those that stage 1 held out."""
    dialogues: int = Field(32, ge=1)
    """How many of them."""
    max_perplexity: float = Field(2.0, gt=1)
    """Most their perplexity may be, as a multiple of the SFT actor's: above it an actor is never
    kept as the best, and the alarm forgetting is raised."""
