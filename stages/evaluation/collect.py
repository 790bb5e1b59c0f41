"""``aac collect``: rows for the three stages, as JSON lines that ``aac sft``, ``aac train-reward``
and ``aac rl --offline`` read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from stages.common.console import show
from stages.common.errors import UsageError
from stages.common.files import write_lines
from stages.common.manifest import fingerprint
from stages.common.messages import UNLEARNED
from stages.common.seeding import set_threads
from stages.evaluation.run import Reviewers, arena_of, no_reviewers, player
from stages.interaction.arena import kept
from stages.interaction.environments.base import Task
from stages.interaction.player import LoadedActor
from stages.interaction.preferences import collect_preferences
from stages.interaction.trajectory import SLIP, Message, Trajectory, Turn
from stages.recipe.models import Recipe

Row = Mapping[str, Any]


def collect_command(
    recipe: Recipe,
    kind: str,
    *,
    actor: str | None = None,
    output: Path,
    reviewers: Reviewers = no_reviewers,
) -> dict[str, Any]:
    """Collect ``demonstrations`` (of the environment's expert, or of ``actor``), ``preferences``
    (between replies of ``actor``) or ``experience`` (whole episodes of ``actor``, a pool) and write
    them; returns what was written.

    Raises UsageError for an unknown kind, one that needs an actor without it, or no rows at all.
    """
    if kind not in KINDS:
        raise UsageError(f"cannot collect {kind!r}; expected one of {', '.join(KINDS)}.")
    set_threads(recipe.threads)
    rows, episodes = KINDS[kind](recipe, actor, reviewers)
    if not rows:
        raise UsageError(
            f"{len(episodes)} episodes gave no {kind}; collect from more tasks, or lower"
            " reward.min_margin."
        )
    write_lines(output, rows)
    won = sum(t.success for t in episodes) / len(episodes)
    show(f"{len(rows)} {kind} from {len(episodes)} episodes ({won:.0%} successful): {output}")
    return {
        "kind": kind,
        "output": str(output),
        "rows": len(rows),
        "episodes": len(episodes),
        "success": won,
        "fingerprint": fingerprint(rows),
    }


def play_actor(
    recipe: Recipe, actor: str, *, each: int, reviewers: Reviewers = no_reviewers
) -> tuple[list[Trajectory], LoadedActor]:
    """``each`` episodes of every task of ``recipe.reward``, those that were played, and who did."""
    loaded = player(recipe, actor, reviewers)
    tasks = arena_of(recipe).tasks("train", recipe.reward.tasks, recipe.seed)
    repeated = [task for task in tasks for _ in range(each)]
    return _played(_sampled(recipe, loaded, repeated)), loaded


def dialogue_rows(trajectory: Trajectory) -> list[Row]:
    """An episode as conversational rows whose prompts are the states the actor was shown.

    While each state extends the one before, all turns are one ``messages`` row, every reply
    learned except those of weight 0, an expert's slips; what comes after something has left the
    window is a ``prompt``/``completion`` row per turn.
    """
    facts = {"task_id": trajectory.task_id, "kind": trajectory.kind, "success": trajectory.success}
    turns = trajectory.turns
    whole = next((i for i in range(1, len(turns)) if not _extends(turns[i - 1], turns[i])), None)
    first = turns[:whole]
    slips = [bool(turn.info.get(SLIP)) for turn in turns]
    messages = [*first[-1].messages, _reply(first[-1])]
    for turn, slip in zip(first, slips, strict=False):
        if slip:
            messages[len(turn.messages)] = messages[len(turn.messages)] | UNLEARNED
    rows: list[Row] = [] if all(slips[: len(first)]) else [{"messages": messages, **facts}]
    for turn, slip in list(zip(turns, slips, strict=True))[len(first) :]:
        if not slip:
            rows.append({"prompt": list(turn.messages), "completion": [_reply(turn)], **facts})
    return rows


def _demonstrations(
    recipe: Recipe, actor: str | None, reviewers: Reviewers
) -> tuple[list[Row], list[Trajectory]]:
    arena = arena_of(recipe)
    tasks = _cycled(arena.tasks("train", recipe.sft.demonstrations, recipe.seed), recipe)
    if actor is None:
        # Each play of a task gets mistakes of its own, as the episode's number is in the seed.
        episodes = arena.demonstrate(tasks, seed=recipe.seed)
    else:
        episodes = _sampled(recipe, player(recipe, actor, reviewers), tasks)
    kept = [t for t in _played(episodes) if t.success or not recipe.sft.only_successful]
    return [row for t in kept for row in dialogue_rows(t)], _played(episodes)


def _preferences(
    recipe: Recipe, actor: str | None, reviewers: Reviewers
) -> tuple[list[Row], list[Trajectory]]:
    if actor is None:
        raise UsageError("preferences are collected between an actor's replies; give --actor.")
    options = recipe.reward
    episodes, _ = play_actor(recipe, actor, each=options.samples_per_task, reviewers=reviewers)
    rows = collect_preferences(
        episodes,
        min_margin=options.min_margin,
        discount=options.discount,
        mix=arena_of(recipe).mix,
    )
    return list(rows), episodes


def _experience(
    recipe: Recipe, actor: str | None, reviewers: Reviewers
) -> tuple[list[Row], list[Trajectory]]:
    """As stage 3 plays: at its temperature, with the log-probs, on tasks of the training split."""
    if actor is None:
        raise UsageError("experience is an actor's own; give --actor.")
    rl, key = recipe.rl, (recipe.seed, 0)
    tasks = arena_of(recipe).practice(rl.offline.episodes, rl.episodes_per_task, key)
    loaded = player(recipe, actor, reviewers, sampling=rl.actor)
    episodes = kept(_sampled(recipe, loaded, tasks), blame=UsageError)
    return [episode.to_json() for episode in episodes], episodes


Collector = Callable[[Recipe, str | None, Reviewers], tuple[list[Row], list[Trajectory]]]
KINDS: Mapping[str, Collector] = {
    "demonstrations": _demonstrations,
    "preferences": _preferences,
    "experience": _experience,
}
"""What can be collected: rows, and the episodes they come from."""


def _cycled(tasks: Sequence[Task], recipe: Recipe) -> list[Task]:
    """A small file of questions is gone through again and again."""
    return list(islice(cycle(tasks), recipe.sft.demonstrations))


def _sampled(recipe: Recipe, loaded: LoadedActor, tasks: Sequence[Task]) -> list[Trajectory]:
    arena = arena_of(recipe).served(loaded.state, loaded.reviewer)
    key = (recipe.seed, 0)
    return arena.play(tasks, loaded.policy, key=key, count_tokens=loaded.count_tokens)


def _played(episodes: Sequence[Trajectory]) -> list[Trajectory]:
    return [t for t in episodes if t.error is None and t.turns]


def _extends(before: Turn, after: Turn) -> bool:
    start = [*before.messages, _reply(before)]
    return list(after.messages[: len(start)]) == start


def _reply(turn: Turn) -> Message:
    return {"role": "assistant", "content": turn.action.text}
