"""A resolved recipe as YAML that can be run again, each key with its one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from stages.recipe.models import Recipe
from stages.recipe.schema import section_of, walk

_COLUMN = 44


def describe(recipe: Recipe, *, comments: bool = True) -> str:
    """The recipe with all defaults filled in, as YAML; ``comments`` adds each key's one line."""
    content = recipe.model_dump(mode="json")
    if not comments:
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    return "\n".join(_lines(recipe, content)) + "\n"


def _lines(recipe: Recipe, content: Mapping[str, Any]) -> Iterator[str]:
    absent: set[tuple[str, ...]] = set()
    for known in walk(Recipe, recipe):
        if known.path[:-1] in absent:
            continue
        indent = "  " * (len(known.path) - 1)
        comment = " ".join((known.field.description or "").split())
        is_section = section_of(known.field.annotation, known.value) is not None
        if is_section and known.value is None:
            absent.add(known.path)
        bare = is_section and known.path not in absent
        value = "" if bare else " " + _flow(_at(content, known.path))
        line = f"{indent}{known.path[-1]}:{value}"
        yield f"{line:<{_COLUMN}}  # {comment}" if comment else line


def _flow(value: Any) -> str:
    """A value on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("...").strip()


def _at(content: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        content = None if content is None else content[part]
    return content
