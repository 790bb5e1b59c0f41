"""How a stage in training looks: a board in the terminal, or a line now and then elsewhere.

A ``Board`` only keeps what it is told; ``frame`` draws it. ``console.watch`` puts it on the screen.
"""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.text import Text

WIDEST = 100
"""Columns of a board in a wider terminal."""
SPARKS = "▁▂▃▄▅▆▇█"
PLAIN_SPARKS = "_.-=+*#@"
"""Where the terminal's encoding has no blocks."""
PART_LINES, ALARM_LINES, TURN_LINES = 2, 2, 4
"""Lines kept for the parts of a figure, for the last alarm and for a sample turn."""
PACE = 8
"""Newest steps whose pace tells the time that is left."""
_LABEL, _VALUE = 10, 9


@dataclass(frozen=True)
class Curve:
    """A figure that gets a line of its own."""

    label: str
    name: str
    """As in metrics.jsonl."""


@dataclass
class Board:
    """What is known of a stage in training."""

    stage: str
    total: int
    step: int = 0
    unit: str = "step"
    curves: Sequence[Curve] = ()
    place: str = ""
    """``stage 1 of 3`` in a run of several."""
    parts: str = ""
    """Figures of this group share a line (``reward/``); "" for none."""
    alarm: str = ""
    """The last."""
    turn: Sequence[str] = ()
    """Lines of a sample turn."""
    ended: str = ""
    """In words, once it is over."""
    clock: Callable[[], float] = time.monotonic
    values: dict[str, list[float]] = field(default_factory=dict)
    _marks: list[tuple[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.started = self.clock()
        self._marks = [(self.step, self.started)]

    def move(self, step: int) -> None:
        """So many steps are done; a bar never goes back."""
        if step > self.step:
            self.step = step
            self._marks = [*self._marks, (step, self.clock())][-PACE - 1 :]

    def tell(self, values: Mapping[str, float]) -> None:
        """Figures of the newest step; those that are not finite have no place in a curve."""
        for name, value in values.items():
            if math.isfinite(value):
                self.values.setdefault(name, []).append(float(value))

    @property
    def seconds_left(self) -> float | None:
        """At the pace of the newest steps; None before there is one."""
        (first, then), (last, since) = self._marks[0], self._marks[-1]
        if last == first:
            return None
        left = (self.total - last) * (since - then) / (last - first)
        return max(left - (self.clock() - since), 0.0)

    def end(self) -> None:
        """It is over, one way or the other."""
        done = self.step >= self.total
        self.ended = f"done in {duration(self.clock() - self.started)}" if done else "stopped"

    def head(self) -> str:
        """Where it stands: ``iteration 3 of 30, 2 min left``."""
        left = self.seconds_left
        end = self.ended or ("" if left is None else f"{duration(left)} left")
        return f"{self.unit} {self.step} of {self.total}" + (f", {end}" if end else "")

    def newest(self) -> str:
        """The newest value of each curve in one line."""
        told = [(c.label, self.values[c.name][-1]) for c in self.curves if c.name in self.values]
        return "  ".join(f"{label} {short(value)}" for label, value in told)


def plain(board: Board) -> str:
    """A board as one line, for a log."""
    return f"{board.stage}: {board.head()}  {board.newest()}".rstrip()


def frame(board: Board, width: int, *, blocks: bool = True) -> RenderableType:
    """A board in ``width`` columns; its height stays as it is from the first frame on."""
    width = min(width, WIDEST)
    inner = width - 4
    sparks = SPARKS if blocks else PLAIN_SPARKS
    done = inner * min(board.step, board.total) // max(board.total, 1)
    full, empty = "━─" if blocks else "#-"
    rows = [Text.assemble((full * done, "cyan"), (empty * (inner - done), "dim"))]
    rows += [Text(line, no_wrap=True, overflow="ellipsis") for line in _lines(board, inner, sparks)]
    title = "  ".join(part for part in (board.stage, board.place) if part)
    return Panel(
        Group(*rows),
        title=f"[bold]{escape(title)}[/]",
        title_align="left",
        subtitle=escape(board.head()),
        subtitle_align="right",
        width=width,
    )


def _lines(board: Board, width: int, sparks: str) -> Iterator[str]:
    room = max(width - _LABEL - _VALUE - 1, 0)
    for curve in board.curves:
        values = board.values.get(curve.name, [])
        newest = short(values[-1]) if values else "-"
        yield f"{curve.label:<{_LABEL}}{newest:<{_VALUE}} {sparkline(values, room, sparks)}"
    if not board.parts:
        return
    parts = [
        f"{name.removeprefix(board.parts)} {short(values[-1])}"
        for name, values in board.values.items()
        if name.startswith(board.parts) and values[-1] and "capped_" not in name
        and name not in [curve.name for curve in board.curves]
    ]  # fmt: skip
    yield from _block("parts", textwrap.wrap(", ".join(parts), width - _LABEL), PART_LINES)
    yield from _block("alarm", textwrap.wrap(board.alarm, width - _LABEL), ALARM_LINES)
    turn = [printable(" ".join(line.split())) for line in board.turn]
    yield from _block("a turn", turn, TURN_LINES)


def _block(label: str, lines: Sequence[str], height: int) -> Iterator[str]:
    """``height`` lines under a label, whatever there is to show."""
    shown = [*lines, *[""] * height][:height]
    if len(lines) > height:
        shown[-1] += " …"
    for number, line in enumerate(shown):
        yield f"{'' if number else label:<{_LABEL}}{line or ('' if number else '-')}"


def sparkline(values: Sequence[float], width: int, sparks: str = SPARKS) -> str:
    """A curve in at most ``width`` characters, from its lowest value to its highest.

    More values than that are averaged in groups of neighbours.
    """
    count = min(len(values), width)
    if count < 1:
        return ""
    edges = [round(k * len(values) / count) for k in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if high == low:
        return sparks[len(sparks) // 2] * count
    top = len(sparks) - 1
    return "".join(sparks[round((value - low) / (high - low) * top)] for value in means)


def printable(text: str) -> str:
    """Text of a model or a tool as it may be shown: no codes that would steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else " " if c == "\t" else "�" for c in text)


def short(value: float) -> str:
    """A figure in few characters: ``0.512``, ``12.3``, ``1.2e-05``."""
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """Seconds in words that do not jump about: ``40 s``, ``3 min``, ``2 h 10 min``."""
    if seconds < 55:
        return f"{max(round(seconds / 5) * 5, 5)} s" if seconds >= 1 else "0 s"
    minutes = max(round(seconds / 60), 1)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
