"""Keeps other libraries' words off the screen: their log lines, warnings, prints and bars."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.common import console

_LIBRARIES = (
    "transformers",
    "trl",
    "datasets",
    "accelerate",
    "huggingface_hub",
    "DeepSpeed",
    "torch",
    "peft",
    "py.warnings",
)


@dataclass(frozen=True)
class _Bars:
    """How a library switches its progress bars and tells whether they are on."""

    switch: str
    question: str
    yes_means_shown: bool

    def shown(self, module: Any) -> bool:
        """Whether the library's bars are on."""
        return getattr(module, self.question)() is self.yes_means_shown


_BARS = {
    "transformers.utils.logging": _Bars("progress_bar", "is_progress_bar_enabled", True),
    "datasets.utils.tqdm": _Bars("progress_bars", "are_progress_bars_disabled", False),
    "huggingface_hub.utils": _Bars("progress_bars", "are_progress_bars_disabled", False),
}
_BAR_VARIABLES = ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS")
"""Read by these libraries when they are imported."""


@contextmanager
def quiet_libraries(log_path: Path | None) -> Iterator[None]:
    """Send other libraries' log lines and warnings to ``log_path`` (None: nowhere).

    What they print goes there too, if there is a file, and their progress bars are switched off.
    It holds for libraries that are imported inside the block too, and blocks may be nested.
    Everything is put back at the end, also on an error.
    """
    handler = _file_handler(log_path)
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
    before = [(logger, logger.handlers, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = _Held(handler), False
    # Under pytest warnings are errors; a library's deprecations are not ours to answer for.
    with warnings.catch_warnings(), _no_progress_bars(), _prints_to(log_path):
        warnings.simplefilter("default")
        warnings.showwarning = _to_log
        try:
            yield
        finally:
            for logger, handlers, propagate in before:
                late = getattr(logger.handlers, "late", [])
                logger.handlers, logger.propagate = handlers, propagate
                for added in late:
                    logger.handlers.append(added)
            handler.close()


@contextmanager
def _prints_to(log_path: Path | None) -> Iterator[None]:
    """``print`` writes to the log; only what ``console`` says reaches the screen."""
    if log_path is None:
        yield
        return
    out, err = _Log(log_path, "stdout"), _Log(log_path, "stderr")
    try:
        with console.held(), redirect_stdout(out), redirect_stderr(err):
            yield
    finally:
        out.path = err.path = None


class _Log(io.TextIOBase):
    """Takes what other libraries print. Who keeps it beyond the block writes to the screen."""

    def __init__(self, path: Path, name: str) -> None:
        self.path: Path | None = path
        self._name = name

    def write(self, text: str) -> int:
        if self.path is None:
            return int(getattr(sys, self._name).write(text) or 0)
        with suppress(OSError), self.path.open("a", encoding="utf-8") as file:
            file.write(text)
        return len(text)


class _Held(list[logging.Handler]):
    """A logger's handlers while it is held: those that a library adds meanwhile have to wait."""

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__([handler])
        self.late: list[logging.Handler] = []

    def append(self, handler: logging.Handler) -> None:
        """Called by ``Logger.addHandler``."""
        self.late.append(handler)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Bars off, in libraries that are here and in those to come; none is imported for it."""
    loaded = [(sys.modules[name], bars) for name, bars in _BARS.items() if name in sys.modules]
    shown = [(module, bars) for module, bars in loaded if bars.shown(module)]
    environment = {name: os.environ.get(name) for name in _BAR_VARIABLES}
    os.environ.update(dict.fromkeys(_BAR_VARIABLES, "1"))
    for module, bars in shown:
        getattr(module, f"disable_{bars.switch}")()
    try:
        yield
    finally:
        for module, bars in shown:
            getattr(module, f"enable_{bars.switch}")()
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _to_log(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    """Stand-in for ``warnings.showwarning``, whose parameters these are."""
    text = warnings.formatwarning(message, category, filename, lineno, line)
    logging.getLogger("py.warnings").warning(text)


def _file_handler(log_path: Path | None) -> logging.Handler:
    if log_path is None:
        return logging.NullHandler()
    handler = logging.FileHandler(log_path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    return handler
