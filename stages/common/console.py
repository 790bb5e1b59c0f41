"""What a person sees: short lines and one progress bar. Everything else goes to the run's log."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

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
_BARS = {
    "transformers.utils.logging": "progress_bar",
    "datasets.utils.tqdm": "progress_bars",
    "huggingface_hub.utils": "progress_bars",
}


@dataclass
class _Settings:
    quiet: bool = False
    json: bool = False


_settings = _Settings()
# Neither console is bound to a stream: rich looks sys.stdout and sys.stderr up at each print.
_out = Console(highlight=False, soft_wrap=True)
_err = Console(highlight=False, soft_wrap=True, stderr=True)


def configure(*, quiet: bool = False, json: bool = False) -> None:
    """Set once per command. ``json``: standard output is kept for one JSON object."""
    _settings.quiet, _settings.json = quiet, json


def is_quiet() -> bool:
    """Whether the person asked for silence."""
    return _settings.quiet


def say(text: Any) -> None:
    """Show a line of text or a rich renderable (a table). Silent under ``--quiet``."""
    if not _settings.quiet:
        (_err if _settings.json else _out).print(text, markup=False)


def warn(text: str) -> None:
    """Show a line of advice on standard error, also under ``--quiet``."""
    _err.print(text, markup=False)


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
        TextColumn("{task.fields[note]}"),
    )
    hidden = _settings.quiet or not _err.is_terminal
    with Progress(*columns, console=_err, transient=True, disable=hidden) as bar:
        task = bar.add_task(description, total=total, note="")

        def advance(steps: float = 1, note: str = "") -> None:
            bar.update(task, advance=steps, note=note)

        yield advance


@contextmanager
def quiet_libraries(log_path: Path | None) -> Iterator[None]:
    """Send other libraries' log lines and warnings to ``log_path`` (None: nowhere).

    Their progress bars are switched off. Everything is put back at the end, also on an error.
    Call it after the libraries are imported: some add a handler of their own on import.
    """
    handler = _file_handler(log_path)
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
    before = [(logger, logger.handlers[:], logger.propagate) for logger in loggers]
    _progress_bars(enabled=False)
    with warnings.catch_warnings():
        # Under pytest warnings are errors; a library's deprecations are not ours to answer for.
        warnings.simplefilter("default")
        warnings.showwarning = _to_log
        for logger in loggers:
            logger.handlers, logger.propagate = [handler], False
        try:
            yield
        finally:
            for logger, handlers, propagate in before:
                logger.handlers, logger.propagate = handlers, propagate
            _progress_bars(enabled=True)
            handler.close()


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


def _progress_bars(*, enabled: bool) -> None:
    """Switch the bars of libraries that are already imported; never import one for it."""
    verb = "enable" if enabled else "disable"
    for module, name in _BARS.items():
        if module in sys.modules:
            getattr(sys.modules[module], f"{verb}_{name}")()
