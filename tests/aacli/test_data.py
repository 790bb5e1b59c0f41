"""``aac data check``: shapes are recognised, rows are judged, and conversions feed the stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stages.evaluation.data_shapes import SHAPES, shape_of
from stages.reward.data import read_preferences
from stages.rl.pool import ExperiencePool, read_trajectories
from stages.sft.data import only_successful, read_examples

USER = {"role": "user", "content": "book a table"}
CALL = {"id": "1", "type": "function", "function": {"name": "book", "arguments": '{"seats": 2}'}}


def episode(task: int, reward: float, *replies: Any, trial: int = 0) -> dict[str, Any]:
    """In the form that agent benchmarks leave behind."""
    told: list[dict[str, Any]] = [{"role": "system", "content": "rules"}, USER]
    for reply in replies:
        if isinstance(reply, dict):
            told.append({"role": "assistant", "content": None, "tool_calls": [reply]})
            told.append({"role": "tool", "tool_call_id": "1", "name": "book", "content": "ok"})
        else:
            told.append({"role": "assistant", "content": reply})
            told.append({"role": "user", "content": "###STOP###"})
    return {"task_id": task, "trial": trial, "reward": reward, "info": {}, "traj": told}


EPISODES = [
    episode(0, 1.0, CALL, "booked"),
    episode(0, 0.0, "no idea"),
    episode(0, 0.0, CALL, "I did nothing"),
    episode(1, 1.0, "done"),
    episode(2, 0.0, "not done"),
]
ROWS = {
    "trajectories of aac": {"task_id": "t", "kind": "k", "group": "g", "goal": "", "turns": []},
    "preferences, ShareGPT": {
        "conversations": [{"from": "human", "value": "hi"}],
        "chosen": {"from": "gpt", "value": "hello"},
        "rejected": {"from": "gpt", "value": "go away"},
    },
    "preferences": {"prompt": "hi", "chosen": "hello", "rejected": "go away"},
    "agent episodes": EPISODES[0],
    "dialogues, ShareGPT": {
        "conversations": [
            {"from": "human", "value": "weather?"},
            {"from": "function_call", "value": '{"name": "look", "arguments": {"at": "sky"}}'},
            {"from": "observation", "value": "rain"},
            {"from": "gpt", "value": "it rains"},
        ],
        "tools": '[{"name": "look", "parameters": {}}]',
    },
    "dialogues, TRL": {"messages": [USER, {"role": "assistant", "content": "booked"}]},
    "prompt and completion, TRL": {"prompt": [USER], "completion": "booked"},
    "instructions": {"instruction": "add", "history": [["1", "one"]], "reply": "two"},
}


def written(folder: Path, rows: list[Any], name: str = "data.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def checked(aac: Any, *words: Any, code: int = 0) -> dict[str, Any]:
    result = aac("data", "check", *words, "--json")
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout) if code == 0 else {"said": result.stderr}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_each_shape_is_told_and_is_sound(aac, tmp_path, shape):
    assert shape_of(ROWS[shape.name]) is shape
    found = checked(aac, written(tmp_path, [ROWS[shape.name]]))
    assert found["shapes"] == {shape.name: 1} and found["bad"] == 0
    preference = shape.name.startswith("preferences")
    assert found["readers"] == ["aac train-reward" if preference else "aac sft"]


def test_the_table_says_what_was_found(aac, tmp_path):
    result = aac("data", "check", written(tmp_path, EPISODES))
    assert result.exit_code == 0
    for words in ("agent episodes", "successful", "tasks won and lost", "aac sft", "experience"):
        assert words in result.stdout
    found = checked(aac, tmp_path / "data.jsonl")
    assert found["episodes"] == {
        "episodes": 5,
        "successful": 2,
        "tasks": 3,
        "tasks_won_and_lost": 1,
    }
    assert found["notes"]["tools are used that the row does not describe"] == 2


BAD = [
    {"what": 1},
    {"messages": [{"role": "bob", "content": "x"}]},
    {"prompt": "hi", "chosen": "", "rejected": "x"},
    EPISODES[1] | {"reward": "high"},
    {"messages": [USER]},
]


def test_bad_rows_are_named_and_nothing_is_written(aac, tmp_path):
    path = written(tmp_path, [*BAD, EPISODES[0]])
    out = tmp_path / "out.jsonl"
    said = checked(aac, path, "--to", "demonstrations", "--output", out, code=2)["said"]
    for words in (
        "line 1 has what; expected one of: ",
        "line 2 message 1 has the role 'bob'",
        "line 3 has no chosen",
        "line 4: reward is 'high', expected a number",
        "line 5 has no assistant message",
        "5 of 6 rows cannot be used",
    ):
        assert words in said
    assert not out.exists()
    found = checked(aac, path, "--drop-bad", "--to", "demonstrations", "--output", out)
    assert found["bad"] == 5 and found["written"] == 1 and len(found["problems"]) == 5
    again = checked(aac, path, "--drop-bad", "--to", "preferences", "--output", out, code=2)
    assert "exists; pass --overwrite" in again["said"]


def test_episodes_become_demonstrations(aac, tmp_path):
    out = tmp_path / "rows.jsonl"
    checked(aac, written(tmp_path, EPISODES), "--to", "demonstrations", "--output", out)
    examples = read_examples(out)
    assert len(examples) == 5
    (first, second), _ = [e.exchanges for e in only_successful(examples, "x")]
    assert first[1] == '{"name": "book", "arguments": {"seats": 2}}' and second[1] == "booked"


def test_episodes_become_preferences(aac, tmp_path):
    """Success against each failure on the same task, from where the replies part."""
    out = tmp_path / "pairs.jsonl"
    found = checked(aac, written(tmp_path, EPISODES), "--to", "preferences", "--output", out)
    assert found["written"] == 2
    one, other = [json.loads(line) for line in out.read_text().splitlines()]
    assert [m["role"] for m in one["prompt"]] == ["system", "user"]
    assert "book" in one["chosen"][0]["content"] and one["rejected"][0]["content"] == "no idea"
    assert [m["role"] for m in other["prompt"]] == ["system", "user", "assistant", "tool"]
    assert other["chosen"][0]["content"] == "booked" and other["task_id"] == "0"
    assert len(read_preferences(out)) == 2
    alone = written(tmp_path, EPISODES[3:], "alone.jsonl")
    words = ("--to", "preferences", "--output", tmp_path / "none.jsonl")
    assert "no task was both won and lost" in checked(aac, alone, *words, code=2)["said"]


def test_episodes_become_experience(aac, tmp_path):
    pool = ExperiencePool(tmp_path / "pool", max_episodes=10)
    out = tmp_path / "pool" / "00000.jsonl"
    checked(aac, written(tmp_path, EPISODES), "--to", "experience", "--output", out)
    pool.restore(before=1)
    assert len(pool) == 5
    won = read_trajectories(out)[0]
    assert won.success and won.terminated and [len(t.messages) for t in won.turns] == [2, 4]
    assert won.turns[0].action.calls[0].arguments == {"seats": 2}
    assert won.turns[0].observation[0]["content"] == "ok"
    assert [dict(t.rewards) for t in won.turns] == [{}, {"success": 1.0}]
    assert not any(t.logprobs for t in won.turns)
    # And back: an actor can learn from them as from its own.
    assert len(read_examples(out)) == 5


@pytest.mark.parametrize("name", ["preferences, ShareGPT", "dialogues, ShareGPT", "instructions"])
def test_conversions_say_the_same_as_the_rows(aac, tmp_path, name):
    path, out = written(tmp_path, [ROWS[name]]), tmp_path / "out.jsonl"
    checked(aac, path, "--to", "demonstrations", "--output", out)
    if not name.startswith("preferences"):
        assert read_examples(out) == read_examples(path)
        assert (
            "nothing says what is better"
            in checked(aac, path, "--to", "preferences", "--output", out, "--overwrite", code=2)[
                "said"
            ]
        )
        return
    assert read_examples(out)[0].exchanges[0][1] == "hello"
    checked(aac, path, "--to", "preferences", "--output", out, "--overwrite")
    (one,), (other,) = read_preferences(path), read_preferences(out)
    assert other[1]["chosen"][0]["content"] == "hello" and one[1]["rejected"]["value"] == "go away"
