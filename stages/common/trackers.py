"""Trackers beside ``metrics.jsonl``, through transformers' integrations of them.

They are told what that file is told, step by step, and under the same names.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stages.common.console import warn
from stages.common.errors import UsageError
from stages.common.run_folder import RunFolder

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "mlflow": ("mlflow",),
    "tensorboard": ("tensorboard", "tensorboardX"),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
}
"""What each tracker needs: any of these modules, which pip installs by the same name."""
_PROJECT = {"mlflow": "MLFLOW_EXPERIMENT_NAME", "wandb": "WANDB_PROJECT"}
"""Read by integrations that do not look at their arguments' ``project``."""


def check_trackers(names: Sequence[str]) -> None:
    """Raises UsageError for a tracker whose package is not here. Nothing heavy is loaded."""
    for name in names:
        if not any(map(_installed, PACKAGES[name])):
            raise UsageError(
                f"tracking.report_to has {name!r}, but the Python package {name} is not installed; "
                f"run pip install {name}, or take the name out."
            )


class Trackers:
    """Integrations at work; on leaving the block their files and runs are closed."""

    def __init__(self, names: Sequence[str], trainer: Any, folder: Path) -> None:
        """``trainer``: whose arguments and model they note. UsageError: one does not start."""
        self._args, self._model = trainer.args, trainer.model
        self._callbacks: dict[str, Any] = {}
        for name in names:
            try:
                callback = self._callbacks[name] = _integration(name, folder)
                with _project(name, self._args.project):
                    self._hand(callback.on_train_begin, 0)
            except Exception as error:
                raise UsageError(
                    f"tracking.report_to has {name!r}, which does not start ({_first(error)}); "
                    "set it up as its makers say, or take the name out."
                ) from error

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        """The figures of one step; those that are not finite are left out."""
        logs = {name: float(v) for name, v in values.items() if math.isfinite(v)}
        for name, callback in list(self._callbacks.items()):
            try:
                with _names_as_given():
                    self._hand(callback.on_log, step, logs=logs)
            except Exception as error:  # a tracker's server may leave; training goes on
                warn(f"{name} is told nothing more, as it failed at step {step}: {_first(error)}.")
                del self._callbacks[name]

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, *_: object) -> None:
        for name, callback in self._callbacks.items():
            try:
                self._hand(callback.on_train_end, 0)
                if name == "wandb":  # else the next stage of this process would go on in this run
                    callback._wandb.finish()
            except Exception as error:
                warn(f"{name} was not closed in order: {_first(error)}.")

    def _hand(self, event: Callable[..., Any], step: int, **more: Any) -> None:
        from transformers import TrainerControl, TrainerState

        state = TrainerState(global_step=step)
        event(self._args, state, TrainerControl(), model=self._model, **more)


@contextmanager
def tracked(names: Sequence[str], trainer: Any, folder: RunFolder) -> Iterator[None]:
    """Inside, trackers are told what ``folder.metrics`` is told; one process of several tells."""
    with Trackers(names if folder.ranks.main else (), trainer, folder.path) as trackers:
        folder.metrics.listeners.append(trackers)
        try:
            yield
        finally:
            folder.metrics.listeners.remove(trackers)


def _installed(module: str) -> bool:
    """A folder that a tracker made here under its own name is no package."""
    found = find_spec(module)
    return found is not None and found.origin is not None


def _integration(name: str, folder: Path) -> Any:
    from transformers.integrations import integration_utils

    callback = integration_utils.INTEGRATION_TO_CALLBACK[name]()
    if name == "tensorboard" and callback.logging_dir is None:
        callback.logging_dir = str(folder / "tensorboard")
    return callback


@contextmanager
def _names_as_given() -> Iterator[None]:
    """The integrations rename what they are told (``train/loss``); not so in here."""
    from transformers.integrations import integration_utils

    before = integration_utils.rewrite_logs
    integration_utils.rewrite_logs = dict
    try:
        yield
    finally:
        integration_utils.rewrite_logs = before


@contextmanager
def _project(name: str, project: str) -> Iterator[None]:
    """The recipe's project, unless the person's environment names another."""
    variable = _PROJECT.get(name)
    if variable is None or variable in os.environ:
        yield
        return
    os.environ[variable] = project
    try:
        yield
    finally:
        del os.environ[variable]


def _first(error: Exception) -> str:
    """The first line of an error, without its last stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
