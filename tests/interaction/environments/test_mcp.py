"""A real MCP server over stdio: its tools act, the person's function rewards."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from stages.common.errors import UsageError
from stages.evaluation.check import check_environment
from stages.interaction.actions import format_call, parse_action
from stages.interaction.environments import make_environment
from stages.interaction.environments.adapters.options import McpOptions
from tests.interaction.environments import mcp_shelf

SERVER = (sys.executable, mcp_shelf.__file__)
REWARD = "tests.interaction.environments.mcp_shelf:wanted_book"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shelf") / "tasks.jsonl"
    rows = [{"prompt": f"put {t} there", "title": t} for t in ("Emma", "Ulysses", "Momo")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def options(tasks: Path, **more: Any) -> McpOptions:
    return McpOptions(**{"mcp": SERVER, "reward": REWARD, "tasks": tasks, **more})


def said(environment: Any, reset: Any, text: str) -> Any:
    return environment.step(parse_action(text, reset.tools))


def test_an_episode_with_a_real_server(tasks):
    environment = make_environment(options(tasks, prompt="You keep a shelf.", reset_tool="clear"))
    try:
        task = environment.tasks("train", 1, 0)[0]
        title = task.payload["row"]["title"]
        for _ in range(2):  # the second time on the same server, which was told to forget
            reset = environment.reset(task)
            assert [m["role"] for m in reset.messages] == ["system", "user"]
            names = [tool["function"]["name"] for tool in reset.tools]
            assert names == ["put", "look", "fail", "sleep"]
            schema = reset.tools[0]["function"]["parameters"]
            assert schema["required"] == ["title"]
            step = said(environment, reset, format_call("put", {"title": title}))
            assert step.messages == ({"role": "tool", "name": "put", "content": "1 books"},)
            end = said(environment, reset, "It is there.")
            assert end.terminated and end.success and end.rewards == {"success": 1.0}
    finally:
        environment.close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (format_call("fail", {}), "Error executing tool fail"),
        (format_call("burn", {}), "unknown tool 'burn'; tools: put, look"),
        (format_call("clear", {}), "unknown tool 'clear'"),
        (format_call("put", {"title": "x", "copies": "many"}), "copies"),
        (format_call("put", {}), "title"),
        ('{"name": "put", "arguments": {', "not valid JSON"),
    ],
)
def test_errors_of_the_agent_are_observations(shared, text, words):
    environment, reset = shared
    step = said(environment, reset, text)
    assert words in step.messages[0]["content"] and words in step.info["tool_error"]
    assert not step.terminated
    assert said(environment, reset, format_call("look", {})).messages[0]["content"] == "empty"


def test_a_call_that_takes_too_long_is_an_observation_too(shared):
    environment, reset = shared
    environment._connection._timeout_s = 0.2
    try:
        step = said(environment, reset, format_call("sleep", {"seconds": 1}))
    finally:
        environment._connection._timeout_s = 60.0
    assert "sleep took longer than 0.2 s" in step.info["tool_error"] and not step.terminated


@pytest.fixture(scope="module")
def shared(tasks: Path) -> Any:
    environment = make_environment(options(tasks, reset_tool="clear", max_turns=50))
    yield environment, environment.reset(environment.tasks("train", 1, 0)[0])
    environment.close()


@pytest.mark.full
def test_without_a_reset_tool_every_episode_has_a_new_server(tasks):
    environment = make_environment(options(tasks))
    try:
        task = environment.tasks("train", 1, 0)[0]
        for _ in range(2):
            reset = environment.reset(task)
            assert (
                said(environment, reset, format_call("put", {"title": "x"})).messages[0]["content"]
                == "1 books"
            )
    finally:
        environment.close()


@pytest.mark.full
def test_the_contract_holds(tasks):
    checked = check_environment(options(tasks, reset_tool="clear"), episodes=2)
    assert checked["ok"], checked["checks"]
    assert checked["policies"]["null"]["success"] == 0.0


def test_what_does_not_fit_is_said(tasks, monkeypatch):
    with pytest.raises(ValidationError, match="needs tasks"):
        McpOptions(mcp=SERVER, reward=REWARD)
    with pytest.raises(ValidationError, match="would clear it under the others"):
        options(tasks, mcp="http://127.0.0.1:1/mcp", reset_tool="clear")
    environment = make_environment(options(tasks, mcp=(sys.executable, "-c", "pass")))
    with pytest.raises(UsageError, match="does not answer as an MCP server"):
        environment.reset(environment.tasks("train", 1, 0)[0])
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(UsageError, match="package mcp, which is missing"):
        environment.reset(environment.tasks("train", 1, 0)[0])
