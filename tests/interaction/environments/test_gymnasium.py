"""Gymnasium-like objects, in their dialects and from the real packages."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest

from stages.common.errors import UsageError
from stages.evaluation.check import check_environment
from stages.interaction.actions import format_call, parse_action
from stages.interaction.arena import Arena
from stages.interaction.environments import make_environment
from stages.interaction.environments.adapters.options import GymnasiumOptions
from stages.interaction.environments.base import Task
from stages.interaction.states import StateOptions
from tests.interaction.toys import Script

HERE = "tests.interaction.environments.adapted"


def options(name: str, **more: Any) -> GymnasiumOptions:
    return GymnasiumOptions(gymnasium=name if "-v" in name else f"{HERE}:{name}", **more)


def seed(number: int) -> Task:
    return Task(f"s{number}", "k", "g", {"seed": number})


def played(environment: Any, task: Task, *texts: str) -> list[Any]:
    reset = environment.reset(task)
    return [reset, *(environment.step(parse_action(text, reset.tools)) for text in texts)]


def test_text_worlds_and_suffixes():
    environment = make_environment(options("Corridor", prompt="Go.", reward_scale=3.0))
    reset, step = played(environment, seed(1), "go left and right")
    assert reset.messages[0]["content"].startswith("Go.\n\na corridor. say ")
    assert reset.tools == () and reset.goal == "Go."
    (told,) = step.messages
    assert told["role"] == "user" and told["content"].startswith("at 1. say ")
    assert step.rewards == {"success": pytest.approx(1 / 3)} and not step.success


def test_terminated_and_truncated_stay_apart():
    both = "left right"
    environment = make_environment(options("Corridor", reward_scale=3.0))
    end = played(environment, seed(1), both, both, both)[-1]
    assert end.terminated and not end.truncated and end.success
    cut = played(environment, seed(1), *["x"] * 6)[-1]
    assert cut.truncated and not cut.terminated and not cut.success
    assert cut.rewards == {"success": 0.0}
    told = make_environment(options("Corridor", success_key="won", reward_scale=30.0))
    assert played(told, seed(1), both, both, both)[-1].success
    # Its goal met at its own limit: nothing was cut off.
    limited = options("Corridor", arguments={"length": 9, "limit": 2}, reward_scale=2.0)
    end = played(make_environment(limited), seed(1), both, both)[-1]
    assert end.terminated and not end.truncated and end.success


def test_the_older_four_values_and_a_score_so_far():
    environment = make_environment(options("OldCorridor", cumulative_reward=True, reward_scale=2.0))
    reset, first, nothing, last = played(environment, seed(4), "1", "7", "1")
    assert reset.messages[0]["content"] == "say 1"
    shares = [step.rewards.get("success", 0.0) for step in (first, nothing, last)]
    assert shares == [0.5, 0.0, 0.5] and last.terminated and last.success
    cut = played(environment, seed(4), "cut")[-1]
    assert cut.truncated and not cut.terminated
    arena = Arena(options("OldCorridor"), StateOptions(tool_prompt="none"))
    episodes = arena.play([seed(n) for n in range(3)], Script("1", "crash"), label="")
    assert [e.error for e in episodes] == ["RuntimeError: the corridor fell in"] * 3


def test_a_world_cannot_touch_our_random_numbers():
    random.seed(5)
    expected = random.Random(5).random()
    one, other = (make_environment(options("Corridor")) for _ in "12")
    played(one, seed(1), "x")
    assert random.random() == expected
    # Two worlds between each other's steps draw as if each was alone.
    alone = [s.messages for s in played(one, seed(1), *"xxxx")[1:]]
    one.reset(seed(1)), other.reset(seed(1))
    mixed = []
    for _ in range(4):
        mixed.append(one.step(parse_action("x")).messages)
        other.step(parse_action("x"))
    assert mixed == alone


def test_empty_replies_never_reach_the_world():
    environment = make_environment(options("Corridor"))
    _, step = played(environment, seed(1), "  ")
    assert step.rewards == {"invalid": 1.0} and "a reply with text" in step.messages[0]["content"]


def test_real_gymnasium_with_numbers_names_and_calls():
    frozen = options(
        "FrozenLake-v1",
        arguments={"is_slippery": False},
        action_names=("left", "down", "right", "up"),
        max_turns=20,
    )
    environment = make_environment(frozen)
    call = format_call("act", {"action": "down"})
    reset, *steps, end = played(
        environment, seed(3), call, "I go down now", "2", "right", "bad", call, "go RIGHT"
    )
    assert "Actions: left, down, right, up." in reset.messages[0]["content"]
    assert "[S]FFF" in reset.messages[0]["content"]
    assert reset.tools[0]["function"]["parameters"]["properties"]["action"]["enum"][1] == "down"
    assert steps[0].messages[0]["role"] == "tool" and steps[1].messages[0]["role"] == "user"
    assert steps[4].rewards == {"invalid": 1.0}
    assert "expected one of left, down, right, up" in steps[4].messages[0]["content"]
    assert end.terminated and end.success and end.rewards == {"success": 1.0}
    checked = check_environment(frozen, episodes=16)
    assert checked["ok"], checked["checks"]
    assert 0 <= checked["policies"]["random"]["success"] < 0.5


def test_real_gymnasium_truncates_by_its_own_limit():
    cart = options("CartPole-v1", arguments={"max_episode_steps": 3, "render_mode": None})
    end = played(make_environment(cart), seed(1), "0", "1", "0")[-1]
    assert end.truncated is False and end.success  # 3 of 1: solved at its limit
    lake = options("FrozenLake-v1", arguments={"max_episode_steps": 2, "is_slippery": False})
    end = played(make_environment(lake), seed(1), "0", "0")[-1]
    assert end.truncated and not end.terminated


def test_real_textarena():
    game = GymnasiumOptions(
        gymnasium="textarena:make", arguments={"env_id": "GuessTheNumber-v0"}, max_turns=15
    )
    environment = make_environment(game)
    reset, first, second = played(environment, seed(7), "[1]", "[2]")
    assert "number" in reset.messages[0]["content"]
    assert reset.messages[0]["content"] not in first.messages[0]["content"]
    assert len(first.messages[0]["content"]) < 400 and len(second.messages[0]["content"]) < 400
    low, high, end = 1, 20, None
    environment.reset(seed(7))
    for _ in range(12):
        guess = (low + high) // 2
        end = environment.step(parse_action(f"[{guess}]"))
        if end.terminated:
            break
        said = end.messages[0]["content"].lower()
        low, high = (guess + 1, high) if "higher" in said else (low, guess - 1)
    assert end is not None and end.terminated and end.success and end.rewards == {"success": 1.0}
    checked = check_environment(game, episodes=4)
    assert checked["ok"], checked["checks"]


def test_a_missing_package_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(UsageError, match="package gymnasium, which is not installed"):
        make_environment(options("FrozenLake-v1"))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"gymnasium": "NoSuchWorld-v0"}, "cannot be made"),
        ({"gymnasium": f"{HERE}:Corridor", "arguments": {"wide": 1}}, "cannot be made.*wide"),
        ({"gymnasium": f"{HERE}:Corridor", "actions": "discrete"}, "needs action_names"),
        ({"gymnasium": "FrozenLake-v1", "action_names": ("left",)}, "1 names, but .* 4 actions"),
    ],
)
def test_what_does_not_fit_is_said(wrong, words):
    with pytest.raises(UsageError, match=words):
        make_environment(GymnasiumOptions(**wrong))


def test_the_contract_holds_and_the_expert_plays():
    corridor = options("Corridor", reward_scale=3.0, expert=f"{HERE}:corridor_expert")
    checked = check_environment(corridor, episodes=8)
    assert checked["ok"], checked["checks"]
    assert checked["policies"]["expert"]["success"] == 1.0 and checked["deterministic"]
    unscaled = corridor.model_copy(update={"reward_scale": 0.5})
    unscaled = check_environment(unscaled, episodes=4)
    assert not unscaled["ok"]
    assert "reward_scale" in unscaled["checks"]["plain_records"]["detail"]
