"""Turns a failed validation into one sentence: file, path, value, what is allowed, nearest key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

from stages.recipe.schema import (
    KeyPath,
    allowed,
    choices,
    clean_path,
    field_at,
    member_names,
    section_of,
    walk,
)

_MOST_SHOWN = 60


def sentence(
    error: ValidationError,
    *,
    model: type[BaseModel],
    content: Mapping[str, Any],
    file: str,
    overrides: Sequence[str] = (),
) -> str:
    """The first problem of ``error`` in one sentence, and how many more there are."""
    problems = error.errors(include_url=False)
    # An unknown key explains a missing one (a typing error makes both), so it comes first.
    problems.sort(key=lambda problem: problem["type"] != "extra_forbidden")
    first = problems[0]
    path = clean_path(model, first["loc"], content)
    more = len(problems) - 1
    tail = f" ({more} more {'problem' if more == 1 else 'problems'})" if more else ""
    return f"{_source(file, path, overrides)}: {_problem(first, path, model, content)}{tail}."


def nearest(word: str, known: Sequence[str]) -> str:
    """``; did you mean X?`` without the mark, or '' when nothing is near."""
    close = get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}" if close else ""


def _problem(problem: Any, path: KeyPath, model: type[BaseModel], content: Any) -> str:
    dotted = ".".join(map(str, path))
    field = field_at(model, path, content)
    kind = problem["type"]
    if kind == "extra_forbidden":
        return f"{dotted} is no known key{_nearest_key(path, model, content)}"
    if kind == "missing":
        expected = allowed(field) if field else "a value"
        return f"{dotted} is missing; expected {expected}"
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        return _union(problem, dotted, member_names(field) if field else [])
    if not path:  # a rule between sections, which names the keys itself
        return str(problem["ctx"]["error"]).rstrip(".")
    given = f"{dotted} = {show(problem['input'])}"
    if kind in ("value_error", "assertion_error") or field is None:
        reason = problem.get("ctx", {}).get("error", problem["msg"])
        told = str(reason).rstrip(".")
        if told.startswith(f"{dotted}."):  # a rule within the section, which names the keys itself
            return told
        return f"{dotted} is not allowed: {told}"
    return f"{given} is not allowed; expected {allowed(field)}" + nearest(
        str(problem["input"]), choices(field)
    )


def _nearest_key(path: KeyPath, model: type[BaseModel], content: Any) -> str:
    """The nearest key of the same section, else of the whole recipe, else the section's keys."""
    field = field_at(model, path[:-1], content)
    section = section_of(field.annotation, _at(content, path[:-1])) if field else model
    prefix = "".join(f"{part}." for part in path[:-1])
    siblings = list(section.model_fields) if section else []
    close = get_close_matches(str(path[-1]), siblings, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {prefix}{close[0]}"
    elsewhere = [k.dotted for k in walk(model, content) if k.path[-1] == path[-1]]
    if elsewhere:
        return f"; did you mean {elsewhere[0]}"
    where = f"known keys of {prefix[:-1]}" if prefix else "known keys"
    return f"; {where}: {', '.join(siblings)}"


def _union(problem: Any, dotted: str, known: list[str]) -> str:
    """A section of which there are several kinds, told apart by a key that is wrong or missing."""
    key = f"{dotted}.{problem['ctx']['discriminator'].strip(chr(39))}"
    expected = f"expected one of {', '.join(known)}"
    if problem["type"] == "union_tag_not_found":
        return f"{key} is missing; {expected}"
    given = problem["ctx"]["tag"]
    return f"{key} = {show(given)} is not known; {expected}{nearest(given, known)}"


def _source(file: str, path: KeyPath, overrides: Sequence[str]) -> str:
    """The file, or the override that brought the value in."""
    dotted = ".".join(map(str, path)) + "."
    for text in reversed(overrides):
        name = text.partition("=")[0].strip() + "."
        if dotted.startswith(name) or name.startswith(dotted):
            return f"{file} with --set {text}"
    return file


def show(value: Any) -> str:
    """A given value as a person would write it, cut when long."""
    words = {None: "null", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 1] + "…"


def _at(content: Any, path: KeyPath) -> Any:
    for part in path:
        content = content.get(part) if isinstance(content, Mapping) else None
    return content
