"""``--supervise``: a trained critic, or a ranking it has to beat, watches over the agent (B1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stages.common.errors import UsageError
from stages.common.manifest import read_manifest
from stages.common.run_folder import MANIFEST
from stages.interaction.player import LoadedActor
from stages.interaction.rollout import Reviewer
from stages.interaction.states import StateOptions
from stages.interaction.supervision import (
    Judge,
    Screening,
    SupervisedPolicy,
    by_log_prob,
    by_majority,
    by_reward_model,
)

Supervise = Callable[[LoadedActor], LoadedActor]
Supervisors = Callable[[Path, str], tuple[Judge | None, Reviewer | None]]
"""(rl folder, mode) -> its critic as judge and as reviewer; whoever composes the stages passes it
in, as this room does not know the critic."""

RANKINGS: dict[str, Judge] = {"log-prob": by_log_prob, "majority": by_majority}
"""Judges that need no folder."""
SCREEN = "screen"


@dataclass(frozen=True)
class Supervision:
    """Who watches, and how."""

    by: str
    """Folder of an rl run (its critic) or of a reward run, or one of ``RANKINGS``."""
    mode: str = SCREEN
    """screen: proposals are judged; review: finished turns are, in words that enter the next
    state; both."""
    screening: Screening = field(default_factory=Screening)

    @classmethod
    def of(
        cls, by: str, mode: str, *, retries: int, threshold: float | None, reconsider: bool
    ) -> Supervision:
        """From what a person typed; see ``Screening``."""
        return cls(by, mode, Screening(retries, threshold, reconsider))


def unsupervised(actor: LoadedActor) -> LoadedActor:
    """The agent alone."""
    return actor


def supervised(actor: LoadedActor, wish: Supervision, supervisors: Supervisors) -> LoadedActor:
    """The agent under supervision. UsageError for a supervisor that cannot do it."""
    judge, reviewer = _supervisor(wish, supervisors)
    if judge is not None:
        actor = replace(actor, policy=SupervisedPolicy(actor.policy, judge, wish.screening))
    if reviewer is not None:
        shown = replace(StateOptions.of(actor.state), review="words")
        actor = replace(actor, state=shown, reviewer=reviewer)
    return actor


def supervision_figures(actor: LoadedActor) -> dict[str, Any]:
    """What supervision cost while the actor played; {} for one that was alone."""
    policy = actor.policy
    return {"supervision": policy.cost.figures()} if isinstance(policy, SupervisedPolicy) else {}


def _supervisor(
    wish: Supervision, supervisors: Supervisors
) -> tuple[Judge | None, Reviewer | None]:
    if wish.by in RANKINGS:
        _screens_only(wish, f"the ranking {wish.by}")
        return RANKINGS[wish.by], None
    folder = Path(wish.by)
    if not (folder / MANIFEST).is_file():
        raise UsageError(
            f"--supervise {wish.by} is no finished run; give the folder of an rl run or of a "
            f"reward run, or one of {', '.join(RANKINGS)}."
        )
    stage = read_manifest(folder).stage
    if stage == "rl":
        return supervisors(folder, wish.mode)
    if stage == "reward":
        _screens_only(wish, f"the reward model {folder}")
        from stages.interaction.rewards.scorer import RewardModelScorer

        return by_reward_model(RewardModelScorer(folder)), None
    raise UsageError(
        f"--supervise {wish.by} is the folder of an {stage} run, which has no critic; give that of "
        "an rl run or of a reward run."
    )


def _screens_only(wish: Supervision, who: str) -> None:
    if wish.mode != SCREEN:
        raise UsageError(
            f"--supervise-mode {wish.mode} needs a critic, but {who} only ranks proposals; give "
            "the folder of an rl run, or --supervise-mode screen."
        )
