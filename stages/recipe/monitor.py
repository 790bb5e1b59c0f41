"""What a run does when it looks sick: one field per alarm of ``stages.rl.monitor``."""

from __future__ import annotations

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
    repetition: Action = "warn"
    """More and more episodes loop, or more and more calls are repeated."""
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
    non_finite: Action = "warn"
    """A figure is not finite; a gradient that is not ends the run before it is written."""
    max_rollbacks: int = Field(3, ge=0)
    """Roll-backs of a run; where one more is called for, it stops."""

    def uses(self, *actions: Action) -> list[str]:
        """The alarms with one of these actions."""
        return [name for name, action in self if action in actions]
