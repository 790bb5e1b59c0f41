"""``aac diff``: two actors on the same held-out tasks with the same random keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from stages.common.console import show
from stages.common.live import printable
from stages.common.seeding import set_threads
from stages.common.titled import TitledTable
from stages.evaluation.duel import Divergence, divergences, duel, paired
from stages.evaluation.held_out import HeldOut
from stages.evaluation.run import Reviewers, held_out, no_reviewers, player
from stages.evaluation.tables import DASH, plain_table
from stages.interaction.player import LoadedActor
from stages.interaction.states.window import cut_middle
from stages.interaction.trajectory import Trajectory
from stages.recipe.models import Recipe

LONGEST_SHOWN = 400
"""Characters of an action or a result that are shown."""


def diff_command(
    recipe: Recipe,
    first: str,
    second: str,
    *,
    greedy: bool,
    shown: int,
    reviewers: Reviewers = no_reviewers,
) -> dict[str, Any]:
    """Play both actors, show the counts, and the first diverging turn of ``shown`` episodes.

    ``reviewers`` loads the critic of an actor whose state shows reviews.

    Returns what ``--json`` prints: the figures of ``duel``, and ``divergences``: the task, the
    turn, and what each did in it.
    """
    set_threads(recipe.threads)
    tasks = held_out(recipe)
    actors = (player(recipe, folder, reviewers) for folder in (first, second))
    pairs = paired(*(_played(tasks, actor, greedy=greedy) for actor in actors))
    found = divergences(pairs)
    result = {
        "a": first,
        "b": second,
        "split": recipe.evaluation.split,
        "seed": tasks.seed,
        "greedy": greedy,
        "dropped": len(tasks.tasks) - len(pairs),
        **duel(pairs),
        "diverging": len(found),
        "divergences": [_told(divergence) for divergence in found[:shown]],
    }
    show(counts_table(result))
    for row in result["divergences"]:
        show(divergence_table(row))
    return result


def counts_table(result: Mapping[str, Any]) -> Table:
    """Won, lost, both, neither, in all and per kind of task; the difference below."""
    how = "greedy" if result["greedy"] else "sampled"
    title = f"A = {result['a']} against B = {result['b']} ({how}, {result['split']} tasks)"
    table = plain_table(title, "tasks", "all", "only A", "only B", "both", "neither")
    for kind, row in result["kinds"].items():
        table.add_row(kind, *_cells(row))
    table.add_section()
    table.add_row("all", *_cells(result))
    mean, low, high = (100 * result["difference"][name] for name in ("mean", "low", "high"))
    table.caption = (
        f"success of A minus success of B: {mean:+.1f} points, 95 % interval {low:+.1f} to "
        f"{high:+.1f} (Newcombe); exact McNemar p = {result['p']:.3g}\n"
        f"{result['diverging']} of {result['tasks']} episodes diverge"
    )
    return table


def divergence_table(row: Mapping[str, Any]) -> Table:
    """One diverging turn, the two side by side."""
    table = TitledTable(title=f"{row['goal']} ({row['kind']}, turn {row['turn'] + 1})")
    for name in ("a", "b"):
        verdict = "right" if row[name]["success"] else "wrong"
        header = f"{name.upper()}: {verdict} after {row[name]['turns']} turns"
        table.add_column(header, ratio=1, overflow="fold")
    for part in ("action", "observation"):
        table.add_row(*(_shown(row[name][part]) for name in ("a", "b")))
    return table


def _played(tasks: HeldOut, actor: LoadedActor, *, greedy: bool) -> list[Trajectory]:
    """One actor's episodes, in the state it was trained with."""
    served = tasks.served(actor)
    return served.play(actor.policy, greedy=greedy, count_tokens=actor.count_tokens)


def _told(divergence: Divergence) -> dict[str, Any]:
    first, second = divergence.pair
    return {
        "task_id": first.task_id,
        "kind": first.kind,
        "goal": first.goal,
        "turn": divergence.turn,
        "a": _side(first, divergence.turn),
        "b": _side(second, divergence.turn),
    }


def _side(episode: Trajectory, number: int) -> dict[str, Any]:
    """What one did in the diverging turn; empty where its episode had ended by then."""
    turn = episode.turns[number] if number < len(episode.turns) else None
    results = turn.observation if turn else ()
    return {
        "success": episode.success,
        "turns": len(episode.turns),
        "action": turn.action.text if turn else "",
        "observation": "\n".join(str(message.get("content")) for message in results),
    }


def _shown(text: str) -> str:
    return printable(cut_middle(text, LONGEST_SHOWN)) if text else DASH


def _cells(row: Mapping[str, int]) -> list[str]:
    counts = [row[name] for name in ("won", "lost", "both", "neither")]
    return [str(sum(counts)), *map(str, counts)]
