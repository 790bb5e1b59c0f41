"""Static pools on their way in: any known file, the actor's own tokens, one sentence otherwise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stages.common.chat import encode_action, encode_prompt
from stages.common.errors import UsageError
from stages.common.models import load_tokenizer
from stages.rl.offline.pool import Reader, fitted, read_episodes, refuse_unscored
from stages.rl.offline.selection import SELECTIONS
from stages.rl.pool import write_trajectories
from tests.rl.worlds import START, episode
from tests.tiny_models import tiny_llama, tiny_qwen3

CALL = {"id": "1", "type": "function", "function": {"name": "answer", "arguments": '{"value": 3}'}}


def flight(number: int, reward: float, task: int) -> dict:
    """An agent's episode as people keep them: OpenAI messages, tool calls, a reward at the end."""
    return {
        "task_id": task,
        "reward": reward,
        "traj": [
            {"role": "system", "content": "You are an analyst."},
            {"role": "user", "content": f"How many orders of customer {task}?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "1", "name": "answer", "content": f"{number}"},
            {"role": "assistant", "content": f"The answer is {3 if reward else number + 4}."},
            {"role": "user", "content": "###STOP###"},
        ],
    }


FLIGHTS = [flight(n, float(n % 3 == 0), n // 2) for n in range(8)]
"""Eight episodes of four tasks, three of them won."""


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flights") / "flights.json"
    path.write_text(json.dumps(FLIGHTS))
    return path


@pytest.fixture(scope="module", params=[tiny_llama, tiny_qwen3])
def reader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    tokenizer = load_tokenizer(request.param(tmp_path_factory.mktemp("model")))
    return Reader(tokenizer, len(tokenizer), 512)


def test_an_agents_episodes_become_a_pool_with_this_actors_tokens(flights, reader):
    episodes = fitted(read_episodes(flights), reader)
    assert [e.key for e in episodes] == [(n,) for n in range(8)]
    assert [e.success for e in episodes] == [row["reward"] > 0 for row in FLIGHTS]
    first, last = episodes[0].turns
    tokenizer = reader.tokenizer
    assert list(first.prompt_ids) == encode_prompt(tokenizer, list(first.messages))
    for turn in (first, last):
        assert list(turn.action_ids) == encode_action(
            tokenizer, list(turn.messages), turn.action.text
        )
        assert turn.logprobs == ()
    assert json.loads(first.action.text)["arguments"] == {"value": 3}
    # What was said is not tokenised again where the next prompt goes on from it.
    assert last.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    assert last.rewards == {"success": 1.0}


def test_long_prompts_lose_their_middle_and_replies_never(flights, reader, capsys):
    told = fitted(read_episodes(flights), replace(reader, max_length=60))
    whole = fitted(read_episodes(flights), reader)
    for cut, full in zip(told, whole, strict=True):
        for a, b in zip(cut.turns, full.turns, strict=True):
            assert a.action_ids == b.action_ids
            assert len(a.prompt_ids) + len(a.action_ids) <= 60
            assert a.prompt_ids[:5] == b.prompt_ids[:5] and a.prompt_ids[-5:] == b.prompt_ids[-5:]
    assert "lost the middle of their prompt" in capsys.readouterr().err
    first, last = whole[0].turns
    talk = replace(last, action=replace(last.action, text="orders " * 60))
    bare = replace(first, action_ids=())  # so that all is encoded anew
    (left,) = fitted([whole[0].with_turns([bare, talk])], replace(reader, max_length=60))
    assert left.turns[0].action_ids and not left.turns[1].action_ids
    with pytest.raises(UsageError, match="no reply of the pool fits"):
        fitted(read_episodes(flights), replace(reader, max_length=2))


def own(tokenizer, text="how many?", key=(3, 1, 4)):
    """An episode as this project's actors leave it."""
    messages = ({"role": "user", "content": text},)
    made = episode([([1], [2], 1.0)], key=key, version=7)
    ids = tuple(encode_prompt(tokenizer, list(messages)))
    turn = replace(made.turns[0], messages=messages, prompt_ids=ids, logprobs=(-0.5,))
    return made.with_turns([turn])


def test_known_tokens_stay_and_age_and_number_are_the_pools(reader):
    mine = own(reader.tokenizer)
    other = own(reader.tokenizer, "which orders?")  # of another run, with the same key
    a, b = fitted([mine, other], reader)
    assert a.turns == mine.turns and b.turns == other.turns
    assert (a.key, b.key) == ((0,), (1,)) and a.actor_version == b.actor_version == 0
    refuse_unscored([a, b])
    bare = a.with_turns([replace(a.turns[0], logprobs=())])
    with pytest.raises(UsageError, match=r"episode 2 .* without log-probs, .* vtrace needs"):
        refuse_unscored([a, bare])


def test_tokens_of_another_actor_are_refused(reader):
    mine = own(reader.tokenizer)
    turn = mine.turns[0]
    template = mine.with_turns([replace(turn, prompt_ids=(*turn.prompt_ids, 5))])
    vocabulary = mine.with_turns([replace(turn, action_ids=(reader.vocabulary,))])
    for bad in (template, vocabulary):
        with pytest.raises(UsageError, match=r"episode 2 .* another tokenizer or chat template"):
            fitted([mine, bad], reader)


def test_folders_and_files_and_what_is_no_pool(tmp_path, flights):
    run = tmp_path / "run"
    write_trajectories(run / "pool/00000.jsonl", [episode([([START], [3], 1.0)])])
    write_trajectories(run / "pool/00001.jsonl", [episode([([START], [4], 0.0)])] * 2)
    write_trajectories(run / "trajectories/00000.jsonl", [episode([([START], [5], 0.0)])] * 9)
    assert len(read_episodes(run)) == len(read_episodes(run / "pool")) == 3
    assert len(read_episodes(run / "pool/00001.jsonl")) == 2
    dropped = replace(episode([([START], [3], 1.0)]), error="it broke")
    write_trajectories(tmp_path / "dropped.jsonl", [dropped, episode([])])
    (tmp_path / "talk.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b"}))
    (tmp_path / "odd.jsonl").write_text('{"task_id": "1", "turns": [{"no": "turn"}]}')
    (tmp_path / "none").mkdir()
    for name, words in {
        "nowhere": "the pool .*nowhere does not exist; give a run's folder",
        "none": "is a folder without .jsonl or .parquet",
        "dropped.jsonl": "all 2 episodes of the pool .* are empty or were dropped",
        "talk.jsonl": "talk.jsonl line 1 has no reward, so it is no episode to learn a value from",
        "odd.jsonl": "odd.jsonl line 1 is no trajectory of aac",
    }.items():
        with pytest.raises(UsageError, match=words):
            read_episodes(tmp_path / name)


def test_what_each_method_learns_from(flights):
    episodes = read_episodes(flights)
    paid = {e.task_id: 0.0 for e in episodes}

    def total(e):
        return sum(float(t.rewards.get("success", 0.0)) for t in e.turns)

    assert SELECTIONS["iql"](episodes, total) == SELECTIONS["awr"](episodes, total) == episodes
    won = SELECTIONS["filtered_cloning"](episodes, total)
    assert won == [episodes[0], episodes[3], episodes[6]]
    best = SELECTIONS["rejection_sampling"](episodes, total)
    assert best == [episodes[0], episodes[3], episodes[4], episodes[6]] and len(paid) == 4
    lost = [e for e in episodes if not e.success]
    with pytest.raises(UsageError, match="none of the pool's 5 episodes succeeded"):
        SELECTIONS["filtered_cloning"](lost, total)
    with pytest.raises(UsageError, match="each of the pool's 4 tasks was played once"):
        SELECTIONS["rejection_sampling"](episodes[::2], total)
