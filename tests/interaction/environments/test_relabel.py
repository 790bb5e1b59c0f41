"""Hindsight in sql and service: the other task is one that the same actions solve."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stages.interaction.actions import format_call, parse_action
from stages.interaction.arena import Arena
from stages.interaction.environments import make_environment
from stages.interaction.environments.base import Task
from stages.interaction.environments.service import ServiceEnvironment, ServiceOptions
from stages.interaction.environments.sql import SqlEnvironment, SqlOptions
from stages.interaction.environments.sql.lexicon import BY_NAME
from stages.interaction.environments.sql.questions import Question
from stages.interaction.environments.sql.relabel import normal
from stages.interaction.environments.sql.tasks import row_of, split_of, task_over, world_of
from stages.interaction.states import StateOptions
from stages.interaction.trajectory import Trajectory, Turn
from tests.interaction.environments.test_service import FIND, a_task, tells

ENOUGH = 60


def played(environment: Any, task: Task, replies: Sequence[str]) -> Trajectory:
    """The episode that these replies make, to the end."""
    reset = environment.reset(task)
    turns, success, over = [], False, False
    for index, text in enumerate(replies):
        action = parse_action(text, reset.tools)
        step = environment.step(action)
        turns.append(Turn(index, (), action, observation=step.messages))
        success, over = step.success, step.terminated
    whole = Trajectory(task.id, task.kind, task.group, reset.goal, turns=tuple(turns), key=(1, 2))
    return replace(whole, success=success, terminated=over)


def again(environment: Any, task: Task, episode: Trajectory) -> Trajectory:
    return played(environment, task, [turn.action.text for turn in episode.turns])


@pytest.mark.parametrize(
    "options",
    [SqlOptions(), SqlOptions(mixed_domains=0.5, invented_domains=0.5), ServiceOptions()],
    ids=["sql", "made up", "service"],
)
def test_what_is_relabelled_succeeds_when_it_is_said_again(options: Any) -> None:
    arena = Arena(options, StateOptions(checklist=False, tool_prompt="none"))
    environment: Any = make_environment(options)
    tasks = arena.tasks("train", ENOUGH, 4)
    known = {task.id for split in ("validation", "test") for task in arena.tasks(split, 40, 4)}
    count = 0
    for task, episode in zip(tasks, arena.demonstrate(tasks, seed=3), strict=True):
        other = environment.relabel(task, episode)
        if episode.success and options.name == "sql":
            assert other is None
        if other is None:
            continue
        count += 1
        json.dumps(dict(other.payload), allow_nan=False)
        assert other.id != task.id and other.id not in known
        assert again(environment, other, episode).success
        assert environment.relabel(task, episode) == other  # drawn by the episode, not by chance
    assert count >= ENOUGH / 10


# ---- sql

SEED = 6
"""A shop in which the questions below are fair, and of the training split."""
WORLD = world_of(BY_NAME["shop"], SEED, (20, 40))
SHOP = WORLD.names


def asking(*questions: Question) -> Task:
    """A task over one shop; what the questions are in words does not matter here."""
    rows = [row_of(q, f"question {k}?", WORLD) for k, q in enumerate(questions)]
    return task_over(WORLD, ("shop", SEED), rows)


def price(function: str, **more: Any) -> Question:
    return Question("aggregate", "", function=function, measure="price", **more)


def query(sql: str) -> str:
    return format_call("query", {"sql": sql})


def result(environment: SqlEnvironment, task: Task, *statements: str) -> str:
    """What the last of some statements returns."""
    done = played(environment, task, [query(sql) for sql in statements])
    return str(done.turns[-1].observation[0]["content"])


def told(
    task: Task, statements: Sequence[str], answer: str | None = None, **options: Any
) -> tuple[Task | None, Trajectory]:
    """Relabelled after these statements and an answer, which is the last one's result if None."""
    environment = SqlEnvironment(SqlOptions(**options))
    value = result(environment, task, *statements) if answer is None else answer
    replies = [*map(query, statements), format_call("answer", {"value": value})]
    episode = played(environment, task, replies)
    return environment.relabel(task, episode), episode


LOWEST = f"SELECT MIN({SHOP['price']}) FROM {SHOP['@child']}"


def question_of(task: Task | None) -> Question:
    assert task is not None
    (row,) = task.payload["questions"]
    return Question(**row["spec"])


@pytest.mark.parametrize(
    "statement", [LOWEST, LOWEST.lower(), f"  {LOWEST} ;".replace("(", " ( "), LOWEST + ";"]
)
def test_a_minimum_where_the_highest_was_asked_answers_what_the_lowest_is(statement: str) -> None:
    other, episode = told(asking(price("MAX")), [statement])
    asked = question_of(other)
    assert (asked.template, asked.function, asked.measure) == ("aggregate", "MIN", "price")
    assert "lowest price" in asked.text and not episode.success
    assert split_of(WORLD.fingerprint, asked.text) == "train"


def test_what_does_not_follow_from_a_statement_is_left_alone() -> None:
    task = asking(price("MAX"))
    for statements, answer in [
        ([LOWEST], "12345"),  # not what the statement returned
        ([f"SELECT 7 * COUNT(*) FROM {SHOP['@child']}"], None),  # answers no question of ours
        ([f"SELECT COUNT(*) FROM {SHOP['@child']}"], None),  # nor does this: a filter is missing
        ([], "12"),
    ]:
        other, episode = told(task, statements, answer)
        assert other is None and not episode.success
    unanswered = played(SqlEnvironment(), task, [query(LOWEST)])
    assert SqlEnvironment().relabel(task, unanswered) is None
    right, episode = told(asking(price("MIN")), [LOWEST])
    assert right is None and episode.success


def test_a_result_that_is_right_by_luck_teaches_no_shortcut() -> None:
    """The id that the first step would have found, guessed: the right row, but no way to it."""
    parent, key = SHOP["@parent"], SHOP["@parent_key"]
    fact = WORLD.domain.parent.columns[0].concept
    second = f"SELECT {SHOP[fact]} FROM {parent} WHERE {key} = "
    first = f"SELECT {key} FROM {SHOP['@child']} WHERE {SHOP['@child_key']} = 3"
    task = asking(price("MAX"))
    found = result(SqlEnvironment(), task, first)
    guessed, _ = told(task, [second + found])
    assert guessed is None
    asked = question_of(told(task, [first, second + found])[0])
    assert (asked.template, asked.value, asked.measure) == ("two_step", 3, fact)


def test_only_templates_of_the_recipe_are_asked() -> None:
    task = asking(price("MAX"))
    assert told(task, [LOWEST], templates=("aggregate",))[0] is not None
    assert told(task, [LOWEST], templates=("lookup",))[0] is None


def test_of_several_questions_only_the_wrongly_answered_are_replaced() -> None:
    task = asking(price("MAX"), price("AVG"))
    environment = SqlEnvironment(SqlOptions(follow_ups=1))
    replies = []
    for statement in (LOWEST, LOWEST.replace("MIN", "AVG")):
        value = result(environment, task, statement)
        replies += [query(statement), format_call("answer", {"value": value})]
    episode = played(environment, task, replies)
    other = environment.relabel(task, episode)
    assert other is not None and not episode.success
    assert other.payload["questions"][0]["spec"]["function"] == "MIN"
    assert other.payload["questions"][1] == task.payload["questions"][1]
    assert again(environment, other, episode).success
    half = played(environment, task, replies[:2])
    assert environment.relabel(task, half) is None


def test_of_a_persons_own_questions_it_is_another_one(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "cakes.sqlite") as connection:
        connection.execute("CREATE TABLE cakes (kind TEXT, price REAL)")
        connection.executemany("INSERT INTO cakes VALUES (?, ?)", [("plum", 3.5), ("nut", 2.0)])
    connection.close()
    asked = {"How many?": "SELECT COUNT(*) FROM cakes", "How dear?": "SELECT MAX(price) FROM cakes"}
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps({"question": q, "sql": s}) + "\n" for q, s in asked.items()))
    options = SqlOptions(database=tmp_path / "cakes.sqlite", questions=file)
    environment = SqlEnvironment(options)
    tasks = {t.payload["questions"][0]["text"]: t for t in environment.tasks("train", 2, 0)}
    replies = [query("select max(price) from cakes"), format_call("answer", {"value": 3.5})]
    episode = played(environment, tasks["How many?"], replies)
    other = environment.relabel(tasks["How many?"], episode)
    assert other == tasks["How dear?"] and again(environment, other, episode).success
    assert environment.relabel(tasks["How dear?"], episode) is None
    wrong = played(
        environment, tasks["How many?"], [replies[0], format_call("answer", {"value": 2})]
    )
    assert environment.relabel(tasks["How many?"], wrong) is None


def test_spelling_makes_no_difference_but_values_do() -> None:
    assert normal("SELECT a FROM b WHERE c='X y' ;") == normal("select A  from B where C = 'X y'")
    assert normal("SELECT a FROM b WHERE c='X'") != normal("SELECT a FROM b WHERE c='x'")
    assert normal("SELECT a FROM b WHERE c > 1") != normal("SELECT a FROM b WHERE c < 1")


# ---- service


def hindsight(task: Task, replies: Sequence[str], **options: Any) -> tuple[Any, Trajectory]:
    environment = ServiceEnvironment(ServiceOptions(**options))
    episode = played(environment, task, replies)
    assert episode.terminated and not episode.success
    return environment.relabel(task, episode), episode


def test_a_change_that_was_not_wished_is_what_another_customer_wishes() -> None:
    """The customer says no to Oslo, and the agent moves it there all the same."""
    task = a_task("change_city", value="Lima", expected={"city": "Lima"}, said=["number", "name"])
    moved = format_call("change_city", {"order": "42", "city": "Oslo"})
    other, episode = hindsight(task, [FIND, "change the city of order 42 to Oslo?", moved, "done"])
    (wish,) = other.payload["wishes"]
    assert (wish["intent"], wish["number"], wish["value"]) == ("change_city", "42", "Oslo")
    assert other.payload["expected"]["42"]["city"] == "Oslo"
    assert other.payload["records"] == task.payload["records"]
    assert again(ServiceEnvironment(), other, episode).success


def test_who_never_asked_the_name_serves_one_who_tells_it() -> None:
    task = a_task("ask_city", said=["number"], told=[tells("42", "city", "Rome")])
    other, _ = hindsight(task, [FIND, "the city is Rome"])
    assert "name" in other.payload["wishes"][0]["told"]


def test_what_breaks_the_policy_for_everyone_is_no_success_for_anyone() -> None:
    cancel = format_call("cancel_order", {"order": "42"})
    task = a_task("cancel", said=["number", "name"], expected={"status": "cancelled"})
    assert hindsight(task, [FIND, cancel, "done"])[0] is None  # nobody was asked


def test_it_needs_a_customer_and_a_judge_by_rules() -> None:
    speaker = {"kind": "model", "speaker": {"endpoint": "http://127.0.0.1:1/v1"}}
    task = a_task("ask_city", said=["number"], told=[tells("42", "city", "Rome")])
    _, episode = hindsight(task, [FIND, "the city is Rome"])
    for part in ("user", "judge"):
        options = ServiceOptions.model_validate({part: speaker})
        assert ServiceEnvironment(options).relabel(task, episode) is None
