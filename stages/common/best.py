"""The best weights of a run so far, in a file beside its checkpoints."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from stages.common.engine import load_whole_tensors, whole_tensors
from stages.common.ranks import Ranks
from stages.common.seeding import random_states, restore_random_states

BEST = "best.safetensors"
"""Its copy in a checkpoint."""


class BestWeights:
    """Those with the lowest held-out loss, looked for at fixed steps."""

    def __init__(self, model: Any, file: Path, ranks: Ranks, loss: Callable[[], float]) -> None:
        """``loss``: of the model as it is; every process measures it, the main one's counts."""
        self.model, self.file, self.ranks, self._loss = model, file, ranks, loss
        self.step, self.loss = 0, math.inf

    def look(self, step: int) -> None:
        """Measure, and keep the weights if they are the best so far. Training notices nothing."""
        states = random_states()
        loss = self.ranks.everyone(self._loss())[0]
        restore_random_states(states)
        if loss < self.loss:
            self.step, self.loss = step, loss
            weights = whole_tensors(self.model)
            if self.ranks.main:
                write_weights(weights, self.file)
            self.ranks.wait()

    def restore(self) -> dict[str, float]:
        """Put the best weights back, if any were finite; which they were."""
        if self.step:
            load_whole_tensors(self.model, read_weights(self.file))
        self.ranks.wait()
        if self.ranks.main:
            shutil.rmtree(self.file.parent, ignore_errors=True)
        return {"best_step": self.step, "best_loss": self.loss}

    def save(self, checkpoint: Path) -> dict[str, float]:
        """A copy into a checkpoint; what else it needs to know."""
        if self.ranks.main and self.step:
            shutil.copyfile(self.file, checkpoint / BEST)
        return {"step": self.step, "loss": self.loss}

    def load(self, checkpoint: Path, known: Mapping[str, Any]) -> None:
        """Inverse of ``save``."""
        self.step, self.loss = known["step"], known["loss"]
        if self.ranks.main and (checkpoint / BEST).is_file():
            self.file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkpoint / BEST, self.file)
        self.ranks.wait()


def write_weights(weights: Mapping[str, Tensor], file: Path) -> None:
    """All or nothing."""
    from safetensors.torch import save_file

    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    save_file(dict(weights), partial)
    partial.replace(file)


def read_weights(file: Path) -> dict[str, Tensor]:
    """Inverse of ``write_weights``."""
    from safetensors.torch import load_file

    return load_file(file)
