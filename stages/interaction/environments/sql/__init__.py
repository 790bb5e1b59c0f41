"""A data analyst over a real SQLite database (F5, F7), asked once or in a chained session."""

from stages.interaction.environments.sql.environment import SqlEnvironment
from stages.interaction.environments.sql.options import ExpertOptions, SessionOptions, SqlOptions
from stages.interaction.environments.sql.session import SessionEnvironment

__all__ = ["ExpertOptions", "SessionEnvironment", "SessionOptions", "SqlEnvironment", "SqlOptions"]
