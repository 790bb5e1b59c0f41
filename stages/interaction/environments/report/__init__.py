"""Questions about a folder of reports (F7): each needs several documents."""

from stages.interaction.environments.report.environment import ReportEnvironment
from stages.interaction.environments.report.options import ReaderOptions, ReportOptions

__all__ = ["ReaderOptions", "ReportEnvironment", "ReportOptions"]
