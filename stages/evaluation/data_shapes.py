"""Which shape a row of a person's file has, and what is wrong with it, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stages.common.errors import UsageError
from stages.common.messages import read_messages
from stages.common.records import Record
from stages.common.shapes import merge_assistants, read_dialogue, read_preference
from stages.interaction.trajectory import Trajectory

Row = Mapping[str, Any]

EPISODES = "agent episodes"
PREFERENCES = "preferences"
TRAJECTORIES = "trajectories of aac"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Shape:
    """One known shape: how to tell it, what reads it."""

    name: str
    fields: str
    """What its rows hold, for people."""
    fits: Callable[[Row], bool]
    read: Callable[[str, Row], Any]
    """Raises UsageError, with the place, for a row that is not sound."""


@dataclass(frozen=True)
class Finding:
    """What one row is; ``problem`` in words where no stage could take it."""

    place: str
    shape: str
    problem: str | None = None
    notes: tuple[str, ...] = ()
    """What is unusual about a sound row."""


def _read_episode(place: str, row: Row) -> Any:
    if not isinstance(row["reward"], int | float) or isinstance(row["reward"], bool):
        raise UsageError(f"{place}: reward is {row['reward']!r}, expected a number.")
    return read_dialogue(place, row)


def _read_trajectory(place: str, row: Row) -> Trajectory:
    try:
        return Trajectory.from_json(row)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{place} is no trajectory of aac ({error}).") from error


def _has_from(row: Row) -> bool:
    given = row.get("conversations")
    first = next(iter(given), None) if isinstance(given, list) else None
    return isinstance(first, Mapping) and "from" in first


SHAPES: tuple[Shape, ...] = (
    Shape(
        TRAJECTORIES,
        "task_id, turns",
        lambda row: "turns" in row and "task_id" in row,
        _read_trajectory,
    ),
    Shape(
        "preferences, ShareGPT",
        "conversations (from, value), chosen, rejected",
        lambda row: {"chosen", "rejected"} <= set(row) and _has_from(row),
        read_preference,
    ),
    Shape(
        PREFERENCES,
        "prompt, chosen, rejected",
        lambda row: {"chosen", "rejected"} <= set(row),
        read_preference,
    ),
    Shape(
        EPISODES,
        "messages or traj in OpenAI form, reward",
        lambda row: bool({"traj", "messages"} & set(row)) and "reward" in row,
        _read_episode,
    ),
    Shape("dialogues, ShareGPT", "conversations (from, value)", _has_from, read_dialogue),
    Shape(
        "dialogues, TRL",
        "messages (role, content)",
        lambda row: bool({"messages", "conversations", "traj"} & set(row)),
        read_dialogue,
    ),
    Shape(
        "prompt and completion, TRL",
        "prompt, completion",
        lambda row: "completion" in row,
        read_dialogue,
    ),
    Shape(
        "instructions",
        "instruction, history, reply",
        lambda row: "instruction" in row,
        read_dialogue,
    ),
)
"""In the order in which they are tried."""


def shape_of(row: Row) -> Shape | None:
    """The first shape that fits, None for a row of no known one."""
    return next((shape for shape in SHAPES if shape.fits(row)), None)


def examine(record: Record) -> Finding:
    """What a row is, and what is wrong with it."""
    place, row = record
    shape = shape_of(row)
    if shape is None:
        fields = ", ".join(sorted(map(str, row))) or "no field"
        known = "; ".join(f"{s.fields} ({s.name})" for s in SHAPES)
        return Finding(place, UNKNOWN, f"{place} has {fields}; expected one of: {known}.")
    try:
        shape.read(place, row)
    except UsageError as error:
        return Finding(place, shape.name, str(error))
    return Finding(place, shape.name, notes=tuple(_notes(place, row)))


def _notes(place: str, row: Row) -> Iterator[str]:
    """What a stage will do with a sound row that its author may not expect."""
    given = next((row[k] for k in ("messages", "traj", "conversations") if row.get(k)), None)
    if given is None or "chosen" in row:
        return
    messages = read_messages(place, given)
    if messages and messages[-1]["role"] != "assistant":
        yield "what follows the last reply is not learned"
    if len(merge_assistants(messages)) < len(messages):
        yield "neighbouring assistant messages are one action"
    if any(m["role"] == "tool" for m in messages) and not row.get("tools"):
        yield "tools are used that the row does not describe"
