"""A conversation with a scripted agent over real databases."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from stages.common.errors import UsageError
from stages.evaluation import chat
from stages.interaction import arena as arena_module
from stages.interaction.actions import format_call
from stages.interaction.generation import Generation, Request
from stages.interaction.player import LoadedActor
from stages.recipe.models import Recipe
from tests.evaluation import worlds


class Script:
    """Says these lines, one a turn, in every episode."""

    def __init__(self, *lines: str) -> None:
        self.lines = lines
        self.shown: list[Sequence[dict]] = []
        self.greedy: list[bool] = []

    def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        self.shown += [request.messages for request in requests]
        self.greedy.append(greedy)
        return [Generation(text=self.lines[request.key[-1]]) for request in requests]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Script]:
    """Put a script in the actor's place."""

    def install(*lines: str) -> Script:
        made = Script(*lines)
        state = {"tool_prompt": "none", "checklist": False}
        loaded = LoadedActor(made, lambda messages: 0, state)
        monkeypatch.setattr(chat, "player", lambda *_: loaded)
        return made

    return install


@pytest.fixture
def recipe() -> Recipe:
    return Recipe.model_validate(
        {"name": "demo", "model": {"actor": "base"}, "environment": {"name": "sql", "max_turns": 3}}
    )


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Path]:
    """A person's own database."""
    path = tmp_path / "shop.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE teas (name TEXT, price REAL);"
        "INSERT INTO teas VALUES ('assam', 4.5), ('sencha', 6.0);"
    )
    connection.close()
    return path


LIST = format_call("list_tables", {})
QUERY = format_call("query", {"sql": "SELECT MAX(price) FROM teas"})


def test_a_question_over_a_persons_own_database(recipe, shop, script, capsys):
    policy = script(LIST, QUERY, format_call("answer", {"value": 6}))
    question = "what does the dearest tea cost?"
    (row,) = chat.chat_command(recipe, "x", question=question, database=shop)
    assert row == {"question": question, "answer": "6", "turns": 3, "success": None}
    assert policy.shown[0] == [{"role": "user", "content": question}]
    assert policy.greedy == [True] * 3
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    steps = ["list_tables()", "teas", "query(SELECT MAX(price) FROM teas)", "6", "answer(6)"]
    assert shown[0] == "The agent works in sql (shop)."
    assert shown[1:] == [*steps, "answer: 6"]


def test_questions_from_a_pipe_until_exit(recipe, script, monkeypatch, capsys):
    policy = script(format_call("answer", {"value": "yes"}))
    monkeypatch.setattr("sys.stdin", io.StringIO("is it?\n\nis it not?\nexit\nnever asked\n"))
    rows = chat.chat_command(recipe, "x", greedy=False)
    assert [row["question"] for row in rows] == ["is it?", "is it not?"]
    assert [messages[0]["content"] for messages in policy.shown] == ["is it?", "is it not?"]
    assert policy.greedy == [False, False]
    shown = capsys.readouterr().out
    assert shown.count("answer: yes") == 2
    assert 'A question about it: "' in shown


def test_an_end_of_input_leaves(recipe, script, monkeypatch):
    script()
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert chat.chat_command(recipe, "x") == []


def test_out_of_turns_and_plain_talk(recipe, script, capsys):
    script("I wonder", "", "hm")
    (row,) = chat.chat_command(recipe, "x", question="well?")
    assert row["answer"] is None
    shown = capsys.readouterr().out
    assert "I wonder" in shown and "(nothing)" in shown
    assert "no answer within 3 turns" in shown


def test_playing_a_held_out_task_tells_the_verdict(recipe, script, monkeypatch, capsys):
    monkeypatch.setattr(arena_module, "make_environment", lambda options: worlds.Doors())
    script(format_call("answer", {"door": 0}))
    rows = [chat.chat_command(recipe, "x", task=n)[0] for n in range(4)]
    assert sorted(row["success"] for row in rows) == [False, False, False, True]
    assert rows[0]["question"] == "which door has the prize?"
    shown = capsys.readouterr().out
    assert shown.count("right") == 1
    assert shown.count("wrong") == 3


def test_a_wrong_answer_is_shown_beside_the_right_one(recipe, script, shop, tmp_path, capsys):
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"question": "how many?", "sql": "SELECT COUNT(*) FROM teas"}\n')
    own = recipe.environment.model_copy(update={"database": shop, "questions": questions})
    script(format_call("answer", {"value": 7}))
    chat.chat_command(recipe.model_copy(update={"environment": own}), "x", task=0)
    assert capsys.readouterr().out.rstrip().endswith("answer: 7\nwrong; expected: 2")


def test_what_cannot_be_done_is_told(recipe, script, monkeypatch, tmp_path):
    script("")
    with pytest.raises(UsageError, match="--task plays a held-out task"):
        chat.chat_command(recipe, "x", task=0, question="and?")
    with pytest.raises(UsageError, match=r"nothing\.db does not exist"):
        chat.chat_command(recipe, "x", question="?", database=tmp_path / "nothing.db")
    monkeypatch.setattr(arena_module, "make_environment", lambda options: worlds.Mute())
    with pytest.raises(UsageError, match="doors takes no questions of your own"):
        chat.chat_command(recipe, "x", question="?")


def test_a_task_beyond_the_last(recipe, script, shop, tmp_path):
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"question": "how many?", "sql": "SELECT COUNT(*) FROM teas"}\n')
    own = recipe.environment.model_copy(update={"database": shop, "questions": questions})
    script(format_call("answer", {"value": 2}))
    mine = recipe.model_copy(update={"environment": own})
    assert chat.chat_command(mine, "x", task=0)[0]["success"] is True
    with pytest.raises(UsageError, match=r"--task 3 does not exist; give 0 to 0"):
        chat.chat_command(mine, "x", task=3)
