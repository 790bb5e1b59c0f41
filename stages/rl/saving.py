"""When an RL run's state is saved, and how the run goes on from it or stops with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.common import interrupts
from stages.common.errors import UsageError
from stages.common.run_folder import RunFolder
from stages.common.save_points import SavePoints
from stages.common.sharding import offloads_to
from stages.evaluation.audit import FOLDER as AUDIT
from stages.evaluation.audit import VERDICTS, WHOLE
from stages.interaction.generation import (
    Generation,
    Key,
    Policy,
    Request,
    Session,
    session_with,
)
from stages.recipe.models import RlSection
from stages.rl.baselines import Baseline
from stages.rl.checkpoint import Belongings, keep_pool_of, load_checkpoint, save_checkpoint
from stages.rl.pool import ExperiencePool
from stages.rl.trainer import AsymmetricPPOTrainer


class Saving:
    """Checkpoints at the ends of iterations; an interrupt's comes as soon as all is in order."""

    def __init__(
        self,
        options: RlSection,
        folder: RunFolder,
        trainer: AsymmetricPPOTrainer,
        baseline: Baseline,
        pool: ExperiencePool,
        belongings: Callable[[], Belongings],
    ) -> None:
        """``belongings``: what else belongs in a checkpoint that is written now."""
        self.options, self.folder, self.trainer = options, folder, trainer
        self.baseline, self.pool, self._belongings = baseline, pool, belongings
        # From there an optimizer's state is not gathered.
        self._able = not offloads_to("nvme")
        self.points = SavePoints(
            every=options.checkpoint_every,
            minutes=options.checkpoint_minutes if self._able else 0,
            ranks=folder.ranks,
        )
        self._saved: int | None = None

    def resume(self) -> dict[str, Any] | None:
        """Go on from the newest checkpoint: the ``extra`` it holds; None: there is none.

        What was written after it leaves. UsageError for one that does not fit this run.
        """
        self._refuse_another_run()
        belongings = self._belongings()
        checkpoint = self.folder.checkpoint(belongings.origin)
        if checkpoint is None:
            self.pool.restore(before=0)
            self._leave_until(0)
            return None
        extra = load_checkpoint(checkpoint, self.trainer, self.baseline, self.pool, belongings)
        self._saved = self.trainer.progress.iteration
        self._leave_until(self._saved)
        if self.folder.ranks.main:
            keep_pool_of(self.folder, self.pool)
        return extra

    def after_iteration(self) -> None:
        """Save where that is due; an interrupted run stops here."""
        now = self.trainer.progress
        if now.stopped:
            return  # going on from here would leave out what made it stop
        # After the last one there is nothing to go on with, unless the run is to stop here.
        last = now.iteration >= self.options.iterations
        if self.points.due(now.iteration) and not last:
            self._save()
        self.stop_if_asked()

    def stop_if_asked(self) -> None:
        """End an interrupted run with its state saved. Nothing may have been learnt since the end
        of the last iteration: what was played since is played again."""
        if not self.points.interrupted():
            return
        iteration = self.trainer.progress.iteration
        if not self._able:
            raise interrupts.Interrupted("nothing was saved, as the optimizer lies on NVMe")
        if self._saved != iteration:
            self._save()
        raise interrupts.Interrupted(f"the state after iteration {iteration} is saved")

    def _save(self) -> None:
        save_checkpoint(
            self.folder,
            self.trainer,
            self.baseline,
            self.pool,
            self._belongings(),
            keep=self.options.checkpoints_kept,
        )
        self._saved = self.trainer.progress.iteration
        self.points.saved()

    def _refuse_another_run(self) -> None:
        named = self.folder.request.resume
        own = self.folder.checkpoints.resolve()
        if named not in ("auto", "never") and Path(named).resolve().parent != own:
            raise UsageError(
                f"--resume {named} lies in another run than {self.folder.path}, whose pool it "
                "needs; give that run's folder as --output-dir."
            )

    def _leave_until(self, iteration: int) -> None:
        """What the first iterations wrote stays; what came after them is written again."""
        if not self.folder.ranks.main:
            return
        for file in (self.folder.path / "trajectories").glob("*.jsonl"):
            if file.stem.isdigit() and int(file.stem) >= iteration:
                file.unlink()
        for folder in (AUDIT, WHOLE):
            for file in (self.folder.path / folder).glob("*.jsonl"):
                if file.stem.isdigit() and int(file.stem) > iteration:
                    file.unlink()
        if iteration == 0:
            (self.folder.path / AUDIT / VERDICTS).unlink(missing_ok=True)
            self._belongings().best.unlink(missing_ok=True)


class Stoppable:
    """A policy that gives up a rollout once somebody wants the run to stop."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        """As the policy does. Raises Interrupted."""
        _go_on()
        return self._policy.generate(requests, greedy=greedy)

    def session(self, *, greedy: bool = False) -> Session:
        """The policy's own, with the same end."""
        return _StoppableSession(session_with(self._policy, greedy=greedy))


@dataclass
class _StoppableSession:
    """A session that gives up where somebody wants the run to stop."""

    own: Session

    def ask(self, requests: Sequence[Request]) -> list[int]:
        return self.own.ask(requests)

    def answers(self, least: int = 1) -> list[tuple[int, Generation]]:
        _go_on()
        return self.own.answers(least)

    def leave(self, episode: Key) -> None:
        self.own.leave(episode)

    def close(self) -> None:
        self.own.close()


def _go_on() -> None:
    if interrupts.asked():
        raise interrupts.Interrupted("the rollout was given up")
