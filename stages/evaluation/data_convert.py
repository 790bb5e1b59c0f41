"""From any known shape to the rows our stages read: demonstrations, preferences, experience."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from stages.common.errors import UsageError
from stages.common.messages import Message, read_messages, with_system
from stages.common.records import Record
from stages.common.shapes import (
    Dialogue,
    Preference,
    merge_assistants,
    read_dialogue,
    read_preference,
)
from stages.evaluation.data_shapes import EPISODES, PREFERENCES, TRAJECTORIES, shape_of
from stages.interaction.actions import parse_action, tool_prompt
from stages.interaction.trajectory import Trajectory, Turn

Row = dict[str, Any]


def demonstrations(records: Sequence[Record]) -> list[Row]:
    """Rows for ``aac sft``; of a preference the better side."""
    return [_demonstration(place, row) for place, row in records]


def preferences(records: Sequence[Record]) -> list[Row]:
    """Rows for ``aac train-reward``: preferences in our form, and of episodes every success
    against every failure on the same task."""
    episodes = [r for r in records if _is(r, EPISODES)]
    others = [r for r in records if not _is(r, EPISODES)]
    wrong = next((r for r in others if not _is(r, PREFERENCES)), None)
    if wrong is not None:
        raise UsageError(
            f"{wrong[0]} holds no preference and no episode with a reward, so nothing says what is "
            "better; convert it to demonstrations."
        )
    told = [_preference_row(read_preference(place, row)) for place, row in others]
    return told + list(_success_against_failure(episodes))


def experience(records: Sequence[Record]) -> list[Row]:
    """Trajectory records for the experience pool; nobody knows their log-probs."""
    wrong = next((r for r in records if not (_is(r, EPISODES) or _is(r, TRAJECTORIES))), None)
    if wrong is not None:
        raise UsageError(
            f"{wrong[0]} has no reward, so it is no episode to learn a value from; convert it to "
            "demonstrations."
        )
    return [
        row if _is((place, row), TRAJECTORIES) else _episode(place, row) for place, row in records
    ]


CONVERSIONS: Mapping[str, Callable[[Sequence[Record]], list[Row]]] = {
    "demonstrations": demonstrations,
    "preferences": preferences,
    "experience": experience,
}
"""By the word that ``--to`` takes."""


def convertible(records: Sequence[Record]) -> list[str]:
    """What these rows could become."""
    if all(_is(r, EPISODES) for r in records):
        return list(CONVERSIONS)
    if all(_is(r, PREFERENCES) for r in records):
        return ["demonstrations", "preferences"]
    if all(_is(r, TRAJECTORIES) for r in records):
        return ["experience"]
    return ["demonstrations"]


def _is(record: Record, name: str) -> bool:
    shape = shape_of(record[1])
    return shape is not None and shape.name.startswith(name)


def _demonstration(place: str, row: Mapping[str, Any]) -> Row:
    if _is((place, dict(row)), PREFERENCES):
        told = read_preference(place, row)
        *prompt, reply = told.chosen
        return {"prompt": prompt, "completion": [reply], **_tools(told.tools)}
    dialogue = read_dialogue(place, row)
    success = {} if dialogue.success is None else {"success": dialogue.success}
    facts = {k: row[k] for k in ("task_id", "reward") if k in row} | success
    if dialogue.last_reply_only:
        *prompt, reply = dialogue.messages
        return {"prompt": prompt, "completion": [reply], **_tools(dialogue.tools), **facts}
    return {"messages": list(dialogue.messages), **_tools(dialogue.tools), **facts}


def _preference_row(told: Preference) -> Row:
    shared = 0
    for one, other in zip(told.chosen[:-1], told.rejected[:-1], strict=False):
        if one != other:
            break
        shared += 1
    sides = {"chosen": list(told.chosen[shared:]), "rejected": list(told.rejected[shared:])}
    prompt = {"prompt": list(told.chosen[:shared])} if shared else {}
    return {**prompt, **sides, **_tools(told.tools), "task_id": told.group}


def _success_against_failure(records: Sequence[Record]) -> Iterator[Row]:
    """Where two episodes of a task part at a reply, the two replies; else the two dialogues."""
    tasks: dict[str, dict[bool, list[Dialogue]]] = defaultdict(lambda: {True: [], False: []})
    for place, row in records:
        dialogue = read_dialogue(place, row)
        tasks[_task_id(row, dialogue.messages)][bool(dialogue.success)].append(dialogue)
    for name, told in tasks.items():
        for won, lost in product(told[True], told[False]):
            chosen, rejected = _parted(won.messages, lost.messages)
            if chosen == rejected:
                continue
            pair = Preference(chosen, rejected, won.tools or lost.tools, name)
            yield _preference_row(pair)


def _parted(
    won: tuple[Message, ...], lost: tuple[Message, ...]
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    for place, (one, other) in enumerate(zip(won, lost, strict=False)):
        if one != other:
            if one["role"] == other["role"] == "assistant" and place > 0:
                return won[: place + 1], lost[: place + 1]
            break
    return won, lost


def _episode(place: str, row: Mapping[str, Any]) -> Row:
    """One trajectory: a turn per reply, the reward with the last."""
    given = row.get("traj") or row["messages"]
    messages = merge_assistants(read_messages(place, given))
    tools = read_dialogue(place, row).tools
    if tools:  # as an environment shows them
        messages = with_system(messages, tool_prompt(tools))
    replies = [k for k, m in enumerate(messages) if m["role"] == "assistant"]
    turns = []
    for index, (k, end) in enumerate(zip(replies, [*replies[1:], len(messages)], strict=True)):
        turns.append(
            Turn(
                index=index,
                messages=tuple(messages[:k]),
                action=parse_action(messages[k]["content"], tools),
                observation=tuple(messages[k + 1 : end]),
                rewards={"success": float(row["reward"])} if k == replies[-1] else {},
            )
        )
    initial = tuple(messages[: replies[0]])
    return Trajectory(
        task_id=_task_id(row, initial),
        kind=str(row.get("kind", "imported")),
        group=str(row.get("group", "imported")),
        goal=next((m["content"] for m in initial if m["role"] == "user"), ""),
        initial_messages=initial,
        tools=tools,
        turns=tuple(turns),
        terminated=True,
        success=row["reward"] > 0,
        max_turns=len(turns),
    ).to_json()


def _task_id(row: Mapping[str, Any], messages: Sequence[Message]) -> str:
    """The row's task, else what the user asked first."""
    if row.get("task_id") is not None:
        return str(row["task_id"])
    return json.dumps(next((m["content"] for m in messages if m["role"] == "user"), ""))


def _tools(tools: Sequence[Mapping[str, Any]]) -> Row:
    return {"tools": [dict(tool) for tool in tools]} if tools else {}
