"""The tools of an environment class written for TRL: its public bound methods.

TRL finds them on the instance, describes them by transformers' ``get_json_schema`` and turns
their exceptions into text for the agent; so does this. Contract: TRL 1.12, ``GRPOTrainer``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

from stages.common.errors import UsageError
from stages.common.messages import plain_text
from stages.interaction.environments.adapters.async_loop import run_async
from stages.interaction.trajectory import Message, ToolCall

_NOT_TOOLS = ("reset", "get_reward")
# Instances come in dozens, and reading a docstring takes milliseconds.
_SCHEMAS: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def tool_methods(instance: Any) -> dict[str, MethodType]:
    """Public bound methods other than ``reset`` and ``get_reward``, by name."""
    members = inspect.getmembers(instance, predicate=inspect.ismethod)
    return {n: m for n, m in members if n not in _NOT_TOOLS and not n.startswith("_")}


def schemas(methods: Mapping[str, MethodType]) -> tuple[dict[str, Any], ...]:
    """JSON schemas from type hints and Google-style docstrings. UsageError names a bare method."""
    for name, method in methods.items():
        if method.__func__ not in _SCHEMAS:
            _SCHEMAS[method.__func__] = _schema(name, method)
    return tuple(_SCHEMAS[method.__func__] for method in methods.values())


def _schema(name: str, method: MethodType) -> dict[str, Any]:
    from transformers.utils import get_json_schema

    try:
        schema: dict[str, Any] = get_json_schema(method)
    except Exception as error:
        raise UsageError(
            f"environment.trl: the method {name} is public, so it is a tool, but has no usable "
            f"description ({error}); give it type hints and a docstring with Args, or a name "
            "that starts with an underscore."
        ) from error
    return schema


def carry_out(
    methods: Mapping[str, MethodType], calls: Sequence[ToolCall]
) -> tuple[list[Message], list[str]]:
    """Tool messages of one turn, and what went wrong in words.

    Synchronous tools run in order, asynchronous ones are gathered afterwards: their results come
    last.
    """
    results: list[tuple[str, Any]] = []
    waiting: list[tuple[str, Any]] = []
    for call in calls:
        try:
            method = methods.get(call.name)
            if method is None:
                raise ValueError(f"Tool {call.name} not found.")
            made = method(**call.arguments)
            (waiting if inspect.iscoroutinefunction(method) else results).append((call.name, made))
        except Exception as error:
            results.append((call.name, error))
    if waiting:
        gathered = run_async(_gather([coroutine for _, coroutine in waiting]))
        results += [(name, made) for (name, _), made in zip(waiting, gathered, strict=True)]
    return [_told(name, made) for name, made in results], _wrong(results)


async def _gather(coroutines: Sequence[Any]) -> list[Any]:
    return await asyncio.gather(*coroutines, return_exceptions=True)


def _told(name: str, made: Any) -> Message:
    """An exception does not end the episode: examples signal "Game over." so."""
    if isinstance(made, Exception):
        made = {"error": str(made)}
    content = plain_text(f"the tool {name}", made) if isinstance(made, list) else str(made)
    return {"role": "tool", "name": name, "content": content}


def _wrong(results: Sequence[tuple[str, Any]]) -> list[str]:
    return [str(made) for _, made in results if isinstance(made, Exception)]
