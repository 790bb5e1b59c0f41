"""What the critic sees before action t: the view c_t, as text in named parts.

c_t = goal + full history up to *before* action t + the actor's own state S_t + privileged facts
+ turns left. Action t and its result enter only through c_{t+1}: the value of the view after a
finished turn, from which the review r_t + γV(c_{t+1}) − V(c_t) is made. A view that held a_t
would make the baseline depend on the action and bias the gradient; one without history biases
bootstrapped targets (Baisero & Amato 2022, arXiv:2105.11674).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages.interaction.states.checklist import render_checklist
from stages.interaction.trajectory import Message, Trajectory, Turn


@dataclass(frozen=True)
class Exchange:
    """One finished turn as text: what the actor did, what came back."""

    action: str
    result: str


@dataclass(frozen=True)
class View:
    """c_t. Parts that the recipe switches off are empty."""

    goal: str
    history: tuple[Exchange, ...]
    state: str
    privileged: str
    turn: int
    turns_left: int

    def text(self) -> str:
        """The whole view as one text, the history in its middle."""
        lines = [f"goal: {self.goal}", f"facts: {self.privileged}", f"state: {self.state}"]
        lines += [f"did: {e.action}\ngot: {e.result}" for e in self.history]
        lines += [f"turns left: {self.turns_left}"]
        return "\n".join(lines)


@dataclass(frozen=True)
class ViewParts:
    """Which parts a critic sees: the information asymmetry, one switch each."""

    history: bool = True
    state: bool = True
    privileged: bool = True


def critic_views(trajectory: Trajectory, parts: ViewParts = ViewParts()) -> list[View]:
    """c_0 … c_T of an episode of T turns: T + 1 views, the last one after the final turn."""
    exchanges = tuple(_exchange(turn) for turn in trajectory.turns)
    views = []
    for t in range(len(trajectory.turns) + 1):
        facts = trajectory.privileged_before(t) if parts.privileged else {}
        views.append(
            View(
                goal=trajectory.goal,
                history=exchanges[:t] if parts.history else (),
                state=_state(trajectory, t) if parts.state else "",
                privileged=facts_as_text(facts),
                turn=t,
                turns_left=max(trajectory.max_turns - t, 0),
            )
        )
    return views


def facts_as_text(facts: Mapping[str, Any]) -> str:
    """``name: value; name: value`` with lists spelled out; empty for no facts."""
    return "; ".join(f"{name.replace('_', ' ')}: {_word(value)}" for name, value in facts.items())


def _word(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence):
        return ", ".join(_word(v) for v in value) or "none"
    return json.dumps(value, default=str)


def _exchange(turn: Turn) -> Exchange:
    return Exchange(turn.action.text, "\n".join(_content(m) for m in turn.observation))


def _state(trajectory: Trajectory, t: int) -> str:
    """The actor's own state before action t; after the last turn, what that turn adds to it."""
    if t < len(trajectory.turns):
        return "\n".join(_content(m) for m in trajectory.turns[t].messages)
    if not trajectory.turns:
        return "\n".join(_content(m) for m in trajectory.initial_messages)
    last = trajectory.turns[-1]
    shown = [_content(m) for m in (*last.messages, *last.observation)]
    return "\n".join([*shown, last.action.text, render_checklist(last.checklist)])


def _content(message: Message) -> str:
    return str(message.get("content") or "")
