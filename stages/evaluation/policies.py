"""Scripted policies as a yardstick: a task they solve measures nothing.

``null`` says nothing, ``random`` calls a random tool with random arguments, ``most_frequent``
gives at once the answer that is right most often in the training tasks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.common.errors import UsageError
from stages.common.seeding import keyed_generator
from stages.interaction.actions import format_call
from stages.interaction.generation import Generation, Request
from stages.interaction.trajectory import Trajectory

Act = Callable[[Request], str]
"""What to say next, given what an actor would be shown."""

_WORD = re.compile(r"[A-Za-z0-9_.]+")
_LARGEST_NUMBER = 20


@dataclass(frozen=True)
class ScriptedPolicy:
    """A ``Policy`` without a model: no token ids, no log-probs."""

    act: Act

    def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        """One text per request; ``greedy`` changes nothing."""
        return [Generation(text=self.act(request)) for request in requests]


def null_policy() -> ScriptedPolicy:
    """Says nothing, ever."""
    return ScriptedPolicy(lambda request: "")


def random_policy() -> ScriptedPolicy:
    """A random tool with random arguments, words drawn from what the actor is shown.

    The choice is keyed by ``Request.key``, so equal seeds give equal episodes.
    """
    return ScriptedPolicy(_random_action)


def most_frequent_policy(demonstrations: Sequence[Trajectory]) -> ScriptedPolicy:
    """Ends every episode at once with the commonest last action of successful demonstrations.

    Raises UsageError if none of the demonstrations succeeded.
    """
    endings = Counter(t.turns[-1].action.text for t in demonstrations if t.success and t.turns)
    if not endings:
        raise UsageError(
            f"the most frequent answer was asked for, but none of {len(demonstrations)}"
            " demonstrations of training tasks succeeded; check the environment with"
            " 'aac env check'"
        )
    # Ties go to the text that sorts first, so that the policy does not hang on the order.
    best = min(endings, key=lambda text: (-endings[text], text))
    return ScriptedPolicy(lambda request: best)


def _random_action(request: Request) -> str:
    draw = keyed_generator(*request.key)
    if not request.tools:
        return ""
    tool = request.tools[int(draw.integers(len(request.tools)))]
    description = tool.get("function", tool)
    words = _words(request)
    properties = description.get("parameters", {}).get("properties", {})
    arguments = {name: _random_value(schema, words, draw) for name, schema in properties.items()}
    return format_call(description["name"], arguments)


def _words(request: Request) -> list[str]:
    text = " ".join(str(m.get("content") or "") for m in request.messages if m["role"] != "system")
    return _WORD.findall(text) or ["nothing"]


def _random_value(schema: Mapping[str, Any], words: list[str], draw: np.random.Generator) -> Any:
    if schema.get("enum"):
        return schema["enum"][int(draw.integers(len(schema["enum"])))]
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind in ("integer", "number"):
        return int(draw.integers(_LARGEST_NUMBER))
    if kind == "boolean":
        return bool(draw.integers(2))
    word = words[int(draw.integers(len(words)))]
    return [word] if kind == "array" else {} if kind == "object" else word
