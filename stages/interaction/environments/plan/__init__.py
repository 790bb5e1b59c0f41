"""Planning a project (F7): steps with dependencies, durations and workers, checked by rules."""

from stages.interaction.environments.plan.environment import PlanEnvironment
from stages.interaction.environments.plan.options import PlannerOptions, PlanOptions

__all__ = ["PlanEnvironment", "PlanOptions", "PlannerOptions"]
