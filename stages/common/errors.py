"""What can go wrong, by who can mend it.

``UsageError``: the person can (a recipe, a file, a flag). One sentence, exit code 2.
``RunError``: the run failed on its own. Exit code 1.
An error of the *agent* is neither: it is an observation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


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


def kind_of(value: Any) -> str:
    """What a value read from a file is, in words for a message: ``a number``, ``text``, ..."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return "text"
    if isinstance(value, int | float):
        return "a number"
    kinds = {Mapping: "an object", Sequence: "a list"}
    return next((word for kind, word in kinds.items() if isinstance(value, kind)), "no JSON")
