"""The worlds an agent can act in: options by name, and how to make one of each."""

from __future__ import annotations

from stages.common.errors import UsageError
from stages.interaction.environments.base import Environment
from stages.interaction.environments.sql import SqlEnvironment, SqlOptions

EnvironmentOptions = SqlOptions
"""What the ``environment`` section of a recipe may be."""

ENVIRONMENTS = {"sql": (SqlOptions, SqlEnvironment)}
"""Name to (options, environment)."""


def make_environment(options: EnvironmentOptions) -> Environment:
    """A new instance for these options. Raises ``UsageError`` on an unknown name or bad files."""
    if options.name not in ENVIRONMENTS:
        raise UsageError(
            f"unknown environment {options.name!r}; expected one of {', '.join(ENVIRONMENTS)}"
        )
    return ENVIRONMENTS[options.name][1](options)


__all__ = ["ENVIRONMENTS", "EnvironmentOptions", "make_environment"]
