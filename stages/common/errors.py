"""What can go wrong, by who can mend it.

``UsageError``: the person can (a recipe, a file, a flag). One sentence, exit code 2.
``RunError``: the run failed on its own. Exit code 1.
An error of the *agent* is neither: it is an observation.
"""


class AacError(Exception):
    """Base of every error whose message is meant for people; shown without a stack trace."""

    exit_code = 1


class UsageError(AacError):
    """What was given, what was expected and what to change, in one sentence. Exit code 2."""

    exit_code = 2


class HandoffError(UsageError):
    """A parent checkpoint is missing, altered or does not fit this stage."""


class RunError(AacError):
    """The run itself failed (non-finite loss, every episode dropped, ...). Exit code 1."""
