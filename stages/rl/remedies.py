"""What a run does about the alarms of its monitor: warn, turn a knob, go back, end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stages.common.console import warn
from stages.common.errors import RunError
from stages.common.ranks import Ranks
from stages.recipe.monitor import MonitorSection
from stages.rl.kl import KlCoefficient
from stages.rl.monitor import ALARMS, History, Monitor, non_finite
from stages.rl.report import append_json
from stages.rl.trainer import AsymmetricPPOTrainer

LOWER, RAISE = 0.5, 2.0
"""What a rate is lowered by, and the KL coefficient raised by."""
ALARMS_FILE = "alarms.jsonl"


class Remedies:
    """Called with each iteration's figures, after its evaluation and before its report."""

    def __init__(
        self,
        options: MonitorSection,
        trainer: AsymmetricPPOTrainer,
        kl: KlCoefficient,
        *,
        monitor: Monitor,
        restore: Callable[[], tuple[int, str]],
        file: Path,
    ) -> None:
        """``restore`` puts the best actor's weights back and says of which iteration it is, as a
        number and in words; (0, "") where there is none yet. ``file``: alarms.jsonl.
        """
        self.options, self.trainer, self.kl = options, trainer, kl
        self.monitor, self.restore, self.file = monitor, restore, file
        self.counts: Counter[str] = Counter()
        """How often each alarm was raised."""
        self.rollbacks = 0
        self._actions: Mapping[str, Callable[[], str]] = {
            "warn": lambda: "",
            "lower_rate": self._lower_rate,
            "raise_kl": self._raise_kl,
            "roll_back": self._roll_back,
            "stop": lambda: "the run ends",
        }

    @property
    def ranks(self) -> Ranks:
        """Of the trainer."""
        return self.trainer.ranks

    def __call__(self, iteration: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Steers the KL coefficient, raises alarms, acts; ``actor/kl_coef`` and ``alarm/*``."""
        used = {"actor/kl_coef": self.kl.value} if "actor/kl" in metrics else {}
        if used:
            self.kl.steer(metrics["actor/kl"])
        # One process decides for all: figures that differ in the last bit must not part them.
        raised = self.ranks.everyone(self.monitor.observe(metrics))[0]
        # An action that several alarms call for is taken once.
        wanted = dict.fromkeys(getattr(self.options, name) for name in raised)
        done = {action: self._actions[action]() for action in wanted}
        for name, figures in raised.items():
            self.counts[name] += 1
            self._tell(iteration, name, figures, done[getattr(self.options, name)])
        if ill := [name for name in raised if getattr(self.options, name) == "stop"]:
            self._stop(f"{ill[0]}: {ALARMS[ill[0]].means} ({raised[ill[0]]})")
        return used | {f"alarm/{name}": 1.0 for name in raised}

    def refuse_non_finite(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """RunError, with the alarm told, where an iteration's episodes have figures that are not
        finite: before anything is learned from them."""
        name = "non_finite"
        figures = self.ranks.everyone(non_finite(History([metrics], 1)))[0]
        if figures is None:
            return
        self.counts[name] += 1
        self._tell(iteration, name, figures, "the run ends before anything is learned from it")
        raise RunError(
            f"the run was stopped at iteration {iteration} by the alarm {name}: {figures}; nothing "
            "was learned from these episodes. Mend what pays them, and go on with the same command."
        )

    def state_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint. Rates lie in the schedule's state."""
        return {
            "monitor": self.monitor.state_dict(),
            "counts": dict(self.counts),
            "rollbacks": self.rollbacks,
            "kl_coef": self.kl.value,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.monitor.load_state_dict(state["monitor"])
        self.counts, self.rollbacks = Counter(state["counts"]), state["rollbacks"]
        self.kl.value = state["kl_coef"]

    def summary(self) -> dict[str, Any]:
        """For summary.json."""
        return {"alarms": dict(self.counts), "rollbacks": self.rollbacks}

    def _lower_rate(self) -> str:
        return f"the actor's rate is now {self.trainer.scale_rate(LOWER):.3g}"

    def _raise_kl(self) -> str:
        self.kl.value *= RAISE
        return f"the KL coefficient is now {self.kl.value:.3g}"

    def _roll_back(self) -> str:
        if self.rollbacks >= self.options.max_rollbacks:
            self._stop(f"it fell ill again after {self.rollbacks} roll-backs")
            return "no roll-back is left, so the run ends"
        lowered = self._lower_rate()
        step, best = self.restore()
        if not step:
            return f"there is no best actor yet to go back to; {lowered}"
        self.rollbacks += 1
        self.trainer.descent.forget()
        self.trainer.progress.actor_version += 1  # other weights: copies to sample from are stale
        self.monitor.go_back(step)
        return f"back to {best} ({self.rollbacks} of {self.options.max_rollbacks}); {lowered}"

    def _stop(self, why: str) -> None:
        self.trainer.progress.stopped = self.trainer.progress.stopped or why

    def _tell(self, iteration: int, name: str, figures: str, done: str) -> None:
        if not self.ranks.main:
            return
        alarm, action = ALARMS[name], getattr(self.options, name)
        end = f" Done: {done}." if done else ""
        warn(
            f"alarm {name} at iteration {iteration}: {alarm.means} ({figures}). "
            f"Usual cure: {alarm.cure}.{end}"
        )
        told = {"means": alarm.means, "figures": figures, "cure": alarm.cure}
        row = {"step": iteration, "alarm": name, **told, "action": action, "done": done}
        append_json(self.file, row)
