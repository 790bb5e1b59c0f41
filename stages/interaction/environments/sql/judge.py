"""Is an answer right? Fractions with tolerance, text folded, lists as multisets."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

RELATIVE_TOLERANCE = 1e-3
"""For numbers of which at least one has a fraction: people round those, never a year."""


def same(answer: Any, gold: Sequence[Any]) -> bool:
    """Whether an answer (string, number or list) equals the gold values, in any order.

    A string is read as a JSON list or a comma-separated list if the gold has several values.
    """
    if len(gold) == 1 and not isinstance(answer, list):
        return same_value(answer, gold[0])
    return _match(_items(answer), list(gold))


def near(a: Any, b: Any) -> bool:
    """Whether two values are the same, or numbers within the tolerance though whole.

    A question whose wrong answer lies that near is no good question.
    """
    x, y = _number(a), _number(b)
    if x is None or y is None:
        return same_value(a, b)
    return math.isclose(x, y, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-9) or same_value(a, b)


def same_value(a: Any, b: Any) -> bool:
    """Whether two values are the same fact: 12, "12", "12.0" are, and so are "Rome", " rome".

    Two whole numbers must be equal exactly; where one has a fraction, both may be rounded.
    """
    x, y = _number(a), _number(b)
    if isinstance(x, int) and isinstance(y, int):
        return x == y
    if x is not None and y is not None:
        close = math.isclose(x, y, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-9)
        return close or round(x, 2) == round(y, 2)
    if (x is None) != (y is None):
        return False
    return _fold(a) == _fold(b)


def _items(answer: Any) -> list[Any]:
    if isinstance(answer, list):
        return answer
    text = str(answer).strip()
    if text.startswith("["):
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = None
        if isinstance(parsed, list):
            return parsed
    separator = "\n" if "\n" in text else ","
    return [part.strip() for part in text.split(separator)] if text else []


def _match(given: list[Any], gold: list[Any]) -> bool:
    if len(given) != len(gold):
        return False
    rest = list(gold)
    for item in given:
        found = next((i for i, g in enumerate(rest) if same_value(item, g)), None)
        if found is None:
            return False
        del rest[found]
    return True


def _number(value: Any) -> int | float | None:
    """The number a value stands for, an int if it is whole; None if it is no finite number."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if not math.isfinite(number):
        return None
    try:
        return int(value) if isinstance(value, int | str) else _whole(number)
    except ValueError:
        return _whole(number)


def _whole(number: float) -> int | float:
    return int(number) if number.is_integer() else number


def _fold(value: Any) -> str:
    return " ".join(str("null" if value is None else value).casefold().split())
