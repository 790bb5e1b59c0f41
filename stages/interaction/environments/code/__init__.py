"""Debugging small programs (F7): visible tests that a quick patch passes, hidden ones it fails."""

from stages.interaction.environments.code.environment import CodeEnvironment
from stages.interaction.environments.code.options import CodeOptions, DebuggerOptions

__all__ = ["CodeEnvironment", "CodeOptions", "DebuggerOptions"]
