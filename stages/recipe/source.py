"""Reads a recipe's YAML and the ``--set`` overrides into one plain mapping, and no more."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml

from stages.common.errors import UsageError

_MERGE = "tag:yaml.org,2002:merge"
"""The tag of the key ``<<``, which takes in another mapping's keys."""
_MOST_VALUES = 100_000
"""Values a recipe may hold with its aliases written out; real ones hold hundreds."""


class _Loader(yaml.SafeLoader):
    """YAML where ``1e-4`` is a number and where a key may stand once only."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """As in the base class, but a repeated key is an error instead of a silent loss."""
        own = [key for key, _ in node.value if key.tag != _MERGE]
        keys = [self.construct_object(key, deep=True) for key in own]
        for position, key in enumerate(keys):
            if key in keys[:position]:
                mark = own[position].start_mark
                raise yaml.MarkedYAMLError(
                    problem=f"the key '{key}' stands twice", problem_mark=mark
                )
        return super().construct_mapping(node, deep)


# PyYAML follows YAML 1.1, where a float needs a dot: it reads 1e-4 as text.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def read_recipe(path: Path) -> dict[str, Any]:
    """The mapping in a recipe file. Raises UsageError: missing, unreadable, malformed, empty."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist{_similar(path)}.") from None
    except UnicodeDecodeError as error:
        why = f"byte {error.object[error.start]:#04x} at place {error.start}"
        raise UsageError(f"{path} is no UTF-8 text ({why}); save it in that encoding.") from None
    except OSError as error:
        why = "it is a folder" if path.is_dir() else str(error.strerror)
        raise UsageError(f"{path} cannot be read as a recipe ({why}); give a YAML file.") from None
    content = parse_yaml(text, path)
    if content is None:
        raise UsageError(
            f"{path} is empty; a recipe needs at least name, model and environment "
            "(aac recipes show prints a whole one)."
        )
    if not isinstance(content, dict):
        raise UsageError(
            f"{path} holds {_shape(content)}, expected a mapping with keys like name, model and "
            "environment."
        )
    return content


def apply_overrides(content: dict[str, Any], overrides: Sequence[str]) -> list[tuple[str, ...]]:
    """Put each ``a.b=value`` into the mapping; the value is read as YAML. Returns their paths."""
    return [_override(content, text) for text in overrides]


def _override(content: dict[str, Any], text: str) -> tuple[str, ...]:
    name, equals, value = text.partition("=")
    path = tuple(part.strip() for part in name.split("."))
    if not equals or not all(path):
        raise UsageError(
            f"--set {text} is not understood; expected path=value, as in rl.ppo.epochs=4."
        )
    for depth, part in enumerate(path[:-1], start=1):
        if content.get(part) is None:
            content[part] = {}
        elif not isinstance(content[part], dict):
            given = ".".join(path[:depth])
            raise UsageError(
                f"--set {text}: {given} is a plain value and holds no keys of its own."
            )
        content = content[part]
    content[path[-1]] = parse_yaml(value, f"--set {text}")
    return path


def parse_yaml(text: str, source: Path | str) -> Any:
    """The value that ``text`` means. UsageError with ``source`` and line where it is no YAML."""
    try:
        value = yaml.load(text, Loader=_Loader)
        _require_tree(value)
        return value
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        why = error.problem or error.context
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        where, why = "", str(error).splitlines()[0]
    raise UsageError(
        f"{source}{where} is not valid YAML ({why}); check colons, quotes and indentation there."
    )


def _require_tree(value: Any) -> None:
    """ValueError where aliases make a value part of itself, or grow without end."""
    waiting: list[tuple[Any, tuple[int, ...]]] = [(value, ())]
    seen = 0
    while waiting:
        inner, above = waiting.pop()
        if not isinstance(inner, dict | list):
            continue
        if id(inner) in above:
            raise ValueError("an anchor stands for something that holds it")
        items = list(inner.values()) if isinstance(inner, dict) else inner
        seen += len(items)
        if seen > _MOST_VALUES:
            raise ValueError(f"its aliases stand for more than {_MOST_VALUES} values")
        waiting += [(item, (*above, id(inner))) for item in items]


def _similar(path: Path) -> str:
    """``; did you mean X`` when the folder (or recipes/) holds a recipe of a similar name."""
    from difflib import get_close_matches

    folders = dict.fromkeys([path.parent, Path("recipes")])
    found = {p.stem: p for folder in folders if folder.is_dir() for p in folder.glob("*.yaml")}
    close = get_close_matches(path.stem, found, n=1)
    return f"; did you mean {found[close[0]]}" if close else "; check the path"


def _shape(content: Any) -> str:
    return "a list" if isinstance(content, list) else f"only the value {content!r}"
