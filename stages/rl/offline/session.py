"""One offline run in flight: a session whose episodes lie in a pool before it begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stages.common.live import Board
from stages.interaction.trajectory import Trajectory
from stages.rl.offline.assembly import (
    Weights,
    build_imitation,
    fit_to_actor,
    given_episodes,
    imitation_of,
    plan_of,
)
from stages.rl.offline.selection import SELECTIONS
from stages.rl.offline.trainer import OfflineParts, learn_offline
from stages.rl.report import FittingReport
from stages.rl.session import Session


class OfflineSession(Session):
    """Evaluates, checkpoints, resumes and saves as any; trains by ``learn_offline``."""

    def _read_given(self) -> None:
        self.static = given_episodes(self.recipe.rl)

    def _admit(self) -> None:
        self.static = self._admitted(self.static) if self.static else []

    def train(self) -> None:
        """As any, once there is a pool."""
        if not len(self.pool):
            self.pool.add(0, self.static or self._admitted(self._played()))
        super().train()

    def _learn(self, board: Board, shown: Callable[[], None]) -> None:
        """The loop of ``offline.trainer`` with this run's parts."""
        rl = self.recipe.rl
        weights = Weights(rl, self.baseline)
        parts = OfflineParts(
            episodes=self._selected(self.pool.episodes),
            baseline=self.baseline,
            weigh=weights,
            remarks=weights.remarks,
            objective=lambda: imitation_of(rl, self.kl.value),
            evaluate=self._evaluate,
            watch=self.remedies,
            report=FittingReport(
                self.folder.metrics, board=board, shown=shown, writes=self.ranks.main
            ),
            checkpoint=lambda _: self.saving.after_iteration(),
        )
        imitation = build_imitation(self.recipe, self.trainer)
        learn_offline(self.trainer, parts, imitation, plan_of(rl))

    @property
    def method(self) -> str:
        """For the actor's card."""
        return f"{self.recipe.rl.offline.method.replace('_', ' ')} on a static pool"

    @property
    def training_episodes(self) -> int:
        """The pool's."""
        return len(self.pool)

    def _played(self) -> list[Trajectory]:
        """The pool that the SFT actor plays itself."""
        with self.trainer.clock("rollout"):
            return self.player.collect(0, 0, self.recipe.rl.offline.episodes)

    def _admitted(self, episodes: Sequence[Trajectory]) -> list[Trajectory]:
        """The episodes with this actor's tokens and scores, some of which can be learnt from."""
        fit = self.rewarding.score(fit_to_actor(self.recipe.rl, episodes, self.trainer))
        self._selected(fit)
        return fit

    def _selected(self, episodes: Sequence[Trajectory]) -> list[Trajectory]:
        """What the actor learns from."""
        select = SELECTIONS[self.recipe.rl.offline.method]
        return select(episodes, lambda e: sum(self.rewarding.turn_rewards(e)))
