"""A small world that keeps the contract, and ways to break it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from stages.interaction.actions import format_call
from stages.interaction.environments.base import Reset, Step, Task
from stages.interaction.trajectory import Action, Message, Trajectory

OPTIONS = SimpleNamespace(name="doors")
TOOLS = (
    {"name": "open", "parameters": {"properties": {"door": {"type": "integer"}}}},
    {"name": "answer", "parameters": {"properties": {"door": {"type": "integer"}}}},
)


class Doors:
    """Behind which door is the prize? ``open`` tells, ``answer`` ends the episode."""

    name = "doors"
    max_turns = 5

    def __init__(self) -> None:
        self.opened: list[Any] = []

    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        first = {"train": 0, "validation": 10_000, "test": 20_000}[split] + 100 * seed
        return [
            Task(f"door-{n}", "even" if n % 2 == 0 else "odd", f"house {n % 3}", {"gold": n % 4})
            for n in range(first, first + count)
        ]

    def reset(self, task: Task) -> Reset:
        self.task, self.opened = task, []
        question = "which door has the prize?"
        return Reset(({"role": "user", "content": question},), TOOLS, question)

    def step(self, action: Action) -> Step:
        if action.error or not action.calls or action.calls[0].name not in ("open", "answer"):
            return self._step("error: open or answer a door", {"invalid": 1.0})
        door = action.calls[0].arguments.get("door")
        right = door == self.task.payload["gold"]
        if action.calls[0].name == "answer":
            return self._step("bye", {"success": float(right)}, terminated=True, success=right)
        self.opened.append(door)
        # Which door was opened is told, what is behind it is for the rewards only.
        return self._step(f"opened {len(self.opened)}", {"useful_result": float(right)})

    def close(self) -> None:
        pass

    def demonstrate(self, task: Task, seed: int) -> Callable[[Sequence[Message]], str]:
        texts = iter([format_call("open", {"door": 0}), format_call("answer", {"door": 0})])
        return lambda messages: next(texts)

    def alter_gold(self, task: Task) -> Task:
        return replace(task, payload={"gold": task.payload["gold"] + 1})

    def relabel(self, task: Task, trajectory: Trajectory) -> Task | None:
        said = trajectory.turns[-1].action.calls
        door = said[0].arguments.get("door") if trajectory.terminated and said else None
        if door not in range(4) or door == task.payload["gold"]:
            return None
        return replace(task, id=f"{task.id}-{door}", payload={"gold": door})

    def ask(self, task: Task, question: str) -> Task:
        return replace(task, payload={"gold": None, "question": question})

    def _step(self, text: str, rewards: dict[str, float], **outcome: Any) -> Step:
        return Step(({"role": "tool", "content": text},), rewards, **outcome)


class Forgetful(Doors):
    """Does not clear what an earlier episode opened."""

    def reset(self, task: Task) -> Reset:
        opened = self.opened
        reset = super().reset(task)
        self.opened = opened
        return reset


class Flattering(Doors):
    """Calls an episode good for a task in which it fails, too."""

    def relabel(self, task: Task, trajectory: Trajectory) -> Task | None:
        other = super().relabel(task, trajectory)
        return other and replace(other, payload={"gold": other.payload["gold"] + 1})


class Fickle(Doors):
    """Answers by a counter of its own, so nothing can be repeated."""

    steps = 0

    def step(self, action: Action) -> Step:
        Fickle.steps += 1
        step = super().step(action)
        return replace(step, messages=({"role": "tool", "content": str(Fickle.steps)},))


class Leaky(Doors):
    """Tells the gold answer."""

    def step(self, action: Action) -> Step:
        step = super().step(action)
        told = {"role": "tool", "content": f"warmer, it is near {self.task.payload['gold']}"}
        return replace(step, messages=(told,))


class Touchy(Doors):
    """Raises at bad calls."""

    def step(self, action: Action) -> Step:
        if action.error:
            raise ValueError("I do not understand")
        return super().step(action)


class Generous(Doors):
    """Pays with numbers that are no indicators."""

    def _step(self, text: str, rewards: dict[str, float], **outcome: Any) -> Step:
        return super()._step(text, {"useful_result": 7.0}, **outcome)


class Shared(Doors):
    """Tests on training tasks, too."""

    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        half = count // 2
        own = super().tasks(split, count - half, seed)
        return [*super().tasks("train", half, seed), *own] if split == "test" else own


class Restless(Doors):
    """Never gives the same tasks twice."""

    drawn = 0

    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        Restless.drawn += 1
        return super().tasks(split, count, seed + Restless.drawn)


class Mute(Doors):
    """Has no expert, takes no questions and sees nothing in hindsight."""

    demonstrate = None  # type: ignore[assignment]
    alter_gold = None  # type: ignore[assignment]
    ask = None  # type: ignore[assignment]
    relabel = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        if name in ("demonstrate", "alter_gold", "ask", "relabel"):
            raise AttributeError(name)
        return super().__getattribute__(name)
