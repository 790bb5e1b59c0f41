"""Customer service with a policy, tools that change a database, and a customer (F5-F7)."""

from stages.interaction.environments.service.environment import ServiceEnvironment
from stages.interaction.environments.service.options import HabitOptions, ServiceOptions

__all__ = ["HabitOptions", "ServiceEnvironment", "ServiceOptions"]
