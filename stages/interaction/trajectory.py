"""What happened, as plain frozen records that survive a trip through JSON.

One ``Turn`` is one decision of the actor: the state it was shown, the tokens it chose, what
came back. A ``Trajectory`` (episode) is the ordered turns from reset to end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Message = dict[str, Any]
"""OpenAI style: ``{"role": "system|user|assistant|tool", "content": str, ...}``."""

REVIEW = "review"
"""Key of ``Turn.produced``: the review of the turn in words."""

SLIP = "slip"
"""Key of ``Turn.info``: a demonstrated action that is shown and not learned."""

ChecklistItem = tuple[str, bool]
"""(goal or sub-goal in words, solved already?)."""


@dataclass(frozen=True)
class ToolCall:
    """One call of one tool, as parsed from the actor's text."""

    name: str
    arguments: Mapping[str, Any]

    def key(self) -> str:
        """Canonical text of the call: equal calls have equal keys, whatever their spelling."""
        import json

        return json.dumps([self.name, dict(self.arguments)], sort_keys=True, default=str)


@dataclass(frozen=True)
class Action:
    """All that the actor emitted in one turn.

    ``error`` says in words why no call could be parsed (None if it parsed, or if the text
    holds no call at all and is meant as plain talk: then ``calls`` is empty).
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Turn:
    """One observation-action exchange.

    ``privileged`` and ``checklist`` are what the environment said *after* the action, so they
    belong to the critic's view of turn ``index + 1``, never to this one's.
    """

    index: int
    messages: tuple[Message, ...]
    """The state S_t: exactly what the actor was shown."""
    action: Action
    observation: tuple[Message, ...] = ()
    """Messages that came back from the environment."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Raw components by name: indicators and scores before weights, caps and scaling."""
    checklist: tuple[ChecklistItem, ...] = ()
    privileged: Mapping[str, Any] = field(default_factory=dict)
    prompt_ids: tuple[int, ...] = ()
    """Token ids of ``messages`` as the actor saw them."""
    action_ids: tuple[int, ...] = ()
    """Sampled token ids, the stop token included if it was sampled."""
    logprobs: tuple[float, ...] = ()
    """Behaviour log-probs of ``action_ids`` at the sampling temperature."""
    produced: Mapping[str, Any] = field(default_factory=dict)
    """What was made along with this turn: by the state processors for its state (checklist text,
    summary, ...), and ``REVIEW``, the critic's words on it that later states may show."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Facts for metrics: ``invalid``, ``tool_error`` (text), ``repeated``, ..."""


@dataclass(frozen=True)
class Trajectory:
    """One episode. ``terminated``: the task ended it. ``truncated``: our machinery cut it.

    ``error`` is set when the machinery failed: such an episode is dropped and counted.
    """

    task_id: str
    kind: str
    """Kind of task (question template, ...) for per-kind tables."""
    group: str
    """Group of tasks that share a world (schema domain, ...)."""
    goal: str
    initial_messages: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    initial_checklist: tuple[ChecklistItem, ...] = ()
    initial_privileged: Mapping[str, Any] = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    out_of_budget: bool = False
    """Ended by a limit that belongs to the task (turns, tokens): a kind of ``terminated``."""
    max_turns: int = 0
    key: tuple[int, ...] = ()
    """(seed, iteration, episode): what the random numbers were keyed by."""
    actor_version: int = 0
    error: str | None = None
    relabelled_from: str = ""
    """Id of the task it was played for, where hindsight gave it another (``rl.hindsight``)."""
    dropped_at: str = ""
    """With ``error``: the last tool called, ``no call`` or ``reset``."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-able dictionary; ``from_json`` is its inverse. What the record holds is shared,
        not copied: thousands of turns are written at every iteration."""
        return {**vars(self), "turns": [_row(turn) for turn in self.turns]}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Trajectory:
        """Rebuild from ``to_json`` output.

        Raises KeyError, TypeError, ValueError or AttributeError on foreign rows.
        """
        turns = tuple(_turn(t) for t in row["turns"])
        rest = {k: v for k, v in row.items() if k != "turns"}
        rest |= {
            "initial_messages": tuple(row.get("initial_messages", ())),
            "tools": tuple(row.get("tools", ())),
            "initial_checklist": _checklist(row.get("initial_checklist", ())),
            "key": tuple(row.get("key", ())),
        }
        return cls(**rest, turns=turns)

    def with_turns(self, turns: Sequence[Turn]) -> Trajectory:
        """The same episode with other turns (scores added, rewards relabelled)."""
        return replace(self, turns=tuple(turns))

    def privileged_before(self, t: int) -> Mapping[str, Any]:
        """Privileged facts that belong to the critic's view c_t (t may equal len(turns))."""
        return self.initial_privileged if t == 0 else self.turns[t - 1].privileged


def _row(turn: Turn) -> dict[str, Any]:
    calls = [dict(vars(call)) for call in turn.action.calls]
    return {**vars(turn), "action": {**vars(turn.action), "calls": calls}}


def _checklist(items: Any) -> tuple[ChecklistItem, ...]:
    return tuple((str(name), bool(done)) for name, done in items)


def _turn(row: Mapping[str, Any]) -> Turn:
    action = row["action"]
    calls = tuple(ToolCall(c["name"], c["arguments"]) for c in action.get("calls", ()))
    rest = {k: v for k, v in row.items() if k not in ("action",)}
    for name in ("messages", "observation", "prompt_ids", "action_ids", "logprobs"):
        rest[name] = tuple(row.get(name, ()))
    rest["checklist"] = _checklist(row.get("checklist", ()))
    return Turn(**rest, action=Action(action["text"], calls, action.get("error")))
