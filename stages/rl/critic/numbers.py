"""A view in numbers of like size: from these a small network learns within some hundred episodes.

From the words of a view it learns the tasks it was shown by heart. How far an episode has come it
learns from what means the same in every task: turns, errors, repetition, and how many of the
privileged facts are open, known or used.
"""

from __future__ import annotations

import math

from stages.rl.critic.light import agreement, bucket
from stages.rl.critic.views import BETWEEN_FACTS, View

TURNS = 9
"""Turns told apart; later ones count as the last."""
FACT_SLOTS = 16
"""Places of facts, by the hash of their names."""
NUMBERS = 5 + TURNS + 3 + FACT_SLOTS


def view_numbers(view: View) -> list[float]:
    """``NUMBERS`` numbers, most of them within [0, 2]; what the recipe hides from the view is 0."""
    acted = [e.action for e in view.history]
    failed = [e.result.lower().startswith("error") for e in view.history]
    return [
        view.turns_left / 3,
        view.tokens_left / 1000,
        *agreement(view),
        *(float(k == min(view.turn, TURNS - 1)) for k in range(TURNS)),
        float(bool(failed) and failed[-1]),
        sum(failed) / 2,
        (len(acted) - len(set(acted))) / 2,
        *_facts(view.privileged),
    ]


def _facts(text: str) -> list[float]:
    """Of ``name: value; name: value``, each value in the place of its name."""
    slots = [0.0] * FACT_SLOTS
    for fact in text.split(BETWEEN_FACTS) if text else []:
        name, _, value = fact.partition(": ")
        slots[bucket(name) % FACT_SLOTS] += _size(value)
    return slots


def _size(value: str) -> float:
    """Yes is 1, no and none 0, a number its logarithm, a list or a text how many parts it has."""
    known = {"yes": 1.0, "no": 0.0, "none": 0.0}.get(value)
    if known is not None:
        return known
    try:
        number = float(value)
    except ValueError:
        return (value.count(", ") + 1) / 3
    return math.copysign(math.log1p(abs(number)), number) / 3 if math.isfinite(number) else 0.0
