"""Debugging tasks: deterministic, distinct, disjoint between the splits, and fair.

Fair: every visible test fails by the same amount, so that a patch of the returned number passes
them all; the hidden tests fail it, and every other known wrong form of the buggy lines.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from stages.interaction.environments.base import Task
from stages.interaction.environments.code.options import WORDS, CodeOptions
from stages.interaction.environments.code.programs import (
    Program,
    answer,
    draw_arguments,
    fill,
)
from stages.interaction.environments.splits import distinct, fingerprint_id, split_of

_INPUTS = 60
"""Arguments drawn for a task, of which some become its tests."""

Case = list[Any]
"""[arguments, expected]."""


def generate(options: CodeOptions, split: str, count: int, seed: int) -> list[Task]:
    """``count`` distinct tasks of a split; templates in turn, so that few are balanced."""
    return distinct(_draws(options, split, seed), split, count)


def patched(program: Program, bugs: dict[int, str], visible: list[Case]) -> str:
    """The quick patch: the last line, with what the tests were off."""
    text = program.with_lines(bugs)
    arguments, expected = visible[0]
    off = expected - answer(program, text, arguments)
    return f"    return {program.result} {'+' if off > 0 else '-'} {abs(off)}"


def _draws(options: CodeOptions, split: str, seed: int) -> Iterator[Task | None]:
    rng = random.Random(f"code/{split}/{seed}")
    seen = [word for word in WORDS if word not in options.unseen_words]
    made = 0
    while True:
        kind = options.templates[made % len(options.templates)]
        new_words = split == "test" and options.unseen_words and made // len(options.templates) % 2
        word = rng.choice(options.unseen_words if new_words else seen)
        task = _draw(options, split, (kind, word), rng)
        made += task is not None
        yield task


def _draw(
    options: CodeOptions, split: str, about: tuple[str, str], rng: random.Random
) -> Task | None:
    kind, word = about
    program = fill(kind, word, rng)
    two = rng.random() < options.two_bugs
    lines = rng.sample(sorted(program.wrong), 2 if two else 1)
    bugs = {number: rng.choice(program.wrong[number]) for number in lines}
    inputs = [draw_arguments(program, rng) for _ in range(_INPUTS)]
    cases = [[given, answer(program, program.with_lines({}), given)] for given in inputs]
    visible = _visible(program, bugs, lines[0], cases, options.visible_tests)
    lines_shown = [bugs.get(n, line) for n, line in enumerate(program.lines, 1)]
    # What an actor is shown settles the split; the hash goes before the dearer search.
    if visible is None or split_of(json.dumps([program.goal, lines_shown, visible])) != split:
        return None
    hidden = _hidden(program, bugs, visible, cases, options.hidden_tests)
    if hidden is None:
        return None
    payload = {
        "goal": program.goal,
        "function": program.function,
        "lines": lines_shown,
        "fixes": {str(number): program.lines[number - 1] for number in lines},
        "patch": patched(program, bugs, visible),
        "visible": visible,
        "hidden": hidden,
    }
    return Task(fingerprint_id(kind, json.dumps(payload)), kind, word, payload)


def _visible(
    program: Program, bugs: dict[int, str], first: int, cases: list[Case], count: int
) -> list[Case] | None:
    """Tests that the program fails by one amount and the repair of the first bug passes."""
    buggy = program.with_lines(bugs)
    half = program.with_lines({n: t for n, t in bugs.items() if n != first})
    groups: dict[int, list[Case]] = {}
    for case in cases:
        off = case[1] - answer(program, buggy, case[0])
        if off and answer(program, half, case[0]) == case[1] and case not in groups.get(off, []):
            groups.setdefault(off, []).append(case)
    enough = [group for group in groups.values() if len(group) >= count]
    return enough[0][:count] if enough else None


def _hidden(
    program: Program, bugs: dict[int, str], visible: list[Case], cases: list[Case], count: int
) -> list[Case] | None:
    """Tests that tell the right program from every wrong one an agent is likely to write."""
    last = len(program.lines)
    wrongs = [{**bugs, last: patched(program, bugs, visible)}]
    for number, text in bugs.items():
        others = {n: t for n, t in bugs.items() if n != number}
        wrongs += [{number: text}, others, *({number: w} for w in program.wrong[number])]
    texts = [program.with_lines(wrong) for wrong in wrongs if wrong]
    fresh = [case for case in cases if case not in visible]
    hidden: list[Case] = []
    for text in texts:
        if any(answer(program, text, given) != wanted for given, wanted in hidden):
            continue
        telling = next((c for c in fresh if answer(program, text, c[0]) != c[1]), None)
        if telling is None:
            return None
        hidden.append(telling)
    hidden += [case for case in fresh if case not in hidden][: max(0, count - len(hidden))]
    return hidden if len(hidden) >= count else None
