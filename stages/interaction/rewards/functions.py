"""Reward functions of a turn that hold in every environment: raw indicators, weighed by ``mix``.

Some are always there; others, and a person's own, a recipe adds by name and entry.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence

from stages.common.errors import UsageError
from stages.interaction.trajectory import Turn

RewardFunction = Callable[[Turn, Sequence[Turn]], float]
"""(the finished turn, the turns before it) -> raw component; 0 is left out of the record."""

_WORD = re.compile(r"\w+")
_RUN, _LONG = 4, 40


def malformed(turn: Turn, earlier: Sequence[Turn]) -> float:
    """1 for an empty reply, a call that does not parse, or one its environment calls malformed.

    Plain talk parses; an environment where every reply must hold a call says ``malformed`` in
    the step's ``info``.
    """
    action = turn.action
    bad = action.error is not None or not action.text.strip() or turn.info.get("malformed")
    return float(bool(bad))


def repeated(turn: Turn, earlier: Sequence[Turn]) -> float:
    """1 if a call was already made earlier in the episode (or, without calls, the same text)."""
    now = said(turn)
    return float(any(now & said(past) for past in earlier))


def said(turn: Turn) -> frozenset[str]:
    """What a turn did, in comparable form: its calls' keys, or the words of a plain reply."""
    if turn.action.calls:
        return frozenset(call.key() for call in turn.action.calls)
    text = " ".join(turn.action.text.split())
    return frozenset([text] if text else [])


def empty(turn: Turn, earlier: Sequence[Turn]) -> float:
    """1 for a reply without a single letter or digit."""
    return float(not _WORD.search(turn.action.text))


def babble(turn: Turn, earlier: Sequence[Turn]) -> float:
    """Share of a reply's runs of four words that it has said before; 0 below eight words."""
    words = _WORD.findall(turn.action.text.lower())
    if len(words) < 2 * _RUN:
        return 0.0
    runs = [tuple(words[i : i + _RUN]) for i in range(len(words) - _RUN + 1)]
    return 1.0 - len(set(runs)) / len(runs)


def length(turn: Turn, earlier: Sequence[Turn]) -> float:
    """Words of a reply, as a share of forty; at most 1."""
    return min(len(_WORD.findall(turn.action.text)) / _LONG, 1.0)


REWARD_FUNCTIONS: Mapping[str, RewardFunction] = {"format": malformed, "repeated": repeated}
"""Always there, by the component's name in ``Turn.rewards``."""

MORE_FUNCTIONS: Mapping[str, RewardFunction] = {
    "empty": empty,
    "babble": babble,
    "length": length,
}
"""What ``rl.rewards.functions`` can name without a module."""


def reward_functions(entries: Mapping[str, str]) -> dict[str, RewardFunction]:
    """The functions that are always there, and those of ``entries``: component -> where it is.

    An entry is a name of ``MORE_FUNCTIONS`` or ``module:function``. UsageError in one sentence.
    """
    return {**REWARD_FUNCTIONS, **{name: _find(name, entry) for name, entry in entries.items()}}


def _find(name: str, entry: str) -> RewardFunction:
    if entry in MORE_FUNCTIONS:
        return MORE_FUNCTIONS[entry]
    module, _, attribute = entry.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"rl.rewards.functions.{name} = {entry} cannot be loaded ({error}); expected"
            f" module:function on the Python path, or one of {', '.join(MORE_FUNCTIONS)}."
        ) from None
    if not callable(found):
        raise UsageError(
            f"rl.rewards.functions.{name} = {entry} is a {type(found).__name__}; expected a"
            " function of (turn, earlier turns) that returns a number."
        )
    return _checked(name, found)


def _checked(name: str, function: RewardFunction) -> RewardFunction:
    """A person's function, whose result must be a finite number."""

    def component(turn: Turn, earlier: Sequence[Turn]) -> float:
        value = function(turn, earlier)
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise UsageError(
                f"rl.rewards.functions.{name} returned {value!r}; expected a finite number."
            )
        return float(value)

    return component
