"""A data analyst over a real SQLite database (F5, F7)."""

from stages.interaction.environments.sql.environment import SqlEnvironment
from stages.interaction.environments.sql.options import ExpertOptions, SqlOptions

__all__ = ["ExpertOptions", "SqlEnvironment", "SqlOptions"]
