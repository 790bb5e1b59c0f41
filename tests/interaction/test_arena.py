"""The bar of an arena: where it stands while episodes are played beside each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import pytest

from stages.evaluation.policies import random_policy
from stages.interaction import arena as arena_module
from stages.interaction.arena import Arena
from stages.interaction.environments.sql import SqlOptions


@pytest.mark.parametrize("workers", [0, 3])
def test_a_bar_moves_with_every_turn_and_comes_to_its_end(workers, monkeypatch):
    moved: list[float] = []

    @contextmanager
    def bar(label: str, total: int) -> Iterator[Any]:
        yield moved.append

    monkeypatch.setattr(arena_module, "progress", bar)
    options = SqlOptions(max_turns=5, workers=workers, isolation="thread")
    arena = Arena(options, {"exchanges": 2, "max_tokens": 512})
    tasks = arena.tasks("test", 12, 0)
    played = arena.play(tasks, random_policy())
    turns = [len(episode.turns) for episode in played]
    assert len(set(turns)) > 1  # some end before others
    way = list(accumulate(moved))
    assert len(way) == sum(turns) + len(tasks)
    assert way == sorted(way) and way[-1] == pytest.approx(12)
    assert max(moved) < 1  # no episode comes in one leap
    moved.clear()
    assert arena.play(tasks, random_policy(), label="") == played and moved == []
