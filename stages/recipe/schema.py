"""Walks the recipe's models: which keys exist, what a key allows, what its one line says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Known:
    """One known key of a recipe: its path, its field, and the value it has in a given recipe."""

    path: tuple[str, ...]
    field: FieldInfo
    value: Any

    @property
    def dotted(self) -> str:
        """``rl.ppo.clip_range``."""
        return ".".join(self.path)


def walk(model: type[BaseModel], values: Any, path: tuple[str, ...] = ()) -> Iterator[Known]:
    """Every known key below ``model``, sections before their keys.

    ``values`` (a mapping or an instance) decides which member of a union of sections is meant:
    the one whose ``name`` it has, else the first.
    """
    for key, field in model.model_fields.items():
        value = _get(values, key)
        yield Known((*path, key), field, value)
        section = section_of(field.annotation, value)
        if section is not None:
            yield from walk(section, value, (*path, key))


def section_of(annotation: Any, value: Any = None) -> type[BaseModel] | None:
    """The model behind an annotation, or None when it is a plain value."""
    models = [t for t in _members(annotation) if isinstance(t, type) and issubclass(t, BaseModel)]
    if len(models) > 1:
        name = _get(value, "name")
        models = [m for m in models if name in _names(m)] or models
    return models[0] if models else None


def field_at(model: type[BaseModel], path: KeyPath, values: Any) -> FieldInfo | None:
    """The field that a path leads to or into (``model.frozen.0`` gives ``model.frozen``)."""
    current: type[BaseModel] | None = model
    field = None
    for part in path:
        if current is None or part not in current.model_fields:
            break
        field = current.model_fields[str(part)]
        values = _get(values, str(part))
        current = section_of(field.annotation, values)
    return field


def clean_path(model: type[BaseModel], location: KeyPath, values: Any) -> KeyPath:
    """Pydantic's location without the names of union members, which no person ever typed."""
    path: list[str | int] = []
    current: type[BaseModel] | None = model
    tags: list[str] = []
    for part in location:
        if part in tags:
            tags = []
            continue
        path.append(part)
        field = current.model_fields.get(str(part)) if current else None
        values = _get(values, str(part))
        current = section_of(field.annotation, values) if field else None
        tags = member_names(field) if field else []
    return tuple(path)


def allowed(field: FieldInfo) -> str:
    """What a field allows, in words: ``a number above 0 and at most 1``."""
    kinds = [_kind(member) for member in _members(field.annotation) if member is not NoneType]
    if several := member_names(field):  # all their keys would fill a screen
        kinds = [f"a section whose name is one of {', '.join(several)}"]
    text = " or ".join(dict.fromkeys(kinds)) + _range(field.metadata)
    return text + (" or null" if NoneType in _members(field.annotation) else "")


def choices(field: FieldInfo) -> list[str]:
    """The words a field may be, or nothing when it is no choice."""
    return [
        str(choice)
        for member in _members(field.annotation)
        for kind in (member, *get_args(member))  # also of a list's items
        if get_origin(kind) is Literal
        for choice in get_args(kind)
    ]


def member_names(field: FieldInfo) -> list[str]:
    """The ``name`` of each section a field may hold, when it may hold several."""
    members = [m for m in _members(field.annotation) if isinstance(m, type)]
    sections = [m for m in members if issubclass(m, BaseModel)]
    return [name for m in sections for name in _names(m)] if len(sections) > 1 else []


def is_path(field: FieldInfo) -> bool:
    """Whether the field names a file or folder that must exist."""
    return Path in _members(field.annotation)


def is_number(field: FieldInfo) -> bool:
    """Whether the field is a number and not a switch."""
    members = _members(field.annotation)
    return bool({int, float, ByteSize} & set(members)) and bool not in members


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(map(str, get_args(annotation)))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a section with the keys " + ", ".join(annotation.model_fields)
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    names |= {ByteSize: "a size in bytes, or in words such as 512 MiB,"}
    names |= {Path: "a path", tuple: "a list", list: "a list", dict: "a mapping"}
    origin = get_origin(annotation) or annotation
    if origin is tuple and (parts := get_args(annotation)):
        return _list_of(parts)
    return names.get(origin, str(getattr(origin, "__name__", origin)))


def _list_of(parts: tuple[Any, ...]) -> str:
    item = " or ".join(_kind(t) for t in _members(parts[0]))
    count = "" if Ellipsis in parts else f"{len(parts)} values, each "
    return f"a list of {count}{item}"


def _range(metadata: list[Any]) -> str:
    """Bounds in words, with a leading blank; '' without bounds."""
    words = []
    for bound in metadata:
        match bound:
            case annotated_types.Gt(gt=low):
                words.append(f"above {_plain(low)}")
            case annotated_types.Ge(ge=low):
                words.append(f"of at least {_plain(low)}")
            case annotated_types.Lt(lt=high):
                words.append(f"below {_plain(high)}")
            case annotated_types.Le(le=high):
                words.append(f"of at most {_plain(high)}")
            case _ if getattr(bound, "pattern", None):
                words.append(f"that matches {bound.pattern}")
    return " " + " and ".join(words) if words else ""


def _plain(bound: Any) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def _members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, through Annotated; a plain annotation is its only member."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(m for part in get_args(annotation) for m in _members(part))
    return (annotation,)


def _names(model: type[BaseModel]) -> list[str]:
    field = model.model_fields.get("name")
    return choices(field) if field else []


def _get(values: Any, key: str) -> Any:
    if isinstance(values, Mapping):
        return values.get(key)
    return getattr(values, key, None)
