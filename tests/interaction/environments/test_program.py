"""Programs that own their loop train like any other world; the openai client plays the episodes."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from stages.common.errors import UsageError
from stages.evaluation.check import check_environment
from stages.evaluation.metrics import episode_metrics
from stages.interaction.actions import format_call
from stages.interaction.arena import Arena
from stages.interaction.endpoint.protocol import read_request
from stages.interaction.environments.adapters.options import ProgramOptions
from stages.interaction.environments.base import Task
from stages.interaction.rewards.mix import RewardMix
from stages.interaction.states import StateOptions
from tests.interaction.environments import programs
from tests.interaction.toys import Script

HERE = "tests.interaction.environments.programs"


def arena(program: Any, **more: Any) -> Arena:
    entry = f"{HERE}:{program}" if isinstance(program, str) else program
    options = ProgramOptions(program=entry, **more)
    return Arena(options, StateOptions(tool_prompt="none"), parallel=50)


def seeds(count: int) -> list[Task]:
    return [Task(f"s{n}", "k", "g", {"seed": n}) for n in range(count)]


def test_a_program_with_tools_streaming_and_plain():
    call = format_call("add", {"a": 2, "b": 3})
    episodes = arena("calculator").play(seeds(2), Script(call, "it is 5"), label="")
    for episode in episodes:
        assert episode.error is None and episode.success and episode.terminated
        assert episode.tools[0]["function"]["name"] == "add"
        assert episode.goal == "what is 2 + 3?"
        first, second = episode.turns
        assert first.observation == ({"role": "tool", "content": "5"},)
        assert [m["role"] for m in second.messages] == ["user", "assistant", "tool"]
        assert second.messages[1]["content"] == call and second.rewards["success"] == 1.0
        assert not first.info.get("new_segment")
    lost = arena("calculator").play(seeds(2), Script("seven"), label="")
    assert [e.success for e in lost] == [False, False] and len(lost[0].turns) == 1


def test_a_rewritten_history_starts_a_new_segment_and_is_counted():
    (episode,) = arena("forgetful").play(seeds(1), Script("a", "b", "c", "d"), label="")
    assert [bool(t.info.get("new_segment")) for t in episode.turns] == [False, True, False, False]
    shown = [[m["content"] for m in turn.messages] for turn in episode.turns]
    assert shown == [
        ["talk"],
        ["talk", "a", "0"],
        ["so far: much talk"],
        ["so far: much talk", "c", "2"],
    ]
    assert episode.turns[-1].rewards["success"] == 0.5
    assert episode_metrics([episode], RewardMix())["new_segments"] == 1.0


def test_many_at_once():
    """More than a server has threads: requests wait without one."""
    episodes = arena("parrot").play(seeds(50), Script("1", "7"), label="")
    assert [e.task_id for e in episodes if e.success] == ["s7"]
    assert all(e.error is None and len(e.turns) == 2 for e in episodes)


@pytest.mark.parametrize(
    ("program", "words"),
    [("silent", "without asking"), ("failing", "ValueError: no paper in the printer")],
)
def test_a_program_at_fault_drops_its_episode(program, words):
    (episode,) = arena(program).play(seeds(1), Script("hello"), label="")
    assert episode.error is not None and words in episode.error


def test_at_the_limit_of_turns_the_program_is_told():
    programs.SEEN.clear()
    (episode,) = arena("endless", max_turns=3).play(seeds(1), Script("hm"), label="")
    assert episode.out_of_budget and len(episode.turns) == 3 and not episode.success
    ((thread, said),) = _waited()
    thread.join(10)
    assert not thread.is_alive() and "it is over" in said


def _waited() -> list[Any]:
    import time

    deadline = time.monotonic() + 20
    while not programs.SEEN and time.monotonic() < deadline:
        time.sleep(0.01)
    return programs.SEEN


def test_a_slow_program_is_dropped_in_time():
    slow = (sys.executable, "-c", "import time; time.sleep(60)")
    (episode,) = arena(slow, timeout_s=0.3).play(seeds(1), Script("x"), label="")
    assert episode.error == "TimeoutError: the program did nothing for 0.3 s"


def test_commands_find_what_they_need_in_variables():
    command = (sys.executable, "-m", HERE)
    episodes = arena(command).play(seeds(2), Script("1"), label="")
    assert [e.error for e in episodes] == [None, None]
    assert [e.success for e in episodes] == [False, True]
    (crashed,) = arena((*command, "--crash")).play(seeds(1), Script("1"), label="")
    assert crashed.error == "RuntimeError: the program ended with code 1 (out of luck)"


@pytest.mark.full
def test_the_contract_holds():
    options = ProgramOptions(program=f"{HERE}:parrot")
    checked = check_environment(options, episodes=6)
    assert checked["ok"], checked["checks"]
    assert checked["policies"]["null"]["success"] == 0.0 and checked["deterministic"]


GOOD = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "needs a JSON object with a list of messages"),
        (GOOD | {"messages": []}, "messages is empty"),
        (GOOD | {"n": 2}, "n = 2 is not supported"),
        (GOOD | {"top_p": 0.5}, "top_p is not supported"),
        (GOOD | {"stop": ["x"]}, "stop is not supported"),
        (GOOD | {"response_format": {"type": "json_object"}}, "response_format is not supported"),
        (GOOD | {"temperature": "hot"}, "temperature = 'hot' is not allowed"),
        (GOOD | {"tools": "all"}, "tools must be a list"),
        (GOOD | {"max_tokens": "many"}, "is malformed"),
        (GOOD | {"stream_options": "all"}, "is malformed"),
        (GOOD | {"messages": [{"role": "assistant", "tool_calls": 5}]}, "expected a list of calls"),
        (GOOD | {"messages": [{"role": "bob", "content": "x"}]}, "has the role 'bob'"),
    ],
)
def test_what_a_request_cannot_have(body, words):
    with pytest.raises(UsageError, match=words):
        read_request(json.loads(json.dumps(body)))


def test_half_characters_are_replaced():
    body = json.loads('{"messages": [{"role": "user", "content": "a\\ud800b"}]}')
    assert read_request(body).messages[0]["content"] == "a\ufffdb"
