"""What a person sees: short lines and one progress bar. Everything else goes to the run's log."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

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


@dataclass
class _Settings:
    quiet: bool = False
    json: bool = False
    hushed: bool = False


_settings = _Settings()
_warned: set[str] = set()
"""Warnings that were shown while hushed, in this command."""
# Neither console is bound to a stream: rich looks sys.stdout and sys.stderr up at each print.
_out = Console(highlight=False, soft_wrap=True)
_err = Console(highlight=False, soft_wrap=True, stderr=True)


def configure(*, quiet: bool = False, json: bool = False) -> None:
    """Set once per command. ``json``: standard output is kept for one JSON object."""
    _settings.quiet, _settings.json = quiet, json
    _warned.clear()


def say(text: Any) -> None:
    """Show a line on how things go. Silent under ``--quiet``."""
    if not _settings.quiet:
        show(text)


def show(text: Any) -> None:
    """Show a result (a table, an answer, a verdict), also under ``--quiet``.

    Under ``--json`` the object is the result; this is then no more than ``say``.
    """
    if not (_settings.quiet and _settings.json):
        (_err if _settings.json else _out).print(text, markup=False)


def warn(text: str) -> None:
    """Show a line of advice on standard error, also under ``--quiet``."""
    if _settings.hushed and text in _warned:
        return
    if _settings.hushed:
        _warned.add(text)
    _err.print(text, markup=False)


@contextmanager
def hushed() -> Iterator[None]:
    """For one of many runs that somebody else tells of: inside, only warnings are shown, and each
    of them once per command, however many runs give it.
    """
    before = replace(_settings)
    _settings.quiet = _settings.json = _settings.hushed = True
    try:
        yield
    finally:
        _settings.quiet, _settings.json = before.quiet, before.json
        _settings.hushed = before.hushed


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[..., None]]:
    """A progress bar on standard error; yields ``advance(steps=1, note="")``.

    Nothing is drawn under ``--quiet`` or where standard error is no terminal.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    hidden = _settings.quiet or not _err.is_terminal
    # Steps may take minutes: the time left is told from all of them, not from the last half minute.
    bar = Progress(
        *columns, console=_err, transient=True, disable=hidden, speed_estimate_period=3600
    )
    with bar:
        task = bar.add_task(description, total=total, note="")

        def advance(steps: float = 1, note: str = "") -> None:
            bar.update(task, advance=steps, note=note)

        yield advance


@contextmanager
def quiet_libraries(log_path: Path | None) -> Iterator[None]:
    """Send other libraries' log lines and warnings to ``log_path`` (None: nowhere).

    Their progress bars are switched off. It holds for libraries that are imported inside the
    block too, and blocks may be nested. Everything is put back at the end, also on an error.
    """
    handler = _file_handler(log_path)
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
    before = [(logger, logger.handlers, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = _Held(handler), False
    # Under pytest warnings are errors; a library's deprecations are not ours to answer for.
    with warnings.catch_warnings(), _no_progress_bars():
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
