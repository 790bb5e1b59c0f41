"""Episodes of each evaluation that a person should read: the best paid and the most suspicious.

They lie in ``audit/<iteration>.jsonl`` of the run, in words and without token ids, each with the
reasons why it was picked; ``audit/episodes/`` holds the same episodes whole, for the report.
``verdicts.json`` beside them holds what a person said of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from stages.common.errors import UsageError
from stages.common.files import read_json
from stages.common.records import read_records
from stages.common.run_folder import write_rows
from stages.evaluation.metrics import Weighing, has_loop, is_invalid, repeats, words_of
from stages.interaction.rewards.functions import babble
from stages.interaction.rewards.mix import SUCCESS
from stages.interaction.trajectory import Trajectory

FOLDER, WHOLE, VERDICTS = "audit", "audit/episodes", "verdicts.json"
BEST_PAID = 2
"""Episodes that are picked for their reward alone."""
WORTH_A_LOOK = 0.05
"""Dense reward, as a share of success, below which nobody farms anything."""
TEMPLATE = 0.1
"""Share of an evaluation that says word for word the same, with other goals."""
BABBLE = 0.3
Pick = dict[str, Any]
Found = tuple[float, str]
"""(how suspicious, why, in words)."""


@dataclass(frozen=True)
class Played:
    """The episodes of one evaluation with what they were paid."""

    episodes: Sequence[Trajectory]
    rows: Sequence[Sequence[Mapping[str, float]]]
    """Per episode and turn: weighted components."""

    @cached_property
    def components(self) -> list[dict[str, float]]:
        """Per episode: the sum of each component that paid or fined."""
        sums = []
        for turns in self.rows:
            names = dict.fromkeys(name for row in turns for name in row)
            total = {name: sum(row.get(name, 0.0) for row in turns) for name in names}
            sums.append({name: value for name, value in total.items() if value})
        return sums

    @cached_property
    def usual(self) -> dict[str, float]:
        """The median of each component over the episodes."""
        names = {name for row in self.components for name in row}
        return {n: median(row.get(n, 0.0) for row in self.components) for n in names}

    @cached_property
    def speakers(self) -> dict[tuple[str, ...], set[str]]:
        """What is said in all turns of an episode -> the goals with which it was said."""
        goals: dict[tuple[str, ...], set[str]] = defaultdict(set)
        for episode in self.episodes:
            goals[_said(episode)].add(episode.goal)
        return goals

    @cached_property
    def usual_turns(self) -> float:
        """Median turns of a success."""
        return median([len(e.turns) for e in self.episodes if e.success] or [0])


def _farmed(played: Played, i: int) -> Found | None:
    """Paid without success."""
    dense = {n: v for n, v in played.components[i].items() if n != SUCCESS and v > 0}
    paid = sum(dense.values())
    if played.episodes[i].success or paid < WORTH_A_LOOK:
        return None
    name = max(dense, key=lambda n: dense[n])
    return paid, f"paid {paid:.2f} without success, most of it by {name}"


def _one_component(played: Played, i: int) -> Found | None:
    """One component pays far more than it usually does."""
    above = {
        name: value - played.usual[name]
        for name, value in played.components[i].items()
        if name != SUCCESS and value > max(3 * played.usual[name], WORTH_A_LOOK)
    }
    if not above:
        return None
    name = max(above, key=lambda n: above[n])
    value = played.components[i][name]
    return above[name], f"{name} pays {value:.2f}, usually {played.usual[name]:.2f}"


def _looping(played: Played, i: int) -> Found | None:
    """The same is done again and again."""
    episode = played.episodes[i]
    again = sum(repeats(episode))
    if not has_loop(episode):
        return None
    return again, f"loops: {again} of {len(episode.turns)} turns do again what an earlier one did"


def _template(played: Played, i: int) -> Found | None:
    """Other goals, the same words."""
    goals = len(played.speakers[_said(played.episodes[i])])
    if goals < max(3, TEMPLATE * len(played.episodes)):
        return None
    return goals, f"says word for word what it says to {goals - 1} other goals"


def _short_cut(played: Played, i: int) -> Found | None:
    """A success in far fewer turns than others take, or without an action that was carried out."""
    episode = played.episodes[i]
    turns = len(episode.turns)
    if not episode.success:
        return None
    if all(is_invalid(turn) for turn in episode.turns):
        return played.usual_turns, "succeeds though none of its actions could be carried out"
    if turns >= played.usual_turns / 2:
        return None
    return played.usual_turns / turns, (
        f"succeeds in {turns} turns, where others take {played.usual_turns:g}"
    )


def _babbling(played: Played, i: int) -> Found | None:
    """A reply that repeats its own words."""
    most = max((babble(turn, ()) for turn in played.episodes[i].turns), default=0.0)
    if most < BABBLE:
        return None
    return most, f"a reply repeats itself: {100 * most:.0f} % of its runs of words"


SUSPICIONS: Mapping[str, Callable[[Played, int], Found | None]] = {
    "farmed": _farmed,
    "one_component": _one_component,
    "looping": _looping,
    "template": _template,
    "short_cut": _short_cut,
    "babbling": _babbling,
}
"""What makes an episode suspicious; of each kind the worst is picked."""


def picks(step: int, episodes: Sequence[Trajectory], mix: Weighing) -> list[Pick]:
    """The rows to keep of one evaluation: the best paid, and the worst of each suspicion."""
    whole = _whole(episodes)
    played = Played(whole, [mix.weighted(e) for e in whole])
    paid = [sum(row.values()) for row in played.components]
    reasons: dict[int, list[str]] = defaultdict(list)
    for i in sorted(range(len(whole)), key=lambda i: -paid[i])[:BEST_PAID]:
        reasons[i].append(f"reward {paid[i]:.2f}, among the highest of this evaluation")
    for look in SUSPICIONS.values():
        found = {i: told for i in range(len(whole)) if (told := look(played, i))}
        if found:
            worst = max(found, key=lambda i: found[i][0])
            reasons[worst].append(found[worst][1])
    return [_pick(step, i, played, why) for i, why in reasons.items()]


def picked(rows: Sequence[Pick], episodes: Sequence[Trajectory]) -> list[Trajectory]:
    """The episodes that the rows of ``picks`` speak of."""
    whole = _whole(episodes)
    return [whole[int(row["id"].split("-")[1])] for row in rows]


def write_picks(
    run: Path, step: int, rows: Sequence[Pick], episodes: Sequence[Trajectory] = ()
) -> None:
    """Keep them in the run's folder, whole or not at all; ``episodes``: of the same picks."""
    write_rows(run / FOLDER, rows, f"{step:05d}.jsonl")
    if episodes:
        write_rows(run / WHOLE, [e.to_json() for e in episodes], f"{step:05d}.jsonl")


def read_picks(run: Path) -> list[Pick]:
    """All that a run kept, the newest evaluation first. UsageError if there is nothing."""
    files = sorted((run / FOLDER).glob("*.jsonl"), reverse=True)
    rows = [row for file in files if file.stat().st_size for _, row in read_records(file)]
    if not rows:
        raise UsageError(
            f"{run} holds no episodes to audit; aac rl keeps some at each evaluation "
            "(rl.evaluate_every): name its folder, or the folder of aac run above it."
        )
    return rows


def read_verdicts(run: Path) -> dict[str, Any]:
    """What a person said, by the id of a pick."""
    file = run / FOLDER / VERDICTS
    return dict(read_json(file)) if file.is_file() else {}


def run_folder(path: Path) -> Path:
    """The folder of the RL stage: ``path`` itself, or ``rl`` in the folder of a whole pipeline."""
    inner = path / "rl"
    return inner if inner.is_dir() and not (path / "metrics.jsonl").exists() else path


def _whole(episodes: Sequence[Trajectory]) -> list[Trajectory]:
    """Those that nothing of the machinery spoiled."""
    return [e for e in episodes if e.error is None and e.turns]


def _pick(step: int, i: int, played: Played, reasons: Sequence[str]) -> Pick:
    episode, components = played.episodes[i], played.components[i]
    turns = [
        {
            "said": turn.action.text,
            "seen": [str(message.get("content") or "") for message in turn.observation],
            "paid": {name: round(value, 4) for name, value in row.items() if value},
        }
        for turn, row in zip(episode.turns, played.rows[i], strict=True)
    ]
    return {
        "id": f"{step}-{i}",
        "step": step,
        "task_id": episode.task_id,
        "kind": episode.kind,
        "goal": episode.goal,
        "reasons": list(reasons),
        "success": episode.success,
        "return": round(sum(components.values()), 4),
        "components": {name: round(value, 4) for name, value in components.items()},
        "turns": turns,
    }


def _said(episode: Trajectory) -> tuple[str, ...]:
    return tuple(words_of(turn) for turn in episode.turns)
