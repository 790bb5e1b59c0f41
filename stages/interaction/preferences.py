"""Preference pairs from play: several replies to the same state, ranked by what came of them.

Play each task several times; where episodes pass through the same state with different replies,
the replies' mean outcomes rank them. No judge is needed, and both replies are the actor's own.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean
from typing import Any

from stages.interaction.rewards.mix import RewardMix
from stages.interaction.trajectory import Message, Trajectory

MIN_RETURN_MARGIN = 0.05
"""Between replies of equal success, returns (success = 1) must differ by this much."""
PAIRS_PER_STATE = 2
"""Best against worst, second best against second worst."""


def collect_preferences(
    trajectories: Sequence[Trajectory],
    *,
    min_margin: float,
    mix: RewardMix | None = None,
) -> list[dict[str, Any]]:
    """Rows ``{prompt, chosen, rejected, task_id, turn, margin, support}`` of finished episodes.

    Replies to equal states of the same task are ranked by mean success of the episodes through
    them (at least ``min_margin`` apart), and where that is equal by mean return from there on
    under ``mix``. ``support`` is the number of episodes behind the less tried reply. No turn
    index gives more than twice its even share, so that last turns do not drown the others.
    """
    states = _states(trajectories, mix or RewardMix())
    pairs = (_ranked_pairs(state, min_margin) for state in states)
    return _balanced(list(chain.from_iterable(pairs)))


@dataclass
class _Reply:
    successes: list[float] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)

    @property
    def outcome(self) -> tuple[float, float]:
        return fmean(self.successes), fmean(self.returns)


@dataclass
class _State:
    task_id: str
    turn: int
    messages: tuple[Message, ...]
    replies: dict[str, _Reply] = field(default_factory=lambda: defaultdict(_Reply))


def _states(trajectories: Sequence[Trajectory], mix: RewardMix) -> Iterator[_State]:
    """Every state that was met, in order of first meeting, with its replies' outcomes."""
    states: dict[tuple[str, str], _State] = {}
    for trajectory in trajectories:
        if trajectory.error or not trajectory.terminated:
            continue
        to_go = _returns(mix.totals(trajectory))
        for turn, value in zip(trajectory.turns, to_go, strict=True):
            if not (text := turn.action.text.strip()):
                continue  # an empty reply teaches a reward model nothing, and its row is refused
            key = (trajectory.task_id, json.dumps(turn.messages, sort_keys=True))
            if key not in states:
                states[key] = _State(trajectory.task_id, turn.index, turn.messages)
            reply = states[key].replies[text]
            reply.successes.append(float(trajectory.success))
            reply.returns.append(value)
    yield from states.values()


def _returns(rewards: Sequence[float]) -> list[float]:
    total, sums = 0.0, []
    for reward in reversed(rewards):
        total += reward
        sums.append(total)
    return sums[::-1]


def _ranked_pairs(state: _State, min_margin: float) -> Iterator[dict[str, Any]]:
    """The clearest pairs of one state: from the outside of its ranking inwards."""
    ranked = sorted(state.replies.items(), key=lambda item: (*item[1].outcome, item[0]))
    for place in range(min(PAIRS_PER_STATE, len(ranked) // 2)):
        (worse_text, worse), (better_text, better) = ranked[place], ranked[-1 - place]
        margin = _margin(better, worse, min_margin)
        if margin is None:
            continue
        yield {
            "prompt": [dict(message) for message in state.messages],
            "chosen": [{"role": "assistant", "content": better_text}],
            "rejected": [{"role": "assistant", "content": worse_text}],
            "task_id": state.task_id,
            "turn": state.turn,
            "margin": margin,
            "support": min(len(better.successes), len(worse.successes)),
        }


def _margin(better: _Reply, worse: _Reply, min_margin: float) -> float | None:
    (success, value), (less_success, less_value) = better.outcome, worse.outcome
    if success != less_success:
        margin = success - less_success
        return margin if margin >= min_margin else None
    margin = value - less_value
    return margin if margin >= MIN_RETURN_MARGIN else None


def _balanced(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most twice the even share per turn index, the clearest first; otherwise in order."""
    by_turn: dict[int, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        by_turn[row["turn"]].append(number)
    most = -(-2 * len(rows) // max(1, len(by_turn)))
    kept: list[int] = []
    for numbers in by_turn.values():
        numbers.sort(key=lambda n: (-rows[n]["margin"], -rows[n]["support"], n))
        kept += numbers[:most]
    return [rows[number] for number in sorted(kept)]
