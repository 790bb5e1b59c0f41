"""A toy world and scripted policies for the rollout's tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from stages.interaction.environments.base import Reset, Step, Task
from stages.interaction.generation import Generation, Request
from stages.interaction.trajectory import Action, Message

TOOLS = (
    {"name": "look", "description": "look into a box", "parameters": {"type": "object"}},
    {"name": "answer", "description": "say what was asked", "parameters": {"type": "object"}},
)


def task(number: int = 0, *, gold: str = "red", **payload: Any) -> Task:
    """A task whose boxes (visible) do not depend on its gold (privileged)."""
    boxes = {"a": "red", "b": "blue", "c": f"green {number}"}
    return Task(f"toy-{number}", "colour", "boxes", {"boxes": boxes, "gold": gold, **payload})


class BoxEnvironment:
    """``look`` shows a box's colour, ``answer`` ends; payload keys make it misbehave."""

    name = "boxes"
    max_turns = 6
    opened: list[BoxEnvironment] = []

    def __init__(self) -> None:
        self.closed = 0
        self.steps = 0
        BoxEnvironment.opened.append(self)

    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """Distinct tasks."""
        return [task(seed * 1000 + number) for number in range(count)]

    def reset(self, task: Task) -> Reset:
        """Ask for a colour."""
        self.task, self.looked, self.steps = task, set(), 0
        if task.payload.get("fails_at") == "reset":
            raise OSError("no boxes today")
        return Reset(
            messages=({"role": "user", "content": "which colour is in box a?"},),
            tools=TOOLS,
            goal="which colour is in box a?",
            checklist=(("look", False), ("answer", False)),
            privileged={"gold": task.payload["gold"], "turn": 0},
        )

    def step(self, action: Action) -> Step:
        """Carry out the first call; anything else is told off."""
        self.steps += 1
        if task_fails(self.task, self.steps):
            raise RuntimeError("the box is stuck")
        gold = self.task.payload["gold"]
        facts = {"gold": gold, "turn": self.steps}
        if not action.calls:
            said = f"error: {action.error or 'no call'}"
            return Step(_tool(said), {}, checklist=self._list(), privileged=facts)
        call = action.calls[0]
        if call.name == "answer":
            right = call.arguments.get("value") == gold
            rewards = {"success": float(right)}
            return Step(_tool("bye"), rewards, True, False, right, self._list(), facts)
        box = str(call.arguments.get("box"))
        new = box not in self.looked
        self.looked.add(box)
        said = self.task.payload["boxes"].get(box, "error: no such box")
        rewards = {"useful_result": 1.0} if new else {}
        return Step(_tool(said), rewards, checklist=self._list(), privileged=facts)

    def close(self) -> None:
        """Count how often it was closed."""
        self.closed += 1

    def demonstrate(self, task: Task, seed: int) -> Callable[[Sequence[Message]], str]:
        """Look into box a, then answer with what was seen."""

        def act(seen: Sequence[Message]) -> str:
            if seen[-1]["role"] == "user":
                return look("a")
            return answer(str(seen[-1]["content"]).split("\n")[0])

        return act

    def _list(self) -> tuple[tuple[str, bool], ...]:
        return (("look", bool(self.looked)), ("answer", False))


def task_fails(task: Task, step: int) -> bool:
    """Whether the environment itself breaks at this step."""
    return task.payload.get("fails_at") == step


def look(box: str) -> str:
    """Action text."""
    return json.dumps({"name": "look", "arguments": {"box": box}})


def answer(value: str) -> str:
    """Action text."""
    return json.dumps({"name": "answer", "arguments": {"value": value}})


class Script:
    """Says the n-th text in every episode's n-th turn (the last one for ever)."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.batches: list[list[tuple[int, ...]]] = []

    def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        """The texts, whatever was asked."""
        self.batches.append([request.key for request in requests])
        turns = [min(request.key[-1], len(self.texts) - 1) for request in requests]
        return [Generation(text=self.texts[turn]) for turn in turns]


def _tool(text: str) -> tuple[Message, ...]:
    return ({"role": "tool", "content": text},)


def count_words(messages: Sequence[Message]) -> int:
    """A stand-in for a tokenizer: words of the contents, one more per message."""
    return sum(len(str(m["content"]).split()) + 1 for m in messages)
