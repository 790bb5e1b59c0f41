"""From ``module:name`` in a recipe to the object it names, with errors in words."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from stages.common.errors import UsageError


def load_entry(entry: str, key: str) -> Any:
    """The object behind ``module:name``; ``key`` is where the recipe says so. UsageError if none.

    Modules in the working directory count, after installed ones.
    """
    module_name, _, path = entry.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # a person's module raises what it likes
        raise UsageError(
            f"environment.{key}: {module_name} cannot be imported "
            f"({type(error).__name__}: {error}); install its package, or run aac in the folder "
            "that holds it."
        ) from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise UsageError(
                f"environment.{key}: {module_name} has no {path}; expected module:name of "
                "something in it."
            )
        found = getattr(found, name)
    if not callable(found):
        raise UsageError(f"environment.{key}: {entry} is no class or function.")
    return found


def build(factory: Any, entry: str, key: str, **arguments: Any) -> Any:
    """``factory(**arguments)``; UsageError in words if it fails, as nothing can be played then."""
    try:
        return factory(**arguments)
    except Exception as error:
        raise UsageError(
            f"environment.{key}: {entry} cannot be made ({type(error).__name__}: {error}); "
            "check its arguments and what it needs."
        ) from error
