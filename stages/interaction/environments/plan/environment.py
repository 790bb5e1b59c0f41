"""The ``plan`` environment: find out about the steps, put each on a day, keep the rules."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stages.interaction.environments.base import Reset, Task
from stages.interaction.environments.calls import tool
from stages.interaction.environments.plan.expert import Planner
from stages.interaction.environments.plan.options import PlanOptions
from stages.interaction.environments.plan.rules import broken_rules, last_day
from stages.interaction.environments.plan.tasks import generate, project_of
from stages.interaction.environments.tool_world import Said, ToolWorld, refused
from stages.interaction.trajectory import ChecklistItem, Message, ToolCall

_STEP = {"type": "string", "description": "Name of the step."}
TOOLS = (
    tool("describe", "Say how long a step takes, whom it needs, what it waits for.", step=_STEP),
    tool(
        "schedule",
        "Put a step on a day, or on another one.",
        step=_STEP,
        day={"type": "integer", "description": "Its first day, from 1."},
    ),
    tool("check", "Say which rules the plan breaks so far."),
    tool("submit", "Hand the plan in: the task is over."),
)
_LAST_DAY = 1000
_SHOWN = 3


class PlanEnvironment(ToolWorld):
    """A plan is right if every step has a day, waits for others, finds workers, ends in time."""

    name = "plan"
    tools = TOOLS

    def __init__(self, options: PlanOptions | None = None) -> None:
        self.options = options or PlanOptions()
        self.max_turns = self.options.max_turns

    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """``count`` distinct tasks of a split."""
        return generate(self.options, split, count, seed)

    def demonstrate(self, task: Task, seed: int) -> Callable[[Sequence[Message]], str]:
        """The scripted planner for one episode, as imperfect as ``options.expert`` says."""
        return Planner(task, self.options.expert, random.Random(f"plan/{task.id}/{seed}"))

    def alter_gold(self, task: Task) -> Task:
        """The task judged by a rule nobody can keep: nothing an actor sees may change."""
        return replace(task, payload={**task.payload, "secret_step": True})

    def reset(self, task: Task) -> Reset:
        """Start an episode of a task."""
        self._project = project_of(task.payload)
        self._impossible = bool(task.payload.get("secret_step"))
        self._plan: dict[str, int] = {}
        self._described: set[str] = set()
        self._best = 0
        self._clean = False
        project = self._project
        return self.begin(
            f"Plan the steps {', '.join(project.steps)} with {project.workers} workers a day. "
            f"All must end by day {project.deadline}."
        )

    def close(self) -> None:
        """Nothing is held."""

    # ---- the tools

    def carry_out(self, call: ToolCall) -> Said:
        """Use a tool."""
        if call.name == "check":
            wrong = broken_rules(self._project, self._plan)
            self._clean = not wrong
            return Said("; ".join(wrong[:_SHOWN]) if wrong else "no rule is broken")
        if call.name == "submit":
            self.finished = True
            wrong = broken_rules(self._project, self._plan)
            self.solved = not wrong and not self._impossible
            return Said("plan received", {"success": float(self.solved)})
        name = call.arguments["step"]
        if name not in self._project.steps:
            return refused(f"no such step: {name[:60]}")
        return self._describe(name) if call.name == "describe" else self._schedule(call, name)

    def _describe(self, name: str) -> Said:
        work = self._project.steps[name]
        waits = f", after {', '.join(work.after)}" if work.after else ""
        rewards = {} if name in self._described else {"right_tool": 1 / len(self._project.steps)}
        self._described.add(name)
        return Said(f"{work.days} days, {work.workers} workers{waits}", rewards)

    def _schedule(self, call: ToolCall, name: str) -> Said:
        day = call.arguments["day"]
        if not 1 <= day <= _LAST_DAY:
            return refused(f"day must be 1 to {_LAST_DAY}")
        self._plan[name] = day
        self._clean = False
        text = f"{name}: days {day} to {last_day(self._project, self._plan, name)}"
        return Said(text, self._progress())

    def _progress(self) -> dict[str, float]:
        """Paid once per step that the plan has and keeps all rules so far; never for moving it."""
        wrong = broken_rules(self._project, self._plan)
        only_missing = all(text.endswith("not planned") for text in wrong)
        if self._impossible or not only_missing or len(self._plan) <= self._best:
            return {}
        self._best = len(self._plan)
        return {"sub_goal": 1 / len(self._project.steps)}

    # ---- what is known of the episode

    def checklist(self) -> tuple[ChecklistItem, ...]:
        """Visible progress: the steps planned, and the last check."""
        steps = self._project.steps
        return (
            ("described", len(self._described) == len(steps)),
            ("planned", len(self._plan) == len(steps)),
            ("checked", self._clean),
            ("submitted", self.finished),
        )

    def facts(self) -> Mapping[str, Any]:
        """Rules that are broken as of now."""
        return {"remaining_sub_goals": broken_rules(self._project, self._plan)}
