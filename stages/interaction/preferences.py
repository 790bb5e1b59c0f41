"""Preference pairs from play: several replies to the same state, ranked by what came of them.

Play each task several times; where episodes pass through the same state with different replies,
the replies' mean outcomes rank them. No judge is needed, and both replies are the actor's own.

An outcome is a discounted return: what a reply brought at once and soon after says more of it
than the luck of many later turns. In the quickstart, ranking by the final success alone labels
so much at random that a reward model cannot learn it (held-out accuracy 0.83 against 0.90).
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

LEAST_MARGIN = 1e-6
"""Equal outcomes make no pair, whatever the recipe allows."""
PAIRS_PER_STATE = 2
"""Best against worst, second best against second worst."""


def collect_preferences(
    trajectories: Sequence[Trajectory],
    *,
    min_margin: float,
    discount: float = 0.5,
    mix: RewardMix | None = None,
) -> list[dict[str, Any]]:
    """Rows ``{prompt, chosen, rejected, task_id, turn, margin, support}`` of finished episodes.

    Replies to equal states of the same task are ranked by the mean return from there on under
    ``mix`` (success = 1), a reward k turns later counting ``discount`` to the power of k; a pair
    needs a difference of ``min_margin``. ``support`` is the number of episodes behind the less
    tried reply. No turn index gives more than twice its even share, so that last turns do not
    drown the others.
    """
    states = _states(trajectories, mix or RewardMix(), discount)
    pairs = (_ranked_pairs(state, min_margin) for state in states)
    return _balanced(list(chain.from_iterable(pairs)))


@dataclass
class _State:
    task_id: str
    turn: int
    messages: tuple[Message, ...]
    replies: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Reply to the returns it led to."""


def _states(
    trajectories: Sequence[Trajectory], mix: RewardMix, discount: float
) -> Iterator[_State]:
    """Every state that was met, in order of first meeting, with its replies' outcomes."""
    states: dict[tuple[str, str], _State] = {}
    for trajectory in trajectories:
        if trajectory.error or not trajectory.terminated:
            continue
        to_go = returns_to_go(mix.totals(trajectory), discount)
        for turn, value in zip(trajectory.turns, to_go, strict=True):
            if not (text := turn.action.text.strip()):
                continue  # an empty reply teaches a reward model nothing, and its row is refused
            key = (trajectory.task_id, json.dumps(turn.messages, sort_keys=True))
            if key not in states:
                states[key] = _State(trajectory.task_id, turn.index, turn.messages)
            states[key].replies[text].append(value)
    yield from states.values()


def returns_to_go(rewards: Sequence[float], discount: float) -> list[float]:
    """Σ_k γ^k r_{t+k} of every turn t."""
    total, sums = 0.0, []
    for reward in reversed(rewards):
        total = reward + discount * total
        sums.append(total)
    return sums[::-1]


def _ranked_pairs(state: _State, min_margin: float) -> Iterator[dict[str, Any]]:
    """The clearest pairs of one state: from the outside of its ranking inwards."""
    ranked = sorted((fmean(returns), text) for text, returns in state.replies.items())
    for place in range(min(PAIRS_PER_STATE, len(ranked) // 2)):
        (worse, worse_text), (better, better_text) = ranked[place], ranked[-1 - place]
        if better - worse < max(min_margin, LEAST_MARGIN):
            continue
        yield {
            "prompt": [dict(message) for message in state.messages],
            "chosen": [{"role": "assistant", "content": better_text}],
            "rejected": [{"role": "assistant", "content": worse_text}],
            "task_id": state.task_id,
            "turn": state.turn,
            "margin": better - worse,
            "support": min(len(state.replies[text]) for text in (better_text, worse_text)),
        }


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
