"""The sql-session environment: chained questions, what a window shows of them, what pays."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from stages.interaction.arena import Arena
from stages.interaction.environments.base import Step, Task
from stages.interaction.environments.sql import (
    ExpertOptions,
    SessionEnvironment,
    SessionOptions,
    judge,
)
from stages.interaction.environments.sql.database import Cell
from stages.interaction.environments.sql.lexicon import BY_NAME
from stages.interaction.environments.sql.options import SELDOM, UNSEEN_DOMAINS
from stages.interaction.environments.sql.tasks import open_world, split_of, world_of
from stages.interaction.trajectory import Action, Message, ToolCall, Trajectory

CLEAN = SessionOptions(expert=ExpertOptions.clean())
SPLITS = ("train", "validation", "test")


def call(name: str, **arguments: Any) -> Action:
    return Action("", (ToolCall(name, arguments),))


def answers(environment: SessionEnvironment, task: Task, change: Callable[[int, str], str]):
    """Answer every question at once, with the gold answer as ``change`` makes of it."""
    facts: Any = environment.reset(task).privileged
    steps: list[Step] = []
    for index in range(len(task.payload["questions"])):
        steps.append(environment.step(call("answer", value=change(index, facts["gold_answer"]))))
        facts = steps[-1].privileged
    return steps


def played(options: SessionOptions, count: int, exchanges: int = 3) -> list[Trajectory]:
    state = {"exchanges": exchanges, "checklist": True, "tool_prompt": "none"}
    arena = Arena(options, state)
    return arena.demonstrate(arena.tasks("test", count, 3), seed=0)


@pytest.fixture(scope="module")
def clean() -> SessionEnvironment:
    return SessionEnvironment(CLEAN)


@pytest.fixture(scope="module")
def tasks(clean: SessionEnvironment) -> list[Task]:
    return list(clean.tasks("test", 64, seed=3))


@pytest.fixture(scope="module")
def episodes() -> list[Trajectory]:
    return played(CLEAN, 64)


def results(task: Task) -> list[Cell]:
    """The answer to every question, from its own statement."""
    world = world_of(BY_NAME[task.group], task.payload["world"], CLEAN.rows)
    database = open_world(world)
    found = [database.run(row["sql"]).rows for row in task.payload["questions"]]
    database.close()
    assert all(len(rows) == 1 and len(rows[0]) == 1 for rows in found)
    return [rows[0][0] for rows in found]


# ---- tasks


def test_each_question_is_about_the_true_answer_to_the_one_before(tasks: list[Task]) -> None:
    for task in tasks:
        rows, right = task.payload["questions"], results(task)
        assert len(rows) == CLEAN.chain
        for before, row in zip(right, rows[1:], strict=False):
            value = row["spec"]["value"]
            shown = round(before, 2) if isinstance(before, float) else before
            assert value == shown and row["spec"]["chained"]
            written = f"'{value}'" if isinstance(value, str) else str(value)
            assert row["sql"].rstrip(")").endswith(written)
            assert not re.search(rf"\b{re.escape(str(value))}\b", row["text"])
            assert "that" in row["text"]


def test_rounding_the_answer_before_changes_no_answer(tasks: list[Task]) -> None:
    tried = 0
    for task in tasks:
        world = world_of(BY_NAME[task.group], task.payload["world"], CLEAN.rows)
        database = open_world(world)
        right = results(task)
        for k, row in enumerate(task.payload["questions"][1:]):
            if isinstance(right[k], float):
                exact = row["sql"].replace(str(row["spec"]["value"]), repr(right[k]))
                assert database.run(exact).rows[0][0] == right[k + 1]
                tried += exact != row["sql"]
        database.close()
    assert tried > 3


def test_filterless_shortcut_is_wrong(tasks: list[Task]) -> None:
    """An oracle apart from the generator's own check: later questions without their WHERE."""
    total = 0
    for task in tasks:
        database = open_world(world_of(BY_NAME[task.group], task.payload["world"], CLEAN.rows))
        for right, row in zip(results(task), task.payload["questions"], strict=True):
            if row["spec"]["template"] in ("lookup", "two_step") or " WHERE " not in row["sql"]:
                continue
            careless = database.run(row["sql"].split(" WHERE ")[0]).rows[0][0]
            assert not judge.same_value(careless, right)
            total += 1
        database.close()
    assert total > 60


def test_tasks_are_deterministic_and_disjoint(clean: SessionEnvironment) -> None:
    drawn = {split: clean.tasks(split, 48, seed=5) for split in SPLITS}
    again = SessionEnvironment(CLEAN)
    assert all(again.tasks(split, 48, seed=5) == drawn[split] for split in SPLITS)
    assert again.tasks("train", 48, seed=6) != drawn["train"]
    ids = [task.id for split in SPLITS for task in drawn[split]]
    assert len(ids) == len(set(ids))
    for split in SPLITS:
        for task in drawn[split]:
            world = world_of(BY_NAME[task.group], task.payload["world"], CLEAN.rows)
            assert split_of(world.fingerprint, task.payload["questions"][0]["text"]) == split
            assert json.loads(json.dumps(task.payload)) == task.payload


def test_unseen_domains_are_half_of_the_test_split_and_in_no_other(
    clean: SessionEnvironment, tasks: list[Task]
) -> None:
    assert sum(task.group in UNSEEN_DOMAINS for task in tasks) == len(tasks) / 2
    for split in ("train", "validation"):
        assert not {t.group for t in clean.tasks(split, 64, seed=0)} & set(UNSEEN_DOMAINS)


def test_every_template_is_asked_first_as_often_and_follows(tasks: list[Task]) -> None:
    first = Counter(task.kind for task in tasks)
    assert set(first.values()) == {8} and set(first) == set(CLEAN.templates)
    later = {row["spec"]["template"] for task in tasks for row in task.payload["questions"][1:]}
    assert later == set(CLEAN.templates) - {"group", "lookup"}


@pytest.mark.parametrize("chain", [2, 6])
def test_chain_is_the_number_of_questions(chain: int) -> None:
    environment = SessionEnvironment(SessionOptions(chain=chain))
    assert {len(t.payload["questions"]) for t in environment.tasks("train", 16, 0)} == {chain}


# ---- the expert


def test_clean_expert_succeeds_in_twelve_to_twenty_five_turns(episodes: list[Trajectory]) -> None:
    assert all(episode.success for episode in episodes)
    turns = [len(episode.turns) for episode in episodes]
    assert min(turns) >= 12 and max(turns) <= 25
    assert max(turns) < CLEAN.max_turns


def test_all_that_the_expert_writes_stands_in_a_window_of_three(
    episodes: list[Trajectory],
) -> None:
    """Nothing but a memory of its own could teach an actor a name it is not shown."""
    word = re.compile(r"\w+(?:\.\d+)?")
    known = set(word.findall("SELECT FROM WHERE JOIN USING GROUP BY ORDER LIMIT DESC ASC 1"))
    known |= {"COUNT", "MAX", "MIN", "AVG", "SUM"}
    forgotten = 0
    for episode in episodes:
        for turn in episode.turns:
            shown = "\n".join(str(m["content"]) for m in turn.messages)
            argument = " ".join(map(str, turn.action.calls[0].arguments.values()))
            assert set(word.findall(argument)) - known <= set(word.findall(shown)), argument
            forgotten += sum(m["role"] == "assistant" for m in turn.messages) < turn.index
    assert forgotten > 0


def test_it_describes_again_what_has_left_the_window(episodes: list[Trajectory]) -> None:
    again = sum(turn.info["repeated"] for episode in episodes for turn in episode.turns)
    assert again > 2 * len(episodes)


def test_detours_cost_no_success() -> None:
    habits = ExpertOptions.clean().model_copy(
        update={"guessed_column": 1.0, "guessed_table": 1.0, "redundant_call": 1.0}
    )
    found = played(SessionOptions(expert=habits), 48)
    assert all(episode.success for episode in found)
    errors = sum(bool(turn.info["tool_error"]) for e in found for turn in e.turns)
    assert errors > 2 * len(found)


def test_default_mistakes_leave_a_share_of_the_sessions_right() -> None:
    found = played(SessionOptions(), 160)
    assert 0.25 < sum(episode.success for episode in found) / len(found) < 0.6


def test_a_hopeless_expert_still_ends() -> None:
    """Its wrong answers (no rows, NULL, a word for a number) go into the next statement."""
    habits = ExpertOptions(**dict.fromkeys(SELDOM, 1.0))
    found = played(SessionOptions(chain=6, max_turns=60, expert=habits), 64)
    assert not any(episode.out_of_budget for episode in found)
    said = {str(m["content"]) for e in found for t in e.turns for m in t.observation}
    assert "no rows" in said


# ---- what is known to whom, and what pays


def test_gold_does_not_depend_on_what_was_answered(
    clean: SessionEnvironment, tasks: list[Task]
) -> None:
    for task in tasks[:16]:
        told = answers(clean, task, lambda index, gold: gold)
        lied = answers(clean, task, lambda index, gold: "wrong" if index == 0 else gold)
        gold = [[s.privileged["gold_answer"] for s in steps] for steps in (told, lied)]
        assert gold[0] == gold[1]
        assert [s.terminated for s in told] == [False] * (CLEAN.chain - 1) + [True]
        assert (told[-1].success, lied[-1].success) == (True, False)
        assert [s.rewards["success"] for s in told] == [0.0] * (CLEAN.chain - 1) + [1.0]
        assert not any(s.rewards["success"] for s in lied)


def test_only_the_critic_learns_that_an_answer_was_wrong(
    clean: SessionEnvironment, tasks: list[Task]
) -> None:
    for task in tasks[:16]:
        told, lied = (
            answers(clean, task, lambda index, gold, wrong=wrong: "?" if index == wrong else gold)
            for wrong in (None, 1)
        )
        visible = [
            [(s.messages, s.checklist, s.terminated, s.info) for s in x] for x in (told, lied)
        ]
        assert visible[0] == visible[1]
        facts = [[s.privileged["earlier_answers_right"] for s in x] for x in (told, lied)]
        assert facts == [["1 of 1", "2 of 2", "3 of 3", "4 of 4"],
                         ["1 of 1", "1 of 2", "2 of 3", "3 of 4"]]  # fmt: skip


def test_facts_of_the_question_are_privileged(clean: SessionEnvironment, tasks: list[Task]) -> None:
    facts = clean.reset(tasks[0]).privileged
    assert facts["earlier_answers_right"] == "0 of 0"
    assert {"gold_sql", "gold_answer", "remaining_sub_goals", "result_seen"} <= set(facts)


def test_checklist_holds_the_tables_once_they_were_seen(
    clean: SessionEnvironment, tasks: list[Task]
) -> None:
    assert [name for name, _ in clean.reset(tasks[0]).checklist] == [
        "tables",
        "columns",
        "result",
        "answer 1",
    ]
    step = clean.step(call("list_tables"))
    assert step.checklist[0] == (f"tables {step.messages[0]['content']}", True)
    assert clean.step(call("answer", value="x")).checklist[-1] == ("answer 2", False)


def test_a_whole_session_pays_what_a_question_does_and_cannot_be_farmed(
    clean: SessionEnvironment, tasks: list[Task], episodes: list[Trajectory]
) -> None:
    for task, episode in zip(tasks[:24], episodes, strict=False):
        once = _sum([dict(turn.rewards) for turn in episode.turns])
        clean.reset(task)
        twice = [clean.step(turn.action) for turn in _doubled(episode)]
        farmed = _sum([dict(step.rewards) for step in twice])
        once.pop("repeated", None)
        assert once == pytest.approx(farmed)
        assert once["success"] == 1.0
        assert 0.5 < once["sub_goal"] <= 1.0 + 1e-9
        assert once["useful_result"] == pytest.approx(1.0)


def _doubled(episode: Trajectory) -> list[Any]:
    """Every turn but the answers said twice in a row."""
    return [
        turn
        for turn in episode.turns
        for _ in range(1 if turn.action.calls[0].name == "answer" else 2)
    ]


def _sum(rewards: list[dict[str, float]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for row in rewards:
        total.update(row)
    return {name: value for name, value in total.items() if value}


def test_an_invalid_call_costs_in_full(clean: SessionEnvironment, tasks: list[Task]) -> None:
    clean.reset(tasks[0])
    assert clean.step(call("drop")).rewards == {"invalid": 1.0}


# ---- through states and options


def test_the_newest_question_stays_in_sight(episodes: list[Trajectory]) -> None:
    for episode in episodes[:16]:
        asked: list[Message] = [episode.initial_messages[-1]]
        for turn in episode.turns:
            shown = [str(m["content"]) for m in turn.messages if m["role"] == "user"]
            assert asked[-1]["content"] in shown[-1]
            assert shown[0].startswith(asked[0]["content"])
            asked += [m for m in turn.observation if m["role"] == "user"]


def test_given_habits_leave_the_others_seldom() -> None:
    options = SessionOptions.model_validate({"name": "sql-session", "expert": {"wrong_order": 1}})
    assert options.expert.wrong_order == 1.0
    assert options.expert.skipped_step == SELDOM["skipped_step"]


@pytest.mark.parametrize(
    "given",
    [{"chain": 1}, {"chain": 7}, {"follow_ups": 1}, {"database": "x"}, {"templates": ["?"]}],
)
def test_bad_options_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SessionOptions(**given)


def test_every_option_is_described() -> None:
    assert all(field.description for field in SessionOptions.model_fields.values())
