"""What worlds with tools have in common: calls are checked and carried out one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stages.interaction.actions import format_call
from stages.interaction.environments.base import Reset, Step
from stages.interaction.environments.calls import message, problem
from stages.interaction.trajectory import Action, ChecklistItem, Message, ToolCall


@dataclass(frozen=True)
class Said:
    """What a tool answers: text for the agent, reward components, an error's text."""

    text: str
    rewards: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None


def refused(reason: str, *, invalid: bool = False) -> Said:
    """An error of the agent; ``invalid`` ones cost it something."""
    return Said(f"error: {reason}", {"invalid": 1.0} if invalid else {}, reason)


class ToolWorld(ABC):
    """One episode at a time; the subclass holds the task's truth and the tools' effects."""

    tools: Sequence[Mapping[str, Any]]
    finished: bool = True
    """The episode is over, or none has begun."""
    solved: bool = False
    """The episode ended in success."""

    def step(self, action: Action) -> Step:
        """Carry out the calls of one action in order, up to the one that ends the episode."""
        if action.error is not None or not action.calls:
            said = action.error or f"no tool call found; reply with JSON like {self._example()}"
            facts = {"invalid": False, "malformed": True}
            return self._outcome([message("tool", f"error: {said}")], {}, facts)
        messages: list[Message] = []
        rewards: dict[str, float] = {}
        info: dict[str, Any] = {"invalid": False, "tool_error": None}
        for call in action.calls:
            if self.finished:
                break
            said_by_tool = self._checked(call)
            messages.append(message("tool", said_by_tool.text, call.name))
            for name, value in said_by_tool.rewards.items():
                rewards[name] = min(1.0, rewards.get(name, 0.0) + value)
            info["tool"] = call.name
            info["tool_error"] = said_by_tool.error or info["tool_error"]
            info["invalid"] = info["invalid"] or "invalid" in said_by_tool.rewards
        return self._outcome(messages, rewards, info)

    def begin(self, question: str) -> Reset:
        """The reset of a new episode, whose truth the subclass has just set."""
        self.finished = self.solved = False
        return Reset(
            messages=(message("user", question),),
            tools=tuple(self.tools),
            goal=question,
            checklist=self.checklist(),
            privileged=self.facts(),
        )

    @abstractmethod
    def carry_out(self, call: ToolCall) -> Said:
        """Use a tool; name and arguments' types are right."""

    @abstractmethod
    def checklist(self) -> tuple[ChecklistItem, ...]:
        """What the agent can see of its progress."""

    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """Privileged facts as of now, for the critic."""

    def _checked(self, call: ToolCall) -> Said:
        wrong = problem(call, self.tools)
        return self.carry_out(call) if wrong is None else refused(wrong, invalid=True)

    def _example(self) -> str:
        plain = next(
            t["function"]["name"] for t in self.tools if not t["function"]["parameters"]["required"]
        )
        return format_call(plain, {})

    def _outcome(
        self, messages: Sequence[Message], rewards: Mapping[str, float], info: Mapping[str, Any]
    ) -> Step:
        return Step(
            messages=tuple(messages),
            rewards=rewards,
            terminated=self.finished,
            success=self.solved,
            checklist=self.checklist(),
            privileged=self.facts(),
            info=info,
        )
