"""The worlds an agent can act in: options by name, and how to make one of each."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from stages.common.errors import UsageError
from stages.interaction.environments.adapters import (
    ADAPTERS,
    GymnasiumOptions,
    McpOptions,
    OpenEnvOptions,
    ProgramOptions,
    TrlOptions,
    with_name,
)
from stages.interaction.environments.base import Environment
from stages.interaction.environments.code import CodeEnvironment, CodeOptions
from stages.interaction.environments.human import HumanEnvironment, HumanOptions
from stages.interaction.environments.plan import PlanEnvironment, PlanOptions
from stages.interaction.environments.remote import RemoteEnvironment
from stages.interaction.environments.report import ReportEnvironment, ReportOptions
from stages.interaction.environments.service import ServiceEnvironment, ServiceOptions
from stages.interaction.environments.sql import (
    SessionEnvironment,
    SessionOptions,
    SqlEnvironment,
    SqlOptions,
)

AnyOptions = (
    SqlOptions
    | SessionOptions
    | ServiceOptions
    | CodeOptions
    | ReportOptions
    | PlanOptions
    | HumanOptions
    | TrlOptions
    | GymnasiumOptions
    | ProgramOptions
    | McpOptions
    | OpenEnvOptions
)
EnvironmentOptions = Annotated[AnyOptions, Field(discriminator="name")]
"""What the ``environment`` section of a recipe may be, told apart by ``name``."""

ENVIRONMENTS: dict[str, tuple[Any, Any]] = {
    "sql": (SqlOptions, SqlEnvironment),
    "sql-session": (SessionOptions, SessionEnvironment),
    "service": (ServiceOptions, ServiceEnvironment),
    "code": (CodeOptions, CodeEnvironment),
    "report": (ReportOptions, ReportEnvironment),
    "plan": (PlanOptions, PlanEnvironment),
    "human": (HumanOptions, HumanEnvironment),
    **ADAPTERS,
}
"""Name to (options, environment)."""


def make_environment(options: Any) -> Environment:
    """A new instance for these options. Raises ``UsageError`` on an unknown name or bad files."""
    if options.name not in ENVIRONMENTS:
        raise UsageError(
            f"unknown environment {options.name!r}; expected one of {', '.join(ENVIRONMENTS)}"
        )
    environment: Environment = ENVIRONMENTS[options.name][1](options)
    if getattr(options, "workers", 0) and getattr(options, "isolation", "") == "process":
        return RemoteEnvironment(options, environment)
    return environment


def needs_person(options: object) -> bool:
    """Whether somebody must sit at the terminal while these options are played."""
    return bool(getattr(options, "needs_person", False))


__all__ = [
    "ADAPTERS",
    "ENVIRONMENTS",
    "EnvironmentOptions",
    "make_environment",
    "needs_person",
    "with_name",
]
