"""What the critic sees before action t: the view c_t, as text in named parts.

c_t = goal + full history up to *before* action t + the actor's own state S_t + checklist +
privileged facts + turns and tokens left. Action t and its result enter only through c_{t+1}: the
value of the view after a finished turn, from which the review r_t + γV(c_{t+1}) − V(c_t) is made.
A view that held a_t would make the baseline depend on the action and bias the gradient; one
without history biases bootstrapped targets (Baisero & Amato 2022, arXiv:2105.11674).

(c_t, a_t), for critics that judge a proposed action and never serve as baseline, is the same view
with ``action`` filled in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stages.interaction.states.checklist import render_checklist
from stages.interaction.trajectory import Message, Trajectory, Turn

BETWEEN_FACTS = "; "


@dataclass(frozen=True)
class Exchange:
    """One finished turn as text: what the actor did, what came back."""

    action: str
    result: str

    def text(self) -> str:
        """Two lines."""
        return f"did: {self.action}\ngot: {self.result}"


@dataclass(frozen=True)
class View:
    """c_t, or (c_t, a_t). Parts that the recipe switches off are empty."""

    goal: str
    history: tuple[Exchange, ...]
    state: str
    checklist: str
    privileged: str
    turn: int
    turns_left: int
    tokens_left: int
    """Tokens that the actor's state could still have held; 0 where that is not known."""
    action: str = ""
    """a_t, where an action is judged."""

    def text(self) -> str:
        """The whole view as one text, the history in its middle."""
        return "\n".join([self.start(), *(e.text() for e in self.history), self.end()])

    def start(self) -> str:
        """What stands before the history and is never cut."""
        return f"goal: {self.goal}\nfacts: {self.privileged}"

    def end(self) -> str:
        """What stands after the history."""
        action = [self.proposed()] if self.action else []
        return "\n".join([self.limits(), self.shown(), *action])

    def limits(self) -> str:
        """Turns and tokens left; never cut."""
        return f"turns left: {self.turns_left}, tokens left: {self.tokens_left}"

    def shown(self) -> str:
        """What the actor itself is shown."""
        return f"solved: {self.checklist}\nstate: {self.state}"

    def proposed(self) -> str:
        """The action that is judged."""
        return f"proposed: {self.action}"


@dataclass(frozen=True)
class ViewParts:
    """Which parts a critic sees: the information asymmetry, one switch each."""

    history: bool = True
    state: bool = True
    checklist: bool = True
    privileged: bool = True
    limits: bool = True
    """Turns and tokens left."""
    state_tokens: int = 0
    """Budget of the actor's state, from which the tokens left are counted."""


def critic_views(trajectory: Trajectory, parts: ViewParts = ViewParts()) -> list[View]:
    """c_0 … c_T of an episode of T turns: T + 1 views, the last one after the final turn."""
    exchanges = tuple(_exchange(turn) for turn in trajectory.turns)
    return [_view(trajectory, t, exchanges[:t], parts) for t in range(len(exchanges) + 1)]


def action_views(trajectory: Trajectory, parts: ViewParts = ViewParts()) -> list[View]:
    """(c_0, a_0) … (c_{T−1}, a_{T−1}): T views with the action that was taken."""
    views = critic_views(trajectory, parts)[:-1]
    turns = zip(views, trajectory.turns, strict=True)
    return [replace(view, action=turn.action.text) for view, turn in turns]


def _view(trajectory: Trajectory, t: int, before: tuple[Exchange, ...], parts: ViewParts) -> View:
    facts = trajectory.privileged_before(t) if parts.privileged else {}
    items = trajectory.turns[t - 1].checklist if t else trajectory.initial_checklist
    return View(
        goal=trajectory.goal,
        history=before if parts.history else (),
        state=_state(trajectory, t) if parts.state else "",
        checklist=render_checklist(items) if parts.checklist else "",
        privileged=facts_as_text(facts),
        turn=t if parts.limits else 0,
        turns_left=max(trajectory.max_turns - t, 0) if parts.limits else 0,
        tokens_left=_tokens_left(trajectory, t, parts),
    )


def _tokens_left(trajectory: Trajectory, t: int, parts: ViewParts) -> int:
    """Room left in S_t; after the last turn, what its action left of it."""
    if not parts.limits or not trajectory.turns:
        return 0
    turn = trajectory.turns[min(t, len(trajectory.turns) - 1)]
    shown = len(turn.prompt_ids) + (len(turn.action_ids) if t == len(trajectory.turns) else 0)
    return max(parts.state_tokens - shown, 0)


def facts_as_text(facts: Mapping[str, Any]) -> str:
    """``name: value; name: value`` with lists spelled out; empty for no facts."""
    return BETWEEN_FACTS.join(
        f"{name.replace('_', ' ')}: {_word(value)}" for name, value in facts.items()
    )


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
