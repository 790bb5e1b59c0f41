"""Scripted yardsticks."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from stages.common.errors import UsageError
from stages.evaluation.policies import most_frequent_policy, null_policy, random_policy
from stages.interaction.actions import parse_action
from stages.interaction.generation import Policy, Request
from stages.interaction.trajectory import Trajectory

TOOLS = (
    {"type": "function", "function": {"name": "list", "parameters": {"type": "object"}}},
    {
        "name": "find",
        "parameters": {
            "properties": {
                "word": {"type": "string"},
                "count": {"type": "integer"},
                "exact": {"type": "boolean"},
                "order": {"enum": ["up", "down"]},
                "many": {"type": "array"},
                "either": {"type": ["string", "number"]},
            }
        },
    },
)


def request(*key: int) -> Request:
    messages = [
        {"role": "system", "content": "secret"},
        {"role": "user", "content": "how many orders?"},
    ]
    return Request(messages, TOOLS, key)


def test_random_calls_fit_the_tools_and_follow_the_key() -> None:
    policy = random_policy()
    assert isinstance(policy, Policy)
    requests = [request(0, 0, 0, turn) for turn in range(60)]
    texts = [g.text for g in policy.generate(requests)]
    assert texts == [g.text for g in policy.generate(requests[::-1])][::-1]
    calls = [parse_action(text, TOOLS).calls[0] for text in texts]
    assert {call.name for call in calls} == {"list", "find"}
    found = [call.arguments for call in calls if call.name == "find"]
    assert {a["word"] for a in found} <= {"how", "many", "orders"}
    assert {a["order"] for a in found} == {"up", "down"}
    assert all(isinstance(a["count"], int) and isinstance(a["many"], list) for a in found)
    assert {a["exact"] for a in found} == {True, False}


def test_random_without_tools_says_nothing() -> None:
    assert random_policy().generate([Request([], (), (0,))])[0].text == ""


def test_null_says_nothing() -> None:
    assert null_policy().generate([request(0)])[0].text == ""


def test_most_frequent_ending_of_successful_demonstrations(
    episode: Callable[..., Trajectory],
) -> None:
    demonstrations = [
        episode("list", "answer 3", success=True),
        episode("answer 3", success=True),
        episode("list", "answer 2", success=True),
        *[episode("answer 9")] * 5,
    ]
    text = most_frequent_policy(demonstrations).generate([request(0)])[0].text
    assert json.loads(text) == {"name": "answer", "arguments": {"value": "3"}}


def test_most_frequent_needs_a_success(episode: Callable[..., Trajectory]) -> None:
    with pytest.raises(UsageError, match="none of 1 demonstrations"):
        most_frequent_policy([episode("answer 9")])
