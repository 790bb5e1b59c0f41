"""Worlds of other packages, many instances at once: nothing changes, nobody waits for the lost."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from inspect import getattr_static
from multiprocessing import forkserver
from typing import Any

import pytest
from pydantic import ValidationError

from stages.common.errors import UsageError
from stages.evaluation.metrics import episode_metrics
from stages.interaction.actions import format_call
from stages.interaction.arena import Arena
from stages.interaction.environments import make_environment
from stages.interaction.environments.adapters.options import (
    GymnasiumOptions,
    McpOptions,
    OpenEnvOptions,
    ProgramOptions,
    TrlOptions,
)
from stages.interaction.environments.remote import RemoteFault, _answer, _result
from stages.interaction.generation import Generation, Request
from stages.interaction.states import StateOptions
from tests.interaction.environments.openenv_server import Echo, served

HERE = "tests.interaction.environments.adapted"
LOCKERS = {"trl": f"{HERE}:Lockers", "reward_funcs": (f"{HERE}:length_reward",), "max_turns": 4}
CORRIDOR = {"gymnasium": f"{HERE}:Corridor", "reward_scale": 3.0}
LAKE = {"gymnasium": "FrozenLake-v1", "action_names": ("left", "down", "right", "up")}
TALKER = {"program": "tests.interaction.environments.programs:talker"}


@pytest.fixture(autouse=True, scope="module")
def afresh() -> Iterator[None]:
    """The server that processes are forked from loads what its first user asks for."""
    forkserver._forkserver._stop()
    yield
    forkserver._forkserver._stop()


class Lines:
    """Says the line of a turn, another one in every episode where ``by_episode`` has one."""

    def __init__(self, *lines: str, **by_episode: str) -> None:
        self.lines = lines
        self.by_episode = {int(name[1:]): text for name, text in by_episode.items()}

    def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        return [Generation(text=self._said(*request.key[-2:])) for request in requests]

    def _said(self, episode: int, turn: int) -> str:
        own = self.by_episode.get(episode) if turn == 1 else None
        return own or self.lines[(turn + episode) % len(self.lines)]


ROUND = Lines(
    format_call("look", {"locker": 1}), "left", format_call("take", {"locker": 0}), "right", "down"
)


def play(kind: Any, policy: Any, count: int, **options: Any) -> list[Any]:
    arena = Arena(kind(**options), StateOptions(checklist=False, tool_prompt="none"), parallel=4)
    return arena.play(arena.tasks("train", count, 0), policy, label="")


@pytest.mark.parametrize(
    ("kind", "options", "places"),
    [
        (TrlOptions, LOCKERS, ("thread",)),
        pytest.param(TrlOptions, LOCKERS, ("process",), marks=pytest.mark.full),  # imports torch
        (GymnasiumOptions, LAKE, ("thread", "process")),
        # It draws from Python's global numbers, which only a process has for itself.
        (GymnasiumOptions, CORRIDOR, ("process",)),
        (ProgramOptions, TALKER, ("thread",)),
    ],
    ids=["trl", "trl in processes", "gymnasium", "global numbers", "program"],
)
def test_what_is_played_does_not_depend_on_where_it_is_played(kind, options, places):
    alone = [e.to_json() for e in play(kind, ROUND, 6, **options)]
    assert len({json.dumps(e["turns"]) for e in alone}) > 1
    for place in places:
        there = play(kind, ROUND, 6, **options, workers=3, isolation=place)
        assert [e.to_json() for e in there] == alone, place
    assert multiprocessing.active_children() == []


def test_an_openenv_server_is_asked_by_many_at_once():
    with served(Echo) as address:
        alone, there = (
            [e.to_json() for e in play(OpenEnvOptions, ROUND, 6, openenv=address, workers=workers)]
            for workers in (0, 3)
        )
    assert there == alone and not any(e["error"] for e in alone)


@pytest.mark.parametrize("place", ["thread", pytest.param("process", marks=pytest.mark.full)])
def test_a_hanging_tool_costs_its_episode_and_a_crash_no_more(place):
    lost = {"_1": format_call("wait", {})}
    if place == "process":
        lost["_2"] = format_call("crash", {})
    policy = Lines(format_call("knock", {}), **lost)
    start = time.monotonic()
    episodes = play(
        TrlOptions, policy, 6, trl=f"{HERE}:Trapdoors", max_turns=3,
        workers=2, isolation=place, step_timeout_s=2.0,
    )  # fmt: skip
    assert time.monotonic() - start < 25  # the tool sleeps for 30
    errors = [e.error for e in episodes]
    assert errors[1].startswith("StepTimeout: the environment took longer than 2 s")
    assert errors[2] == (
        "RemoteFault: the environment's process died" if place == "process" else None
    )
    assert [len(e.turns) for e in episodes if not e.error] == [3] * (6 - len(lost))
    figures = episode_metrics(episodes, Arena(TrlOptions(trl="a:B"), StateOptions()).mix)
    assert figures["dropped_at"] == ({"crash": 1, "wait": 1} if len(lost) == 2 else {"wait": 1})
    assert multiprocessing.active_children() == []


def test_a_world_that_fails_only_in_its_process_says_so():
    world = make_environment(GymnasiumOptions(gymnasium=f"{HERE}:Homely", workers=1))
    with pytest.raises(UsageError, match=r"Homely cannot be made \(OSError: far from home\)"):
        world.reset(world.tasks("train", 1, 0)[0])
    world.close()
    with pytest.raises(RemoteFault, match="TypeError: .*set is not JSON"):
        _result(_answer(lambda: {"logged": {1, 2}}))


def test_an_expert_is_there_for_all_pythons():
    """From 3.12 on isinstance() with a protocol looks at an object's own attributes only."""
    with_one, without = (
        make_environment(GymnasiumOptions(**CORRIDOR, expert=expert, workers=1))
        for expert in (f"{HERE}:corridor_expert", None)
    )
    assert callable(getattr_static(with_one, "demonstrate"))
    assert not hasattr(without, "demonstrate")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ProgramOptions, TALKER),
        (OpenEnvOptions, {"openenv": "ws://127.0.0.1:1"}),
        (McpOptions, {"mcp": ("x",), "reward": "a:b", "tasks": "x.jsonl"}),
    ],
)
def test_what_lives_elsewhere_needs_no_process_here(kind, options):
    assert kind(**options).isolation == "thread"
    with pytest.raises(ValidationError, match="thread"):
        kind(**options, isolation="process")
