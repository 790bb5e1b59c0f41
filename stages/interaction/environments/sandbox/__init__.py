"""Programs of an agent, run where they can do no harm."""

from stages.interaction.environments.sandbox.sandbox import Limits, Outcome, Sandbox

__all__ = ["Limits", "Outcome", "Sandbox"]
