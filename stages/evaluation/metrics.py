"""Figures of a set of finished episodes: success, return, and the ills the project exists to cure.

Every figure is a plain number, ``None`` where it is undefined (no error ever happened, say), so
that the whole dictionary is JSON-able and equal for equal episodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from stages.interaction.rewards.functions import babble, repeated, said
from stages.interaction.trajectory import Trajectory, Turn

LONGEST_CYCLE = 3
"""Cycles of up to this many different calls count as loops."""
SICK = "SickSimulator"
"""How the error of an episode begins that a simulated user or judge spoiled."""
SAME_CALL_LOOP = 3
"""The same call this many times in an episode counts as a loop."""


class Weighing(Protocol):
    """What a reward mix offers: raw components in, weighted ones (success = 1) out."""

    def weighted(self, trajectory: Trajectory) -> list[dict[str, float]]:
        """Weighted components of each turn."""
        ...

    def totals(self, trajectory: Trajectory) -> list[float]:
        """One reward per turn."""
        ...

    def capped(self, trajectory: Trajectory) -> Mapping[str, float]:
        """What components lost to caps of their own."""
        ...


def episode_metrics(
    trajectories: Sequence[Trajectory],
    mix: Weighing,
    *,
    seen_groups: Collection[str] = (),
) -> dict[str, Any]:
    """All figures of a set of episodes.

    Rates over turns: ``invalid_actions``, ``repeated_calls``. Rates over episodes: ``success``,
    ``out_of_budget``, ``loops``. ``babble`` is the mean share of a reply that it has said before,
    ``template`` see ``same_words``. ``return`` and ``components`` are means per episode in units
    where success is 1. ``dropped`` counts the episodes that failed by the machinery's fault;
    they take part in nothing else; ``dropped_at`` counts them by the last action,
    ``sick_simulator`` says how many of them a model that plays the user or the judge spoiled, and
    ``simulator_slips`` is the share of a simulated user's replies that took more than one try
    (None without one). ``new_segments`` is how often a program rewrote its history. ``capped`` is,
    for each component with a cap of its own that bit, the mean it lost per episode.
    ``seen_groups``: the groups of the training tasks; without them ``seen`` and ``unseen`` are
    None.
    """
    played = [t for t in trajectories if t.error is None]
    turns = [turn for t in played for turn in t.turns]
    return {
        "success": _mean(t.success for t in played),
        "return": _mean(sum(mix.totals(t)) for t in played),
        "turns": _mean(len(t.turns) for t in played),
        "episodes": len(played),
        "dropped": len(trajectories) - len(played),
        "dropped_at": dropped_at(trajectories),
        "sick_simulator": sum((t.error or "").startswith(SICK) for t in trajectories),
        "simulator_slips": _mean(u["tries"] > 1 for t in turns if (u := t.info.get("user"))),
        "components": _components(mix.weighted(t) for t in played),
        "capped": _components([mix.capped(t)] for t in played),
        "out_of_budget": _mean(t.out_of_budget for t in played),
        "invalid_actions": _mean(is_invalid(turn) for turn in turns),
        "repeated_calls": _mean(flag for t in played for flag in repeats(t)),
        "loops": _mean(has_loop(t) for t in played),
        "babble": _mean(babble(turn, ()) for turn in turns),
        "template": same_words(played),
        "new_segments": _mean(sum(map(starts_segment, t.turns)) for t in played),
        "same_error_again": _mean(flag for t in played for flag in errors_met_again(t)),
        "recovery_after_error": _mean(t.success for t in played if any(errors(t))),
        "success_by_turns": _by(played, lambda t: len(t.turns)),
        "kinds": _by(played, lambda t: t.kind),
        "groups": _by(played, lambda t: t.group),
        **_seen_and_unseen(played, seen_groups),
    }


def dropped_at(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """How many episodes the machinery dropped at each last action, by its name."""
    return dict(sorted(Counter(t.dropped_at or "start" for t in trajectories if t.error).items()))


def is_invalid(turn: Turn) -> bool:
    """True where the action could not be carried out: malformed, empty or a wrong call."""
    flagged = turn.info.get("invalid") or turn.info.get("malformed")
    paid = any(turn.rewards.get(name, 0.0) > 0 for name in ("invalid", "format"))
    return bool(turn.action.error or flagged or paid)


def error_text(turn: Turn) -> str | None:
    """What went wrong in this turn, in words; None if nothing did."""
    text = turn.action.error or turn.info.get("tool_error")
    if text or not is_invalid(turn):
        return str(text) if text else None
    return " ".join(str(message.get("content")) for message in turn.observation) or "invalid"


def errors(trajectory: Trajectory) -> list[str]:
    """The error texts of an episode in their order."""
    return [text for turn in trajectory.turns if (text := error_text(turn)) is not None]


def errors_met_again(trajectory: Trajectory) -> list[bool]:
    """For each different error of an episode: did the same one happen again later?"""
    return [count > 1 for count in Counter(errors(trajectory)).values()]


def starts_segment(turn: Turn) -> bool:
    """True where the conversation after a turn is another one than before it, continued."""
    return bool(turn.info.get("new_segment"))


def repeats(trajectory: Trajectory) -> list[bool]:
    """For each turn: does it do again what an earlier turn of the episode did?"""
    turns = trajectory.turns
    return [bool(repeated(turn, turns[:index])) for index, turn in enumerate(turns)]


def has_loop(trajectory: Trajectory) -> bool:
    """True where one call is made three times, or a series of 2-3 calls twice in a row."""
    deeds = [said(turn) for turn in trajectory.turns]
    if any(count >= SAME_CALL_LOOP for count in Counter(deeds).values()):
        return True
    return any(
        deeds[start : start + size] == deeds[start + size : start + 2 * size]
        for size in range(2, LONGEST_CYCLE + 1)
        for start in range(len(deeds) - 2 * size + 1)
    )


def same_words(played: Sequence[Trajectory]) -> float | None:
    """How often two episodes with different goals say, in all turns, word for word the same.

    A share of all pairs of episodes with different goals; None if there is no such pair. An actor
    that no longer looks at its task comes near 1 (template collapse, RAGEN, arXiv:2504.20073).
    """
    pairs = _pairs(Counter(t.goal for t in played))
    if not pairs:
        return None
    goals: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for t in played:
        goals[tuple(words_of(turn) for turn in t.turns)][t.goal] += 1
    return sum(map(_pairs, goals.values())) / pairs


def words_of(turn: Turn) -> str:
    """What was said, whatever the spaces."""
    return " ".join(turn.action.text.split())


def _pairs(counts: Mapping[str, int]) -> int:
    """Pairs of items that stand under different names."""
    total = sum(counts.values())
    return (total * total - sum(n * n for n in counts.values())) // 2


def _components(episodes: Iterable[Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """Mean per episode of each component's sum over the rows."""
    sums: dict[str, float] = defaultdict(float)
    count = 0
    for rows in episodes:
        count += 1
        for name, value in (item for row in rows for item in row.items()):
            sums[name] += value
    return {name: sums[name] / count for name in sorted(sums)}


def _by(
    played: Iterable[Trajectory], label: Callable[[Trajectory], Any]
) -> dict[str, dict[str, Any]]:
    """Success and number of episodes for each label, sorted by label."""
    parts: dict[Any, list[Trajectory]] = defaultdict(list)
    for trajectory in played:
        parts[label(trajectory)].append(trajectory)
    return {str(name): success_of(parts[name]) for name in sorted(parts)}


def success_of(played: Sequence[Trajectory]) -> dict[str, Any]:
    """``{"success", "episodes"}`` of some episodes; success is None if there are none."""
    return {"success": _mean(t.success for t in played), "episodes": len(played)}


def _seen_and_unseen(
    played: Sequence[Trajectory], seen_groups: Collection[str]
) -> Mapping[str, dict[str, Any] | None]:
    if not seen_groups:
        return {"seen": None, "unseen": None}
    return {
        "seen": success_of([t for t in played if t.group in seen_groups]),
        "unseen": success_of([t for t in played if t.group not in seen_groups]),
    }


def _mean(values: Iterable[float]) -> float | None:
    """The mean, or None of nothing."""
    known = [float(v) for v in values]
    return sum(known) / len(known) if known else None
