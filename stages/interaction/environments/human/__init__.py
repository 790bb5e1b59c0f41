"""The person at the terminal talks to the agent (F8)."""

from stages.interaction.environments.human.environment import HumanEnvironment
from stages.interaction.environments.human.options import HumanOptions

__all__ = ["HumanEnvironment", "HumanOptions"]
