"""From a YAML file and a person's overrides to a validated, frozen ``Recipe``; no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stages.common.errors import UsageError
from stages.interaction.environments import with_name
from stages.recipe.messages import sentence, show
from stages.recipe.models import Recipe
from stages.recipe.schema import Known, allowed, is_number, is_path, walk
from stages.recipe.source import apply_overrides, read_recipe

MODELS = "models"
"""Folder of models that ``make models`` takes from elsewhere than the hub."""
_HUB_ID = re.compile(r"[\w-][\w.-]*/\w[\w.-]*")
# Text that may name a folder, a hub id, or one of a few words with a meaning of their own.
_FOLDER_OR_WORD = {
    ("model", "actor"): (),
    ("reward", "base"): ("sft", "actor"),
    ("state", "summary", "writer"): ("rules", "actor"),
    ("state", "facts", "model"): (),
    ("state", "memory", "embedder"): ("hashing",),
    ("rl", "critic", "trunk"): ("light", "scratch", "reward-model", "shared"),
    ("rl", "offline", "pool"): ("sft",),
}


def load_recipe(
    path: Path,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    *,
    check_files: bool = True,
) -> Recipe:
    """Read, override and validate a recipe. Raises UsageError with one sentence.

    Relative paths written in the file mean the file's own folder if they exist there, else the
    working directory; paths in overrides mean the working directory. A hub id whose last part is
    a folder under models/ (``make models`` puts them there) means that folder. ``check_files``:
    data files and folders it names must exist.
    """
    path = Path(path)
    content = read_recipe(path)
    overridden = apply_overrides(content, overrides)
    if seed is not None:
        content["seed"] = seed
    if "environment" in content:
        content["environment"] = with_name(content["environment"])
    _refuse_switches_as_numbers(content, path)
    content = _resolve_paths(content, path.parent, overridden)
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        raise UsageError(
            sentence(error, model=Recipe, content=content, file=str(path), overrides=overrides)
        ) from None
    if check_files:
        _require_files(recipe, path)
    return recipe


def _refuse_switches_as_numbers(content: Mapping[str, Any], path: Path) -> None:
    """``steps: true`` would pass as 1, since Python's bool is an int."""
    for known in walk(Recipe, content):
        if isinstance(known.value, bool) and is_number(known.field):
            raise UsageError(
                f"{path}: {known.dotted} = {show(known.value)} is not allowed; "
                f"expected {allowed(known.field)}."
            )


def _resolve_paths(
    content: Mapping[str, Any], folder: Path, overridden: Sequence[tuple[str, ...]]
) -> dict[str, Any]:
    """A copy in which paths that exist beside the recipe point there."""
    replaced = dict(content)
    for known in walk(Recipe, content):
        beside = None if known.path in overridden else _beside(known, folder)
        place = beside or _kept_here(known, folder)
        if place is not None:
            replaced = _replace(replaced, known.path, str(place))
    return replaced


def _beside(known: Known, folder: Path) -> Path | None:
    """The path beside the recipe that a value means, or None when it is to stay as it is."""
    if (
        not known.value
        or not isinstance(known.value, str)
        or not (_names_model(known) or is_path(known.field))
    ):
        return None
    given = Path(known.value).expanduser()
    beside = given if given.is_absolute() else folder / given
    return beside if _exists(beside) else None


def _names_model(known: Known) -> bool:
    return known.path in _FOLDER_OR_WORD and known.value not in _FOLDER_OR_WORD[known.path]


def _kept_here(known: Known, folder: Path) -> Path | None:
    """The folder under models/, of the recipe's project or here, that a hub id means."""
    if not isinstance(known.value, str) or not _names_model(known):
        return None
    if not _HUB_ID.fullmatch(known.value) or _exists(Path(known.value)):
        return None
    name = known.value.partition("/")[2]
    places = (root / MODELS / name for root in (folder.resolve().parent, Path()))
    return next((place for place in places if _exists(place / "config.json")), None)


def _exists(path: Path) -> bool:
    """A name too long for the file system, or one that may not be looked at, names nothing."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _replace(content: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    head, *rest = path
    inner = _replace(content[head], tuple(rest), value) if rest else value
    return {**content, head: inner}


def _require_files(recipe: Recipe, path: Path) -> None:
    for known in walk(Recipe, recipe):
        if isinstance(known.value, Path) and is_path(known.field) and not _exists(known.value):
            raise UsageError(
                f"{path}: {known.dotted} = {show(str(known.value))} does not exist, neither beside "
                f"the recipe nor in {Path.cwd()}; correct the path."
            )
