"""Worlds that people already have, behind our environment contract; nothing of theirs is imported
before one is made."""

from __future__ import annotations

from typing import Any

from stages.interaction.environments.adapters.gym import GymnasiumEnvironment
from stages.interaction.environments.adapters.mcp_tools import McpEnvironment
from stages.interaction.environments.adapters.openenv import OpenEnvironment
from stages.interaction.environments.adapters.options import (
    GymnasiumOptions,
    McpOptions,
    OpenEnvOptions,
    ProgramOptions,
    TrlOptions,
)
from stages.interaction.environments.adapters.program import ProgramEnvironment
from stages.interaction.environments.adapters.trl_class import TrlEnvironment

ADAPTERS: dict[str, tuple[Any, Any]] = {
    "trl": (TrlOptions, TrlEnvironment),
    "gymnasium": (GymnasiumOptions, GymnasiumEnvironment),
    "program": (ProgramOptions, ProgramEnvironment),
    "mcp": (McpOptions, McpEnvironment),
    "openenv": (OpenEnvOptions, OpenEnvironment),
}
"""Name to (options, environment); each name is also the key that a recipe gives."""


def with_name(section: Any) -> Any:
    """``{trl: ...}`` with the ``name`` it does without; anything else as it is."""
    if not isinstance(section, dict) or "name" in section:
        return section
    given = [name for name in ADAPTERS if name in section]
    return {"name": given[0], **section} if len(given) == 1 else section


__all__ = [
    "ADAPTERS",
    "GymnasiumOptions",
    "McpOptions",
    "OpenEnvOptions",
    "ProgramOptions",
    "TrlOptions",
    "with_name",
]
