"""Environment classes of TRL's GRPOTrainer, behind our contract: the same contract as TRL's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stages.common.errors import UsageError
from stages.evaluation.check import check_environment
from stages.interaction.actions import format_call, parse_action
from stages.interaction.arena import Arena
from stages.interaction.environments import make_environment
from stages.interaction.environments.adapters.options import TrlOptions
from stages.interaction.environments.base import Task
from stages.interaction.states import StateOptions
from tests.interaction.environments import adapted
from tests.interaction.toys import Script

HERE = "tests.interaction.environments.adapted"
PROMPT = [{"role": "system", "content": "be quick"}, {"role": "user", "content": "Find the key."}]


def options(name: str = "Lockers", **more: Any) -> TrlOptions:
    return TrlOptions(trl=f"{HERE}:{name}", **more)


def row_task(number: int = 1, **columns: Any) -> Task:
    return Task(
        f"t{number}", "lockers", "g", {"row": {"prompt": PROMPT, "number": number} | columns}
    )


def rows_file(folder: Path, **columns: Any) -> Path:
    rows = [{"prompt": PROMPT, "number": n % 3, "id": f"n{n}"} | columns for n in range(40)]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def played(environment: Any, task: Task, *texts: str) -> list[Any]:
    reset = environment.reset(task)
    return [reset, *(environment.step(parse_action(text, reset.tools)) for text in texts)]


def test_reset_gets_every_column_and_its_words_end_the_prompt():
    environment = make_environment(options())
    reset = environment.reset(row_task(1, colour="red"))
    assert [m["role"] for m in reset.messages] == ["system", "user"]
    assert reset.messages[-1]["content"] == "Find the key. There are 3 lockers, hint 1."
    (instance,) = environment._instances.values()
    assert instance.row == {"prompt": PROMPT, "colour": "red"}
    assert sorted(tool["function"]["name"] for tool in reset.tools) == ["look", "take"]
    look = reset.tools[0]["function"]["parameters"]
    assert look["properties"]["locker"]["type"] == "integer" and look["required"] == ["locker"]


def test_tools_answer_as_in_trl():
    calls = ({"locker": 0}, {"locker": "1", "loud": 1})
    one, two = (format_call("look", arguments) for arguments in calls)
    gone = format_call("fly", {})
    environment = make_environment(options())
    _, step, wrong, unknown = played(environment, row_task(), one, two, gone)
    assert step.messages == ({"role": "tool", "name": "look", "content": "empty"},)
    assert "unexpected keyword argument" in wrong.messages[0]["content"]
    assert unknown.messages[0]["content"] == "{'error': 'Tool fly not found.'}"
    assert not unknown.terminated and unknown.info["tool_error"] == "Tool fly not found."


def test_asynchronous_tools_come_last_and_exceptions_do_not_end():
    many = "".join(
        f"<tool_call>{format_call(name, {'locker': 1})}</tool_call>" for name in ("take", "look")
    )
    _, first, second, end = played(
        make_environment(options()), row_task(), many, format_call("look", {"locker": 1}), "done"
    )
    assert [m["content"] for m in first.messages] == ["key", "{'taken': True, 'gently': True}"]
    assert second.messages[0]["content"] == "{'error': 'Game over.'}" and not second.terminated
    assert end.terminated and end.success and end.rewards == {"success": 1.0}


@pytest.mark.parametrize("text", ["no idea", '{"name": "look", "arguments": {', ""])
def test_a_reply_without_a_call_ends_the_episode(text):
    _, end = played(make_environment(options()), row_task(), text)
    assert end.terminated and not end.success and end.rewards == {"success": 0.0}


def test_the_last_turn_is_not_carried_out():
    environment = make_environment(options(max_turns=2))
    look = format_call("look", {"locker": 1})
    _, first, last = played(environment, row_task(), look, look)
    assert first.messages and not last.messages and not last.terminated
    arena = Arena(options(max_turns=2), StateOptions(tool_prompt="none"))
    (episode,) = arena.play([row_task()], Script(look), label="")
    assert episode.out_of_budget and len(episode.turns) == 2


def test_done_is_looked_at_only_where_asked():
    take = format_call("take", {"locker": 1})
    assert not played(make_environment(options()), row_task(), take)[-1].terminated
    early = make_environment(options(stop_when_done=True))
    assert played(early, row_task(), take)[-1].success


def test_reward_functions_are_weighted_and_may_not_apply():
    functions = {"reward_funcs": (f"{HERE}:live_reward", f"{HERE}:length_reward")}
    weighed = make_environment(options("Unrewarded", **functions, reward_weights=(0.5, 2.0)))
    take = format_call("take", {"locker": 1})
    end = played(weighed, row_task(), take, "x" * 10)[-1]
    assert end.rewards["success"] == pytest.approx(0.5 + 2.0 * 0.1)
    assert end.info["logged"] == {"length": 10.0}
    silent = played(weighed, row_task(silent=True), take, "x" * 10)[-1]
    assert silent.rewards["success"] == pytest.approx(0.5)
    scaled = make_environment(options(reward_scale=2.0, success_at=1.0))
    end = played(scaled, row_task(), take, "x")[-1]
    assert end.rewards["success"] == 0.5 and end.success


def test_several_classes_by_column(tmp_path):
    names = {"easy": f"{HERE}:Lockers", "bare": f"{HERE}:Unrewarded"}
    several = TrlOptions(
        trl=names, tasks=rows_file(tmp_path), reward_funcs=(f"{HERE}:live_reward",)
    )
    environment = make_environment(several)
    environment.reset(row_task(environment="bare"))
    assert type(environment._instance) is adapted.Unrewarded
    assert "environment" not in environment._instance.row
    with pytest.raises(UsageError, match="environment = 'x'; expected one of easy, bare"):
        environment.reset(row_task(environment="x"))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"trl": "no.such.module:Class"}, "no.such.module cannot be imported"),
        ({"trl": f"{HERE}:Nothing"}, "has no Nothing"),
        ({"trl": f"{HERE}:random"}, "is no class or function"),
        ({"trl": f"{HERE}:Undescribed"}, "method helper is public"),
        ({"trl": f"{HERE}:Unrewarded"}, "has no get_reward"),
        ({"trl": f"{HERE}:Corridor"}, "no get_reward"),
        ({"trl": f"{HERE}:live_reward"}, "cannot be made"),
    ],
)
def test_what_does_not_fit_is_said(wrong, words):
    with pytest.raises(UsageError, match=words):
        make_environment(TrlOptions(**wrong))


def test_a_fault_of_the_class_drops_the_episode(tmp_path):
    arena = Arena(options("Broken"), StateOptions(tool_prompt="none"), parallel=3)
    tasks = [row_task(number) for number in range(6)]
    episodes = arena.play(tasks, Script("no"), label="")
    dropped = ["OSError: the lockers are jammed" if n % 2 else None for n in range(6)]
    assert [e.error for e in episodes] == dropped


def test_the_contract_holds(tmp_path):
    checked = check_environment(
        options(tasks=rows_file(tmp_path), expert=f"{HERE}:locker_expert"), episodes=8
    )
    assert checked["ok"], checked["checks"]
    assert checked["policies"]["expert"]["success"] == 1.0
    assert checked["policies"]["null"]["success"] == 0.0 and checked["deterministic"]
    own = check_environment(options(), episodes=8)
    assert own["ok"] and own["policies"]["expert"] is None
