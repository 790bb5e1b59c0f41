"""The sql environment through the rollout: no gold in what the actor sees, no way to break it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stages.common.chat import encode_prompt
from stages.common.models import load_tokenizer
from stages.interaction.actions import format_call
from stages.interaction.arena import about
from stages.interaction.demonstrations import demonstrate_episodes
from stages.interaction.environments import make_environment
from stages.interaction.environments.base import Environment, Task
from stages.interaction.environments.sql import SqlOptions
from stages.interaction.generation import Generation, Request
from stages.interaction.rollout import collect
from stages.interaction.states import StateProcessor, build_state
from stages.interaction.trajectory import Trajectory
from tests.tiny_models import tiny_llama

OPTIONS = SqlOptions()
PROCESSORS: dict[str, dict[str, Any]] = {
    "window": {},
    "summary": {"summary": {"max_tokens": 64}},
    "facts": {"facts": {"max_tokens": 64}},
    "memory": {"memory": {"max_tokens": 64, "embedder": "hashing"}},
}
PROCESSORS["all"] = {k: v for options in PROCESSORS.values() for k, v in options.items()}


def make() -> Environment:
    return make_environment(OPTIONS)


def make_state() -> StateProcessor:
    return build_state({"tool_prompt": "full"}, lambda messages: 0)


class Replay:
    """Says given texts, episode by episode, whatever it is shown; keeps what it was shown."""

    def __init__(self, texts: Sequence[Sequence[str]]) -> None:
        self.texts = texts
        self.shown: list[Any] = []

    def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        self.shown += [(list(request.messages), request.previous) for request in requests]
        return [Generation(text=self._text(*request.key[-2:])) for request in requests]

    def _text(self, episode: int, turn: int) -> str:
        texts = self.texts[episode]
        return texts[min(turn, len(texts) - 1)]


def play(tasks: Sequence[Task], policy: Any, **options: Any) -> list[Trajectory]:
    options = {"make_state": make_state} | options
    return collect(tasks, make_environment=make, policy=policy, **options)


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    environment = make()
    return list(environment.tasks("train", 24, seed=5))


@pytest.fixture(scope="module")
def expert(tasks: list[Task]) -> list[Trajectory]:
    return demonstrate_episodes(tasks, make_environment=make, make_state=make_state, seed=0)


def gilded(task: Task, gold: str) -> Task:
    """The same task with another gold statement: the question and the database stay."""
    questions = [dict(row) | {"sql": gold} for row in task.payload["questions"]]
    return replace(task, payload={**task.payload, "questions": questions})


@pytest.mark.parametrize("name", PROCESSORS)
def test_altering_the_gold_leaves_every_prompt_identical(
    name: str, tasks: list[Task], expert: list[Trajectory], tmp_path: Path
) -> None:
    """Through environment, checklist and every processor, down to the actor's token ids."""
    narrow = {"tool_prompt": "none", "exchanges": 1, "max_tokens": 2000, **PROCESSORS[name]}
    tokenizer = load_tokenizer(tiny_llama(tmp_path))
    texts = [[turn.action.text for turn in episode.turns] for episode in expert]
    shown, played = [], []
    for gold in (None, "SELECT 'something else', 77"):
        policy = Replay(texts)
        altered = tasks if gold is None else [gilded(task, gold) for task in tasks]
        played.append(play(altered, policy, make_state=partial(build_state, narrow, about)))
        shown.append(policy.shown)
    for piece in PROCESSORS[name]:
        assert any(piece in turn.produced for episode in played[0] for turn in episode.turns)
    assert len(shown[0]) == sum(map(len, texts))
    assert shown[0] == shown[1]
    for (messages, _), (twin, _) in zip(*shown, strict=True):
        assert encode_prompt(tokenizer, messages) == encode_prompt(tokenizer, twin)
    before, after = ([e.privileged_before(1) for e in episodes] for episodes in played)
    assert all(one != other for one, other in zip(before, after, strict=True))
    assert any(e.success for e in played[0]) and not any(e.success for e in played[1])


def test_no_gold_answer_stands_in_the_first_state(expert: list[Trajectory]) -> None:
    for episode in expert:
        facts = episode.privileged_before(0)
        first = json.dumps([*episode.turns[0].messages, *episode.tools])
        assert facts["gold_sql"] not in first


def test_the_expert_mostly_succeeds_and_its_episodes_survive_a_file(
    expert: list[Trajectory],
) -> None:
    assert all(episode.error is None and episode.terminated for episode in expert)
    assert sum(episode.success for episode in expert) >= len(expert) / 4
    for episode in expert:
        row = json.loads(json.dumps(episode.to_json(), ensure_ascii=False))
        assert json.loads(json.dumps(Trajectory.from_json(row).to_json())) == row
        shown = [turn.messages for turn in episode.turns]
        assert all(b[: len(a)] == a for a, b in itertools.pairwise(shown))


HOSTILE: dict[str, Callable[[], str]] = {
    "nul in a statement": lambda: format_call("query", {"sql": "SELECT '\x00'"}),
    "half surrogate": lambda: '{"name": "query", "arguments": {"sql": "SELECT \'\\ud800\'"}}',
    "half surrogate in a name": lambda: '{"name": "describe", "arguments": {"table": "\\udc00"}}',
    "64-bit overflow": lambda: format_call("query", {"sql": "SELECT 9223372036854775807 + 1"}),
    "huge answer": lambda: format_call("query", {"sql": "SELECT printf('%.*c', 90000, 'x')"}),
    "deep expression": lambda: format_call("query", {"sql": "SELECT " + "(" * 3000 + ")" * 3000}),
    "endless": lambda: format_call(
        "query",
        {"sql": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT max(i) FROM n"},
    ),
    "two statements": lambda: format_call("query", {"sql": "SELECT 1; DROP TABLE x"}),
    "a list as the table": lambda: format_call("describe", {"table": ["a", {"b": None}]}),
    "no such argument": lambda: format_call("query", {"statement": 1, "sql": None}),
    "not a number": lambda: format_call("answer", {"value": {"nested": [1e308, -0.0, None]}}),
    "big integer": lambda: format_call("answer", {"value": 2**63 - 1}),
    "markers": lambda: format_call("query", {"sql": "SELECT '<|end|><|assistant|>'"}),
    "unknown tool": lambda: format_call("rm", {"path": "/"}),
    "broken": lambda: '{"name": "query", "arguments": {"sql": "SELECT',
    "babble": lambda: "\x00\x01\x02 \U0010ffff",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_no_action_breaks_the_environment(tasks: list[Task], case: str) -> None:
    """A dropped episode would be an escape: whatever the actor says is an observation."""
    [episode] = play(tasks[:1], Replay([[HOSTILE[case]()]]), max_turns=2)
    assert episode.error is None
    assert episode.terminated and not episode.success
    for turn in episode.turns:
        assert all(isinstance(m["content"], str) for m in turn.observation) and turn.observation
        assert sum(len(m["content"]) for m in turn.observation) < 20_000
        json.dumps(turn.observation, ensure_ascii=False).encode()
