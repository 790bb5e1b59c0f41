"""OpenEnv's protocol over a real WebSocket on the loopback address."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from stages.common.errors import UsageError
from stages.evaluation.check import check_environment
from stages.interaction.actions import format_call, parse_action
from stages.interaction.arena import Arena
from stages.interaction.environments import make_environment
from stages.interaction.environments.adapters.options import OpenEnvOptions
from stages.interaction.environments.base import Task
from stages.interaction.states import StateOptions
from tests.interaction.environments.openenv_server import CAPACITY, Echo, Grid, served
from tests.interaction.toys import Script


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    with served(Echo) as address:
        yield address


@pytest.fixture(scope="module")
def grid() -> Iterator[str]:
    with served(Grid) as address:
        yield address


def seed(number: int) -> Task:
    return Task(f"s{number}", "k", "g", {"seed": number})


def played(address: str, task: Task, *texts: str, **more: Any) -> list[Any]:
    environment = make_environment(OpenEnvOptions(openenv=address, **more))
    try:
        reset = environment.reset(task)
        return [reset, *(environment.step(parse_action(text, reset.tools)) for text in texts)]
    finally:
        environment.close()


def test_one_field_of_text_takes_the_reply(echo):
    reset, first, nothing, _, last = played(echo, seed(7), "hello", " ", "you", "there", prompt="P")
    assert reset.messages[0]["content"] == "P\n\nsay anything (7)" and reset.tools == ()
    assert first.messages == ({"role": "user", "content": "hello"},)
    assert first.rewards == {"success": 0.05} and not first.terminated
    assert nothing.rewards == {"invalid": 1.0}
    assert last.terminated and not last.success and last.rewards == {"success": 0.05}
    assert played(echo, seed(7), "x" * 30, "y" * 30, "z" * 30, success_at=0.9)[-1].success


def test_other_actions_are_calls_of_a_tool(grid):
    call = format_call("act", {"row": 1, "column": 1})
    bad = format_call("act", {"row": "one"})
    reset, talk, wrong, miss, hit = played(
        grid, seed(1), "left", bad, format_call("act", {"row": 0, "column": 0}), call
    )
    assert reset.messages[0]["content"] == '{"size": 2, "hint": 1}'
    (tool,) = reset.tools
    assert tool["function"]["parameters"]["required"] == ["row", "column"]
    assert "metadata" not in tool["function"]["parameters"]["properties"]
    assert talk.messages[0]["content"] == "error: call the tool act"
    assert wrong.messages[0]["content"] == "error: row and column must be integers"
    assert miss.rewards == {} and not miss.terminated and miss.messages[0]["role"] == "tool"
    assert hit.terminated and hit.success and hit.rewards == {"success": 1.0}


def test_faults_of_the_server_drop_the_episode(echo):
    world = Arena(OpenEnvOptions(openenv=echo), StateOptions(tool_prompt="none"))
    (episode,) = world.play([seed(1)], Script("hello", "crash"), label="")
    assert episode.error == "RuntimeError: the server says EXECUTION_ERROR: the echo is lost"
    many = Arena(world.environment, world.state, parallel=CAPACITY + 5)
    episodes = many.play([seed(n) for n in range(CAPACITY + 5)], Script("hi"), label="")
    dropped = [e.error for e in episodes if e.error]
    assert len(dropped) == 5 and any("CAPACITY_REACHED" in error for error in dropped)


def test_the_contract_holds(grid):
    checked = check_environment(OpenEnvOptions(openenv=grid), episodes=8)
    assert checked["ok"], checked["checks"]
    assert checked["deterministic"] and checked["policies"]["null"]["success"] == 0.0


def test_what_does_not_fit_is_said(echo, monkeypatch):
    with pytest.raises(UsageError, match="does not answer as an OpenEnv server"):
        make_environment(OpenEnvOptions(openenv="ws://127.0.0.1:9"))
    environment = make_environment(OpenEnvOptions(openenv=echo))
    monkeypatch.setitem(sys.modules, "websockets.sync.client", None)
    with pytest.raises(UsageError, match="package websockets, which is missing"):
        environment.reset(seed(1))
