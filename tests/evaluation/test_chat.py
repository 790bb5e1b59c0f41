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
    steps = ["list_tables() → teas", "query(SELECT MAX(price) FROM teas) → 6", "answer(6)"]
    assert shown[0] == "The agent works in sql (shop)."
    assert shown[1:] == [*steps, "answer: 6"]


def test_questions_from_a_pipe_until_exit(recipe, script, monkeypatch, capsys):
    policy = script(format_call("answer", {"value": "yes"}))
    monkeypatch.setattr("sys.stdin", io.StringIO("is it?\n\nis it not?\nexit\nnever asked\n"))
    rows = chat.chat_command(recipe, "x", look=chat.Look(greedy=False))
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
    script("I \x1b[2Jwonder", "", "hm")
    (row,) = chat.chat_command(recipe, "x", question="well?")
    assert row["answer"] is None
    shown = capsys.readouterr().out
    assert "I �[2Jwonder" in shown and "(nothing)" in shown and "\x1b" not in shown
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
    with pytest.raises(UsageError, match=r"nothing\.db is no file"):
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


SERVICE = {
    "name": "desk",
    "model": {"actor": "base"},
    "environment": {"name": "service", "domains": ["orders"], "show_policy": False},
}


def card(recipe: Recipe, number: int) -> dict:
    """The wish of a held-out task: what the person is shown."""
    arena = arena_module.Arena(recipe.environment, {"checklist": False, "tool_prompt": "none"})
    tasks = arena.tasks(recipe.evaluation.split, number + 1, recipe.evaluation.seed)
    return tasks[number].payload["wishes"][0]


def test_the_person_is_the_customer_of_a_held_out_task(script, monkeypatch, capsys):
    recipe = Recipe.model_validate(SERVICE)
    wish = card(recipe, 1)
    call = format_call("find_order", {"order": wish["number"]})
    policy = script("which order?", call, "sorry, not the owner")
    typed = f"i have a wish\n\norder {wish['number']}\nexit\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    (row,) = chat.chat_command(recipe, "x", task=1, human=True)
    assert row["question"] == "i have a wish" and row["turns"] == 3
    assert policy.shown[1][-1] == {"role": "user", "content": f"order {wish['number']}"}
    shown = capsys.readouterr().out
    assert f"order {wish['number']}, name {wish['name']}" in shown
    assert shown.count("agent: which order?") == 1 == shown.count("which order?")
    assert f"find_order({wish['number']})" in shown and "owner" in shown
    assert shown.splitlines()[-1].startswith("right" if row["success"] else "wrong")


def test_a_bare_chat_at_the_desk_makes_the_person_the_customer(script, monkeypatch, capsys):
    script("good day")
    monkeypatch.setattr("sys.stdin", io.StringIO("cancel my order\n"))
    (row,) = chat.chat_command(Recipe.model_validate(SERVICE), "x")
    assert row["question"] == "cancel my order" and row["success"] is False
    assert "You are a customer (orders)" in capsys.readouterr().out


def test_a_free_conversation_whose_worth_the_person_says(script, monkeypatch, capsys):
    system = {"name": "human", "system": "be brief"}
    recipe = Recipe.model_validate({**SERVICE, "environment": system})
    policy = script("four", "bye")
    monkeypatch.setattr("sys.stdin", io.StringIO("what is 2 + 2?\nthanks\nexit\ny\n"))
    (row,) = chat.chat_command(recipe, "x")
    assert row == {"question": "what is 2 + 2?", "answer": "bye", "turns": 2, "success": True}
    assert policy.shown[0][0] == {"role": "system", "content": "be brief"}
    assert "Was the agent of help?" in capsys.readouterr().out


def test_where_there_is_no_user_nobody_can_take_its_place(recipe, script):
    script("")
    with pytest.raises(UsageError, match="environment sql has no user whose place"):
        chat.chat_command(recipe, "x", human=True)
    with pytest.raises(UsageError, match="--human makes you the user"):
        chat.chat_command(recipe, "x", human=True, question="?")


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def test_long_calls_are_folded_and_opened_when_asked(recipe, script, shop, monkeypatch, capsys):
    sql = "SELECT name, price FROM teas WHERE price > 1 ORDER BY price DESC, name ASC"
    script(format_call("query", {"sql": sql}), format_call("answer", {"value": 6}))
    monkeypatch.setattr("sys.stdin", io.StringIO("/open\nwhich?\n/open\n/help\n"))
    chat.chat_command(recipe, "x", database=shop)
    lines = lines_of(capsys.readouterr().out)
    at = lines.index("answer: 6")
    assert lines[:at] == [
        "The agent works in sql (shop).",
        "nothing was called yet.",
        f"  query({sql})"[:77] + "…",
        "  answer(6)",
    ]
    assert all(len(line) <= 80 for line in lines[:at])
    assert lines[at + 1 : at + 3] == [f'  query {{"sql": "{sql}"}}', "    sencha | 6"]
    assert lines[at + 4] == '  answer {"value": 6}'
    assert lines[at + 5].startswith("/open shows the calls")


def test_a_flag_shows_all_of_it_at_once(recipe, script, shop, capsys):
    script(QUERY, format_call("answer", {"value": 6}))
    look = chat.Look(unfolded=True)
    chat.chat_command(recipe, "x", question="?", database=shop, look=look)
    shown = lines_of(capsys.readouterr().out)
    assert shown[1:] == [
        "  query(SELECT MAX(price) FROM teas)", "    6", "  answer(6)", "answer: 6",
    ]  # fmt: skip


def test_an_interrupt_stops_the_answer_and_not_the_conversation(
    recipe, script, shop, monkeypatch, capsys
):
    policy = script(format_call("answer", {"value": 6}))
    real = policy.generate

    def once(requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        policy.generate = real  # type: ignore[method-assign]
        raise KeyboardInterrupt

    policy.generate = once  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", io.StringIO("first?\nsecond?\n"))
    rows = chat.chat_command(recipe, "x", database=shop)
    assert [row["question"] for row in rows] == ["second?"]
    assert "stopped; ask something else, or exit." in capsys.readouterr().out


def test_outside_of_the_world_it_is_only_talk(recipe, script, monkeypatch, capsys):
    policy = script("four", "you are welcome")
    monkeypatch.setattr("sys.stdin", io.StringIO("what is 2 + 2?\nthanks\nexit\n"))
    (row,) = chat.chat_command(chat.without_world(recipe), "x")
    assert (row["question"], row["turns"]) == ("what is 2 + 2?", 2)
    assert [m["content"] for m in policy.shown[1]] == ["what is 2 + 2?", "four", "thanks"]
    assert lines_of(capsys.readouterr().out) == ["agent: four", "agent: you are welcome"]
