"""Reward functions every environment shares: raw indicators of a turn, weighed by ``mix``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stages.interaction.trajectory import Turn

RewardFunction = Callable[[Turn, Sequence[Turn]], float]
"""(the finished turn, the turns before it) -> raw component; 0 is left out of the record."""


def malformed(turn: Turn, earlier: Sequence[Turn]) -> float:
    """1 for an empty reply, a call that does not parse, or one its environment calls malformed.

    Plain talk parses; an environment where every reply must hold a call says ``malformed`` in
    the step's ``info``.
    """
    action = turn.action
    bad = action.error is not None or not action.text.strip() or turn.info.get("malformed")
    return float(bool(bad))


def repeated(turn: Turn, earlier: Sequence[Turn]) -> float:
    """1 if a call was already made earlier in the episode (or, without calls, the same text)."""
    now = said(turn)
    return float(any(now & said(past) for past in earlier))


def said(turn: Turn) -> frozenset[str]:
    """What a turn did, in comparable form: its calls' keys, or the words of a plain reply."""
    if turn.action.calls:
        return frozenset(call.key() for call in turn.action.calls)
    text = " ".join(turn.action.text.split())
    return frozenset([text] if text else [])


REWARD_FUNCTIONS: Mapping[str, RewardFunction] = {"format": malformed, "repeated": repeated}
"""By the component's name in ``Turn.rewards``."""
