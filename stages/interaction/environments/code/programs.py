"""Small programs, and how each line of them can be wrong.

All are one function of a list of numbers (and a limit) that returns a number. The texts here are
our own and are run in our process to make tasks; an agent's text never is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_OPERATORS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "over": (">", (">=", "<")),
    "under": ("<", ("<=", ">")),
    "from": (">=", (">", "<=")),
    "up to": ("<=", ("<", ">=")),
}
"""Word to the right comparison and the wrong ones."""


@dataclass(frozen=True)
class Template:
    """A function's lines, what it is asked to do, and wrong forms of some of its lines."""

    goal: str
    lines: tuple[str, ...]
    wrong: Mapping[int, tuple[str, ...]]
    """Line number (from 1) to wrong texts of that line."""
    result: str = "total"
    """The name that the last line returns."""
    has_limit: bool = False


@dataclass(frozen=True)
class Program:
    """One template filled in with words."""

    function: str
    goal: str
    lines: tuple[str, ...]
    wrong: Mapping[int, tuple[str, ...]]
    result: str
    has_limit: bool

    def with_lines(self, changed: Mapping[int, str]) -> str:
        """The source with some lines (from 1) replaced."""
        return source([changed.get(n, line) for n, line in enumerate(self.lines, 1)])


def source(lines: list[str]) -> str:
    """Lines as one text."""
    return "\n".join(lines)


_LOOP = ("def {f}({xs}, limit):", "    total = 0", "    for {x} in {xs}:")
_TAIL = ("    return total",)


def _limited(goal: str, gain: str, wrong_gain: str) -> Template:
    lines = (*_LOOP, "        if {x} {op} limit:", f"            {gain}", *_TAIL)
    return Template(
        goal,
        lines,
        {4: ("        if {x} {bad} limit:",), 5: (f"            {wrong_gain}",)},
        has_limit=True,
    )


def _extreme(goal: str, right: str, wrong: str, start: str) -> Template:
    lines = (
        "def {f}({xs}):",
        "    best = {xs}[0]",
        "    for {x} in {xs}:",
        f"        if {{x}} {right} best:",
        "            best = {x}",
        "    return best",
    )
    bad = {2: (start,), 4: (f"        if {{x}} {wrong} best:",), 5: ("            best += {x}",)}
    return Template(goal, lines, bad, result="best")


TEMPLATES: Mapping[str, Template] = {
    "count": _limited("Count the {xs} {word} the limit.", "total += 1", "total += {x}"),
    "add": _limited("Find the total of the {xs} {word} the limit.", "total += {x}", "total += 1"),
    "highest": _extreme("Find the highest {x}.", ">", "<", "    best = {xs}[-1] + 1"),
    "lowest": _extreme("Find the lowest {x}.", "<", ">", "    best = 0"),
    "changes": Template(
        "Count the times the {x} is not the one before.",
        (
            "def {f}({xs}):",
            "    total = 0",
            "    last = {xs}[0]",
            "    for {x} in {xs}:",
            "        if {x} != last:",
            "            total += 1",
            "        last = {x}",
            "    return total",
        ),
        {
            3: ("    last = {xs}[-1]",),
            5: ("        if {x} == last:", "        if {x} > last:"),
            6: ("            total += {x}",),
        },
    ),
    "second": Template(
        "Find the total of every second {x}, with the first.",
        (
            "def {f}({xs}):",
            "    total = 0",
            "    for {x} in {xs}[::2]:",
            "        total += {x}",
            "    return total",
        ),
        {
            3: ("    for {x} in {xs}[1::2]:", "    for {x} in {xs}[::3]:"),
            4: ("        total += 1", "        total = {x}"),
        },
    ),
}
"""By the name of the task's kind."""


def fill(kind: str, x: str, rng: random.Random) -> Program:
    """A template about ``x``, with a comparison drawn where it has one."""
    template = TEMPLATES[kind]
    word = rng.choice(list(_OPERATORS))
    operator, bads = _OPERATORS[word]
    names = {"x": x, "xs": f"{x}s", "f": f"{kind}_{x}s", "word": word, "op": operator}
    wrong: dict[int, tuple[str, ...]] = {}
    for number, texts in template.wrong.items():
        forms = [t.format(**names, bad=bad) for t in texts for bad in bads]
        wrong[number] = tuple(dict.fromkeys(forms))
    return Program(
        function=names["f"],
        goal=template.goal.format(**names),
        lines=tuple(line.format(**names) for line in template.lines),
        wrong=wrong,
        result=template.result,
        has_limit=template.has_limit,
    )


def draw_arguments(program: Program, rng: random.Random) -> list[Any]:
    """Arguments on which comparisons, repeats and ends all matter."""
    values = [rng.randint(1, 9) for _ in range(rng.randint(3, 5))]
    if rng.random() < 0.5:
        values[rng.randrange(len(values))] = rng.choice(values)
    return [values, rng.choice([*values, rng.randint(1, 9)])] if program.has_limit else [values]


def answer(program: Program, text: str, arguments: list[Any]) -> Any:
    """What one of *our* texts returns."""
    return _compiled(text, program.function)(*arguments)


@lru_cache(maxsize=4096)
def _compiled(text: str, function: str) -> Callable[..., Any]:
    space: dict[str, Any] = {}
    exec(compile(text, "<template>", "exec"), space)  # a template of this file, never an agent's
    made: Callable[..., Any] = space[function]
    return made
