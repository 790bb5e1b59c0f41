"""What a person sees: short lines, a bar, a board. Everything else goes to the run's log."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import IO, Any, cast

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Column, Table

from stages.common.live import Board, duration, frame, plain, printable

GOES_ON = "go on with: "
"""Stands before the command with which an interrupted one goes on."""
BROKEN, CONTINUED = " \\", 4
"""What a shell wants at the end of a broken line; columns by which the next is indented."""

MINUTE = 60.0
"""Seconds between two lines of what would be a bar in a terminal."""


@dataclass
class _Settings:
    quiet: bool = False
    json: bool = False
    hushed: bool = False
    place: str = ""
    """Which of several stages it is."""
    drawing: bool = False
    """Whether a bar or a board is on the screen now."""


@dataclass(frozen=True)
class _Harmless:
    """A table or the like, whose words may be an agent's, without codes that steer the terminal."""

    shown: Any

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        for text, style, control in console.render(self.shown, options):
            yield Segment(text if control else printable(text), style, control)


class _Screen:
    """What ``sys.stdout`` or ``sys.stderr`` is at each print, or what it was before ``held``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.held: Any = None

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.held or getattr(sys, self.name), attribute)


_settings = _Settings()
_warned: set[str] = set()
"""Warnings that were shown while hushed, in this command."""
_screens = [_Screen("stdout"), _Screen("stderr")]
_out, _err = (
    Console(markup=False, highlight=False, file=cast(IO[str], screen)) for screen in _screens
)
"""Brackets are brackets, also in the titles of tables."""


def configure(*, quiet: bool = False, json: bool = False) -> None:
    """Set once per command. ``json``: standard output is kept for one JSON object."""
    _settings.quiet, _settings.json = quiet, json
    _warned.clear()


def say(text: Any, *, whole: bool = False) -> None:
    """Show a line on how things go. Silent under ``--quiet``. ``whole``: it is to be copied, so
    that no line break may come into it."""
    if not _settings.quiet:
        show(text, whole=whole)


def show(text: Any, *, whole: bool = False) -> None:
    """Show a result (a table, an answer, a verdict), also under ``--quiet``.

    Under ``--json`` the object is the result; this is then no more than ``say``.
    """
    if not (_settings.quiet and _settings.json):
        _print(_err if _settings.json else _out, text, whole=whole)


def listing(entries: Mapping[str, str]) -> None:
    """Show names and what each is: side by side where the names leave room for it, in a terminal
    with long names one below the other."""
    name_width = max(map(cell_len, entries), default=0)
    if _out.is_terminal and name_width > _out.width // 3:
        for name, about in entries.items():
            show(name)
            show(Padding(about, (0, 0, 0, 2)))
        return
    for name, about in entries.items():
        row = Table.grid(Column(width=name_width), Column(), padding=(0, 2, 0, 0))
        row.add_row(name, about)
        show(row if _out.is_terminal else f"{name:<{name_width}}  {about}".rstrip())


def warn(text: str) -> None:
    """Show a line of advice on standard error, also under ``--quiet``."""
    if _settings.hushed and text in _warned:
        return
    if _settings.hushed:
        _warned.add(text)
    _print(_err, text)


def complain(text: str) -> None:
    """Show what went wrong on standard error; a command at its end is to be copied."""
    told, goes_on, command = text.partition(GOES_ON)
    if goes_on and _err.is_terminal:
        _print(_err, told + GOES_ON.rstrip())
        _print(_err, "  " + folded(command, 2), whole=True)
    else:
        _print(_err, text)


def folded(command: str, indent: int) -> str:
    """A command for ``say(..., whole=True)``, ``indent`` columns to the right.

    In a terminal it takes as many lines as it needs, broken where a shell lets it be, so that it
    can be read and be copied; elsewhere it is one line.
    """
    if not _out.is_terminal:
        return command
    lines: list[str] = []
    for part in _parts(shlex.split(command)):
        room = _out.width - indent - len(BROKEN) - (CONTINUED if len(lines) > 1 else 0)
        if lines and cell_len(lines[-1]) + 1 + cell_len(part) <= room:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return f"{BROKEN}\n{' ' * (indent + CONTINUED)}".join(lines)


def _parts(words: Sequence[str]) -> Iterator[str]:
    """A command's words, each option with its value."""
    part: list[str] = []
    for word in words:
        if word.startswith("-") and part:
            yield shlex.join(part)
            part = []
        part.append(word)
    yield shlex.join(part)


def ask_for(prompt: str) -> None:
    """Show a prompt; what is typed goes on behind it."""
    _err.print(prompt, end="", soft_wrap=True)


@contextmanager
def held() -> Iterator[None]:
    """Inside, what is said here goes where it went before, whatever becomes of ``sys.stdout``."""
    before = [screen.held for screen in _screens]
    for screen in _screens:
        screen.held = screen.held or getattr(sys, screen.name)
    try:
        yield
    finally:
        for screen, stream in zip(_screens, before, strict=True):
            screen.held = stream


def _print(console: Console, text: Any, *, whole: bool = False) -> None:
    """Words are wrapped in a terminal; elsewhere a line is a line. No word steers the terminal."""
    if _settings.drawing and console.is_terminal:
        console = _err  # above what is drawn there
    harmless = printable(text) if isinstance(text, str) else _Harmless(text)
    console.print(harmless, soft_wrap=whole or not console.is_terminal)


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
    """A progress bar on standard error; yields ``advance(steps=1, note="")``, which takes parts of
    a step, too.

    Where standard error is no terminal there is a line once a minute instead, and nothing under
    ``--quiet``.
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
    bar = Progress(
        *columns,
        console=_err,
        transient=True,
        disable=not _draws(),
        speed_estimate_period=3600,  # steps may take minutes: all of them tell the time left
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar, _drawing():
        task, way = bar.add_task(description, total=total, note=""), [0.0]
        tell = _minutely(description, total)

        def advance(steps: float = 1, note: str = "") -> None:
            way[0] += steps
            bar.update(task, completed=min(round(way[0], 6), total), note=note)
            tell(way[0])

        yield advance


@contextmanager
def watch(board: Board) -> Iterator[Callable[[], None]]:
    """Show a board while its stage trains, on standard error; yields what to call when it has been
    told something new.

    The last frame stays. Where standard error is no terminal there is a line at each tenth of the
    way instead, and nothing under ``--quiet``.
    """
    board.place = _settings.place
    if not _draws():
        yield _tenths(board)
        return
    blocks = _err.encoding.lower().startswith("utf")

    def draw() -> Any:
        return frame(board, _err.width, blocks=blocks)

    live = Live(
        console=_err,
        get_renderable=draw,
        refresh_per_second=1,  # by a thread, and whole, so that nothing flickers
        vertical_overflow="crop",
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with live, _drawing():
        try:
            yield lambda: None
        finally:
            board.end()


@contextmanager
def within(words: str) -> Iterator[None]:
    """Inside, boards say which of several stages theirs is."""
    before, _settings.place = _settings.place, words
    try:
        yield
    finally:
        _settings.place = before


def _draws() -> bool:
    """Whether there is a terminal for a drawing, and none on it yet."""
    shown = _err.is_terminal and not _err.is_dumb_terminal
    return shown and not _settings.quiet and not _settings.drawing


@contextmanager
def _drawing() -> Iterator[None]:
    before, _settings.drawing = _settings.drawing, _settings.drawing or _draws()
    try:
        yield
    finally:
        _settings.drawing = before


def _tenths(board: Board) -> Callable[[], None]:
    """Says a line when another tenth of the way is done."""
    told = [board.step * 10 // max(board.total, 1)]

    def tell() -> None:
        tenth = board.step * 10 // max(board.total, 1)
        if tenth > told[0]:
            told[0] = tenth
            say(plain(board))

    return tell


def _minutely(description: str, total: int) -> Callable[[float], None]:
    """Takes how much is done and says a line of it once a minute, where there is no terminal."""
    start = told = time.monotonic()

    def tell(done: float) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= MINUTE and 0 < done < total:
            told, left = now, (now - start) * (total - done) / done
            say(f"{description}: {int(done)} of {total}, {duration(left)} left")

    return (lambda _: None) if _err.is_terminal else tell
