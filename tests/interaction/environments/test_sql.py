"""The sql environment: tasks, rewards, limits, judge, a person's own data."""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from stages.common.errors import UsageError
from stages.interaction.environments import ADAPTERS, ENVIRONMENTS, make_environment
from stages.interaction.environments.base import Demonstrator, Environment, Step, Task
from stages.interaction.environments.sql import (
    ExpertOptions,
    SqlEnvironment,
    SqlOptions,
    judge,
    questions,
)
from stages.interaction.environments.sql.lexicon import DOMAINS
from stages.interaction.environments.sql.options import TEMPLATES, UNSEEN_DOMAINS
from stages.interaction.environments.sql.questions import Question
from stages.interaction.environments.sql.tasks import open_world, split_of, world_of
from stages.interaction.environments.sql.world import name_options
from stages.interaction.trajectory import Action, Message, ToolCall

CLEAN = SqlOptions(expert=ExpertOptions.clean())
Act = Callable[[list[Message]], str]


def parsed(text: str) -> Action:
    row = json.loads(text)
    return Action(text, (ToolCall(row["name"], row["arguments"]),))


def call(name: str, **arguments: Any) -> Action:
    return Action("", (ToolCall(name, arguments),))


def play(environment: SqlEnvironment, task: Task, act: Act) -> list[Step]:
    """One episode, at most ``max_turns`` steps."""
    seen = list(environment.reset(task).messages)
    steps: list[Step] = []
    for _ in range(environment.max_turns):
        step = environment.step(parsed(act(seen)))
        steps.append(step)
        seen += step.messages
        if step.terminated:
            break
    return steps


def success_rate(
    environment: SqlEnvironment, tasks: list[Task], make: Callable[[Task], Act]
) -> float:
    return sum(play(environment, t, make(t))[-1].success for t in tasks) / len(tasks)


@pytest.fixture(scope="module")
def clean() -> SqlEnvironment:
    return SqlEnvironment(CLEAN)


@pytest.fixture(scope="module")
def test_tasks(clean: SqlEnvironment) -> list[Task]:
    return list(clean.tasks("test", 200, seed=3))


# ---- registry and tasks


def test_registry_makes_environments_that_keep_the_contract() -> None:
    for name, (options, kind) in ENVIRONMENTS.items():
        if name in ADAPTERS:
            continue  # these need a world of the person's; they have tests of their own
        environment = make_environment(options())
        assert isinstance(environment, kind)
        assert isinstance(environment, Environment)
        # Nobody can demonstrate to a person what that person wants.
        assert isinstance(environment, Demonstrator) == (environment.name != "human")


def test_tasks_are_deterministic_and_json_able(clean: SqlEnvironment) -> None:
    again = SqlEnvironment(CLEAN).tasks("train", 30, seed=5)
    assert clean.tasks("train", 30, seed=5) == again
    assert clean.tasks("train", 30, seed=6) != again
    assert clean.tasks("train", 10, seed=5) == again[:10]
    assert json.loads(json.dumps([t.payload for t in again])) == [t.payload for t in again]
    assert max(len(json.dumps(t.payload)) for t in again) < 1000


def test_splits_are_disjoint_and_without_repetition(clean: SqlEnvironment) -> None:
    ids = {split: [t.id for s in (0, 1) for t in clean.tasks(split, 120, s)]
           for split in ("train", "validation", "test")}  # fmt: skip
    for split, given in ids.items():
        others = {i for name, rest in ids.items() if name != split for i in rest}
        assert len(set(given[:120])) == 120
        assert not set(given) & others


def test_split_follows_the_hash_of_schema_and_question(clean: SqlEnvironment) -> None:
    for split in ("train", "validation", "test"):
        for task in clean.tasks(split, 20, seed=9):
            world = world_of(_domain(task.group), task.payload["world"], CLEAN.rows)
            assert split_of(world.fingerprint, task.payload["questions"][0]["text"]) == split


def test_unseen_domains_are_half_of_the_test_split_and_in_no_other(
    clean: SqlEnvironment, test_tasks: list[Task]
) -> None:
    share = sum(t.group in UNSEEN_DOMAINS for t in test_tasks) / len(test_tasks)
    assert 0.4 < share < 0.6
    for split in ("train", "validation"):
        assert not {t.group for t in clean.tasks(split, 150, seed=0)} & set(UNSEEN_DOMAINS)


def test_every_template_and_both_wordings_occur(clean: SqlEnvironment) -> None:
    tasks = clean.tasks("train", 160, seed=0)
    assert Counter(t.kind for t in tasks) == dict.fromkeys(TEMPLATES, 20)
    first = {(t.kind, t.payload["questions"][0]["text"].split(" ")[0]) for t in tasks}
    assert all(sum(kind == template for kind, _ in first) == 2 for template in TEMPLATES)


def test_lexicon_names_are_distinct_within_a_domain() -> None:
    assert len(DOMAINS) >= 10
    for domain in DOMAINS:
        names = [n for options in name_options(domain).values() for n in options]
        assert len(names) == len(set(names)), domain.name
        tables = [*domain.child.names, *domain.parent.names, *domain.extra.names]
        assert len(tables) == len(set(tables)), domain.name
        concepts = [c.concept for t in (domain.child, domain.parent) for c in t.columns]
        assert len(concepts) == len(set(concepts)), domain.name


def _domain(name: str) -> Any:
    return next(d for d in DOMAINS if d.name == name)


# ---- policies


def test_clean_expert_always_succeeds(clean: SqlEnvironment, test_tasks: list[Task]) -> None:
    assert success_rate(clean, test_tasks, lambda t: clean.demonstrate(t, 0)) == 1.0


def test_recovery_alone_costs_no_success(test_tasks: list[Task]) -> None:
    """Guesses that fail and repeated calls: the expert still ends right, from what it sees."""
    habits = replace_options(guessed_column=1.0, guessed_table=1.0, redundant_call=1.0)
    environment = SqlEnvironment(SqlOptions(expert=habits, max_turns=12))
    errors = 0
    for task in test_tasks[:80]:
        steps = play(environment, task, environment.demonstrate(task, 1))
        errors += sum(bool(s.info["tool_error"]) for s in steps)
        assert steps[-1].success
    assert errors >= 80


def replace_options(**habits: float) -> ExpertOptions:
    return ExpertOptions.clean().model_copy(update=habits)


@pytest.mark.parametrize(
    ("habit", "spoils"),
    [
        ("wrong_aggregate", lambda q: q.function in ("MAX", "MIN")),
        ("dropped_filter", lambda q: q.template == "count_filter"
         or (q.template == "aggregate" and q.filter)),
        ("dropped_join_filter", lambda q: q.template.startswith("join")),
        ("wrong_operator", lambda q: q.operator == ">"),
        ("wrong_order", lambda q: q.order == "ASC"),
        ("skipped_step", lambda q: q.template == "two_step"),
    ],
)  # fmt: skip
def test_each_mistake_spoils_what_it_is_about_and_nothing_else(
    test_tasks: list[Task], habit: str, spoils: Callable[[Question], bool]
) -> None:
    environment = SqlEnvironment(SqlOptions(expert=replace_options(**{habit: 1.0})))
    outcomes = []
    for task in test_tasks[:120]:
        question = Question(**task.payload["questions"][0]["spec"])
        right = play(environment, task, environment.demonstrate(task, 2))[-1].success
        outcomes.append((bool(spoils(question)), right))
    spoiled = [right for concerned, right in outcomes if concerned]
    assert len(spoiled) >= 4
    assert sum(spoiled) / len(spoiled) < 0.1
    assert all(right for concerned, right in outcomes if not concerned)


def test_default_demonstrations_succeed_about_half_of_the_time(test_tasks: list[Task]) -> None:
    environment = SqlEnvironment()
    rate = success_rate(environment, test_tasks, lambda t: environment.demonstrate(t, 0))
    assert 0.42 < rate < 0.62


def test_policies_without_understanding_fail(clean: SqlEnvironment, test_tasks: list[Task]) -> None:
    answers = Counter(_gold(clean, t) for t in clean.tasks("train", 200, seed=1))
    frequent = answers.most_common(1)[0][0]
    rng = random.Random(0)
    assert success_rate(clean, test_tasks, lambda t: lambda seen: _answer("")) < 0.1
    assert success_rate(clean, test_tasks, lambda t: lambda seen: _answer(frequent)) < 0.1
    assert success_rate(clean, test_tasks, lambda t: lambda seen: _random_call(seen, rng)) < 0.1


def _gold(environment: SqlEnvironment, task: Task) -> str:
    return str(environment.reset(task).privileged["gold_answer"])


def _answer(value: str) -> str:
    return json.dumps({"name": "answer", "arguments": {"value": value}})


def _random_call(seen: list[Message], rng: random.Random) -> str:
    """A random tool with a random word of what has been seen."""
    words = str(seen[-1]["content"]).replace(",", " ").replace("?", " ").split() or ["x"]
    word = rng.choice(words)
    arguments = {"describe": {"table": word}, "query": {"sql": f"SELECT * FROM {word}"}}
    tool = rng.choice(["list_tables", "describe", "query", "answer"])
    chosen = arguments.get(tool, {"value": word} if tool == "answer" else {})
    return json.dumps({"name": tool, "arguments": chosen})


def test_filterless_shortcut_is_wrong(test_tasks: list[Task]) -> None:
    """An oracle apart from the generator's own check: run the statement without its WHERE."""
    lucky = total = 0
    for task in test_tasks:
        row = task.payload["questions"][0]
        if " WHERE " not in row["sql"] or task.kind in ("lookup", "two_step"):
            continue
        world = world_of(_domain(task.group), task.payload["world"], CLEAN.rows)
        database = open_world(world)
        gold = database.run(row["sql"]).rows
        lucky += judge.same([database.run(row["sql"].split(" WHERE ")[0]).rows[0][0]], gold[0])
        total += 1
        database.close()
    assert total > 50
    assert lucky / total < 0.1


# ---- what the actor may know, and rewards


def _script(environment: SqlEnvironment, task: Task) -> list[Action]:
    """The clean expert's actions with an unhelpful repetition of each."""
    actions: list[Action] = []
    act = environment.demonstrate(task, 0)
    seen = list(environment.reset(task).messages)
    while True:
        action = parsed(act(seen))
        step = environment.step(action)
        seen += step.messages
        actions += [action] if step.terminated else [action, action]
        if step.terminated:
            return actions


def test_gold_changes_nothing_the_actor_sees(clean: SqlEnvironment) -> None:
    for task in clean.tasks("test", 24, seed=4):
        payload = json.loads(json.dumps(task.payload))
        payload["questions"][0]["sql"] = "SELECT 'something else'"
        altered = replace(task, payload=payload)
        actions = _script(clean, task)
        views = []
        for version in (task, altered):
            reset = clean.reset(version)
            view = [(reset.messages, reset.goal, reset.tools, reset.checklist)]
            for action in actions:
                step = clean.step(action)
                view.append((step.messages, step.checklist, step.terminated, step.info))  # type: ignore[arg-type]
            views.append((view, reset.privileged))
        assert views[0][0] == views[1][0]
        assert views[0][1] != views[1][1]


def test_privileged_facts_are_of_the_moment(clean: SqlEnvironment) -> None:
    for task in clean.tasks("test", 24, seed=4):
        facts = [clean.reset(task).privileged, *(
            s.privileged for s in play(clean, task, clean.demonstrate(task, 0)))]  # fmt: skip
        assert facts[0]["remaining_sub_goals"]
        assert not facts[0]["result_seen"]
        assert facts[-1]["remaining_sub_goals"] == []
        for before, after in pairwise(facts):
            assert set(after["remaining_sub_goals"]) <= set(before["remaining_sub_goals"])
            assert set(before) == {"gold_sql", "gold_answer", "remaining_sub_goals", "result_seen"}


def test_sub_goals_add_up_to_one_and_cannot_be_farmed(clean: SqlEnvironment) -> None:
    for task in clean.tasks("test", 24, seed=4):
        once = [s.rewards for s in play(clean, task, clean.demonstrate(task, 0))]
        actions = _script(clean, task)
        clean.reset(task)
        twice = [clean.step(a).rewards for a in actions]
        total, farmed = _sum(once), _sum(twice)
        assert total == pytest.approx(farmed)
        assert total["sub_goal"] == pytest.approx(1.0)
        assert total["success"] == 1.0
        assert total["useful_result"] == 1.0
        assert all(0 < v <= 1 for r in once for k, v in r.items() if k != "success")


def _sum(rewards: list[Any]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for row in rewards:
        total.update(row)
    return dict(total)


def test_describing_every_table_pays_only_the_needed_ones(clean: SqlEnvironment) -> None:
    task = next(t for t in clean.tasks("test", 80, 4) if t.kind == "count_filter")
    clean.reset(task)
    tables = clean.step(call("list_tables")).messages[0]["content"].split(", ")
    paid = [clean.step(call("describe", table=t)).rewards for t in tables]
    assert sum("sub_goal" in r for r in paid) == 1


def test_checklist_is_ticked_by_visible_facts(clean: SqlEnvironment) -> None:
    task = clean.tasks("test", 1, seed=4)[0]
    start = clean.reset(task).checklist
    assert start == (("tables", False), ("columns", False), ("result", False), ("answer", False))
    done = [sum(d for _, d in s.checklist) for s in play(clean, task, clean.demonstrate(task, 0))]
    assert done[0] == 1
    assert done[-1] == 4
    assert done == sorted(done)


@pytest.mark.parametrize(
    ("action", "says", "invalid"),
    [
        (Action("hm", (), "not JSON"), "error: not JSON", False),
        (Action("hello"), "no tool call found", False),
        (call("drop"), "unknown tool 'drop'", True),
        (call("query"), "exactly one argument: sql", True),
        (call("query", sql="SELECT 1", more=1), "exactly one argument: sql", True),
        (call("query", sql=3), "sql must be a text", True),
        (call("describe", table=["a"]), "table must be a text", True),
        (call("list_tables", x=1), "takes no arguments", True),
        (call("answer", value=True), "value must be", True),
        (call("answer", value={"a": 1}), "value must be", True),
        (call("answer", value=[[1]]), "value must be", True),
    ],
)
def test_wrong_calls_are_observations(
    clean: SqlEnvironment, test_tasks: list[Task], action: Action, says: str, invalid: bool
) -> None:
    clean.reset(test_tasks[0])
    step = clean.step(action)
    assert says in step.messages[0]["content"]
    assert step.rewards == ({"invalid": 1.0} if invalid else {})
    assert step.info["invalid"] is invalid
    assert not step.terminated


def test_replies_in_a_row_that_are_no_call_end_an_episode_where_a_limit_says_so(
    clean: SqlEnvironment, test_tasks: list[Task]
) -> None:
    babble, listing = Action("hello"), call("list_tables")
    limited = SqlEnvironment(CLEAN.model_copy(update={"malformed_limit": 2}))
    limited.reset(test_tasks[0])
    ended = [limited.step(action) for action in (babble, listing, babble, babble)]
    assert [step.terminated for step in ended] == [False, False, False, True]
    assert not ended[-1].success
    limited.reset(test_tasks[1])  # counted anew in each episode
    assert not limited.step(babble).terminated
    clean.reset(test_tasks[0])
    assert not any(clean.step(babble).terminated for _ in range(6))


def test_several_calls_run_in_order_up_to_the_answer(
    clean: SqlEnvironment, test_tasks: list[Task]
) -> None:
    clean.reset(test_tasks[0])
    calls = (ToolCall("list_tables", {}), ToolCall("answer", {"value": "x"}), ToolCall("no", {}))
    step = clean.step(Action("", calls))
    assert [m["name"] for m in step.messages] == ["list_tables", "answer"]
    assert step.terminated


def test_follow_up_questions_share_the_database() -> None:
    options = SqlOptions(follow_ups=2, max_turns=20, expert=ExpertOptions.clean())
    environment = SqlEnvironment(options)
    for task in environment.tasks("train", 12, seed=0):
        steps = play(environment, task, environment.demonstrate(task, 0))
        assert steps[-1].success
        assert [n for n, _ in steps[-1].checklist][3:] == ["answer 1", "answer 2", "answer 3"]
        asked = [m["content"] for s in steps for m in s.messages if m["role"] == "user"]
        assert asked == [q["text"] for q in task.payload["questions"][1:]]
        listed = [s.info["tool"] for s in steps].count("list_tables")
        assert listed == 1
        assert _sum([s.rewards for s in steps])["success"] == 1.0


def test_one_wrong_answer_of_several_fails_the_episode() -> None:
    environment = SqlEnvironment(SqlOptions(follow_ups=1, max_turns=20, expert=CLEAN.expert))
    task = environment.tasks("train", 1, seed=0)[0]
    environment.reset(task)
    first = environment.step(call("answer", value="wrong"))
    gold = first.privileged["gold_answer"]
    last = environment.step(call("answer", value=gold))
    assert (first.terminated, last.terminated, last.success) == (False, True, False)


# ---- security


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM {t}",
        "DROP TABLE {t}",
        "UPDATE {t} SET rowid = 1",
        "CREATE TABLE x (y)",
        "CREATE TEMP TABLE x AS SELECT 1",
        "ATTACH DATABASE '/tmp/x.db' AS x",
        "PRAGMA table_info({t})",
        "PRAGMA writable_schema = 1",
        "SELECT * FROM pragma_database_list",
        "SELECT load_extension('x')",
        "VACUUM",
        "VACUUM INTO '/tmp/x.db'",
        "BEGIN",
        "COMMIT",
        "ANALYZE",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE {t}",
        "",
        "-- nothing",
        "SELECT hex(zeroblob(900000000))",
        "SELECT randomblob(900000000)",
        "SELECT replace(hex(zeroblob(40000)), '0', 'aaaaaaaaaaaa')",
        "SELECT 'a\x00b",
        "SELECT \ud800",
        "SELECT 9 ||" + "1||" * 4000 + "1",
    ],
)
def test_statements_that_must_not_work_are_error_observations(
    clean: SqlEnvironment, test_tasks: list[Task], statement: str
) -> None:
    clean.reset(test_tasks[0])
    table = clean.step(call("list_tables")).messages[0]["content"].split(", ")[0]
    before = clean.step(call("query", sql=f"SELECT COUNT(*) FROM {table}")).messages
    step = clean.step(call("query", sql=statement.replace("{t}", table)))
    assert step.messages[0]["content"].startswith("error: ")
    assert len(step.messages[0]["content"]) < 300
    assert step.info["tool_error"]
    assert clean.step(call("query", sql=f"SELECT COUNT(*) FROM {table}")).messages == before


@pytest.mark.parametrize(
    "statement",
    [
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT COUNT(*) FROM c",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c "
        "WHERE x < 0",
    ],
)
def test_endless_queries_stop_at_the_time_limit(test_tasks: list[Task], statement: str) -> None:
    environment = SqlEnvironment(SqlOptions(time_limit_s=0.1))
    environment.reset(test_tasks[0])
    start = time.monotonic()
    step = environment.step(call("query", sql=statement))
    assert time.monotonic() - start < 1.0
    assert step.messages[0]["content"] == "error: query took longer than 0.1 s"


MANY = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
LONG = "printf('%.*c', 31000, 'a')"


@pytest.mark.parametrize(
    "test",
    [
        f"{LONG} || x LIKE '%{'a' * 96}b'",
        f"{LONG} || x GLOB '*{'a' * 96}b'",
        f"replace({LONG} || x, {LONG.replace('31', '16')} || 'b', '') = ''",
        f"instr({LONG} || x, {LONG.replace('31', '16')} || 'b')",
    ],
)
def test_slow_functions_stop_near_the_time_limit(test_tasks: list[Task], test: str) -> None:
    environment = SqlEnvironment(SqlOptions(time_limit_s=0.1))
    environment.reset(test_tasks[0])
    start = time.monotonic()
    wanted = " OR ".join([test] * 8)
    step = environment.step(call("query", sql=f"{MANY}SELECT COUNT(*) FROM c WHERE {wanted}"))
    assert time.monotonic() - start < 1.0
    assert step.messages[0]["content"] == "error: query took longer than 0.1 s"


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        (f"SELECT {LONG} LIKE '%{'a' * 100}'", "patterns and the characters of trim: at most 100"),
        (f"SELECT trim({LONG}, {LONG})", "patterns and the characters of trim: at most 100"),
        (f"SELECT replace({LONG}, 'a', 'bb')", "too big"),
    ],
)
def test_long_operands_are_refused(clean: SqlEnvironment, statement: str, says: str) -> None:
    clean.reset(clean.tasks("test", 1, 0)[0])
    content = clean.step(call("query", sql=statement)).messages[0]["content"]
    assert content.startswith("error: ") and says in content


def test_trim_is_that_of_sqlite(clean: SqlEnvironment) -> None:
    statement = (
        "SELECT trim('xyaxy', 'yx'), ltrim('xax', 'x'), rtrim('xax', 'x'), trim(' a '),"
        " trim('a', ''), trim(NULL, 'a'), trim('a', NULL), trim(12, 1)"
    )
    plain = sqlite3.connect(":memory:")
    world = world_of(DOMAINS[0], 1, (20, 40))
    database = open_world(world)
    assert list(database.run(statement).rows) == plain.execute(statement).fetchall()


def test_wide_rows_stop_at_the_byte_budget() -> None:
    database = open_world(world_of(DOMAINS[0], 1, (20, 40)), time_limit_s=60.0, max_rows=20)
    value = LONG.replace("31000", "15000")
    result = database.run(f"{MANY}SELECT {', '.join([value] * 100)} FROM c")
    held = sum(len(str(cell)) for row in result.rows for cell in row)
    assert result.more
    assert held <= 1_000_000 + 100 * 15_000


def test_results_are_cut_by_rows_and_bytes(test_tasks: list[Task]) -> None:
    environment = SqlEnvironment(SqlOptions(max_rows=5, max_bytes=100))
    environment.reset(test_tasks[0])
    many = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 9) SELECT x FROM c"
    lines = environment.step(call("query", sql=many)).messages[0]["content"].split("\n")
    assert lines == ["1", "2", "3", "4", "5", "... (more rows)"]
    wide = "SELECT hex(zeroblob(5000))"
    assert len(environment.step(call("query", sql=wide)).messages[0]["content"]) < 110
    none = environment.step(call("query", sql="SELECT 1 WHERE 0"))
    assert none.messages[0]["content"] == "no rows"
    mixed = environment.step(call("query", sql="SELECT 1, NULL, 2.50, 1.0/3, 'a b', x'00'"))
    huge = environment.step(call("query", sql="SELECT printf('%900000000d', 1)"))
    assert huge.messages[0]["content"] == "NULL"
    assert mixed.messages[0]["content"] == "1 | NULL | 2.5 | 0.33 | a b | <1 bytes>"


# ---- judge


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("12", [12], True),
        (12, [12.0], True),
        ("12.0", [12], True),
        ("13", [12], False),
        ("33.33", [100 / 3], True),
        ("33.32", [100 / 3], True),
        ("33", [100 / 3], False),
        ("0.01", [0.0099], True),
        ("0", [0.4], False),
        ("1000.5", [1000], True),
        ("1002", [1000], False),
        ("2023", [2024], False),
        (10001, [10002], False),
        ("10002.0", [10001], False),
        ("1e4", [10000], True),
        (2**53 + 1, [2**53], False),
        (str(2**53 + 1), [2**53 + 1], True),
        ("10001.4", [10002], True),
        (" rome ", ["Rome"], True),
        ("new   york", ["New York"], True),
        ("Paris", ["Rome"], False),
        ("", ["Rome"], False),
        ("12", ["12"], True),
        ("nan", [float("nan")], True),
        ("nan", [12], False),
        ("inf", [12], False),
        ("12 orders", [12], False),
        ("b, a", ["a", "b"], True),
        ('["a", "b"]', ["b", "a"], True),
        (["a", "b", "b"], ["b", "a", "b"], True),
        (["a", "b"], ["a", "b", "b"], False),
        (["a", "a", "b"], ["a", "b", "b"], False),
        ("a", ["a", "b"], False),
        ([12], [12], True),
        ([], [12], False),
        ("NULL", [None], True),
        ("1, 2.0", [2, 1], True),
    ],
)
def test_judge(answer: Any, gold: list[Any], right: bool) -> None:
    assert judge.same(answer, gold) is right


# ---- own data


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE items (item_id INTEGER, label TEXT, price REAL)")
    rows = [(i, f"thing {i}", 2.5 * i) for i in range(1, 31)]
    connection.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
    connection.commit()
    connection.close()
    return path


def _write(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n")
    return path


def _own(shop: Path, rows: list[Any]) -> SqlOptions:
    return SqlOptions(database=shop, questions=_write(shop.parent / "q.jsonl", rows))


GOOD = [
    {
        "question": f"What does thing {i} cost?",
        "sql": f"SELECT price FROM items WHERE item_id = {i}",
    }
    for i in range(1, 31)
]


def test_own_questions_are_split_played_and_judged(shop: Path) -> None:
    environment = SqlEnvironment(_own(shop, GOOD))
    splits = {s: environment.tasks(s, 100, 0) for s in ("train", "validation", "test")}
    ids = [t.id for tasks in splits.values() for t in tasks]
    assert len(ids) == len(set(ids)) == 30
    for task in (t for tasks in splits.values() for t in tasks):
        assert (task.kind, task.group) == ("own", "shop")
        steps = play(environment, task, environment.demonstrate(task, 0))
        assert steps[-1].success
        assert _sum([s.rewards for s in steps])["sub_goal"] == pytest.approx(1.0)


def test_own_file_stays_as_it_was(shop: Path) -> None:
    before = shop.read_bytes()
    environment = SqlEnvironment(_own(shop, GOOD))
    environment.reset(environment.tasks("train", 1, 0)[0])
    for statement in ("DELETE FROM items", "DROP TABLE items", "CREATE TABLE x (y)"):
        step = environment.step(call("query", sql=statement))
        assert step.messages[0]["content"] == "error: only reading is allowed"
    environment.close()
    assert shop.read_bytes() == before
    assert sorted(p.name for p in shop.parent.iterdir()) == ["q.jsonl", "shop.sqlite"]


def test_few_own_questions_serve_every_split(shop: Path) -> None:
    environment = SqlEnvironment(_own(shop, GOOD[:4]))
    assert all(len(environment.tasks(s, 9, 0)) == 4 for s in ("train", "validation", "test"))


def test_own_split_column_and_id_win(shop: Path) -> None:
    rows = [GOOD[0] | {"split": "train", "id": "a"}, GOOD[1] | {"split": "test", "id": "b"}]
    environment = SqlEnvironment(_own(shop, rows))
    assert [t.id for t in environment.tasks("train", 9, 0)] == ["a"]
    assert [t.id for t in environment.tasks("test", 9, 0)] == ["b"]
    with pytest.raises(UsageError, match="unknown split 'dev'"):
        environment.tasks("dev", 9, 0)


@pytest.mark.parametrize(
    ("given", "gives"),
    [
        (("train", "test"), {"validation": "test"}),
        (("train", "validation"), {"test": "validation"}),
        (("train",), {"validation": "train", "test": "train"}),
        (("train", "validation", "test"), {}),
    ],
)
def test_another_split_stands_in_for_an_absent_one(
    shop: Path, given: tuple[str, ...], gives: dict[str, str]
) -> None:
    rows = [row | {"split": given[i % len(given)]} for i, row in enumerate(GOOD)]
    environment = SqlEnvironment(_own(shop, rows))
    assert environment.stand_ins == gives
    for absent, instead in gives.items():
        assert environment.tasks(absent, 5, 3) == environment.tasks(instead, 5, 3) != []


def test_train_tasks_are_never_borrowed(shop: Path) -> None:
    environment = SqlEnvironment(_own(shop, [GOOD[0] | {"split": "test"}]))
    with pytest.raises(UsageError, match="no question is of the train split"):
        environment.tasks("train", 9, 0)


def test_no_split_is_left_empty(shop: Path) -> None:
    train = [row for row in GOOD if split_of("shop", str(row["question"])) == "train"][:10]
    assert len(train) == 10
    drawn = []
    for name, rows in (("a", train), ("b", train[::-1])):
        options = SqlOptions(database=shop, questions=_write(shop.parent / name, rows))
        environment = SqlEnvironment(options)
        splits = {s: environment.tasks(s, 99, 0) for s in ("train", "validation", "test")}
        assert {s: len(tasks) for s, tasks in splits.items()} == {
            "train": 8,
            "validation": 1,
            "test": 1,
        }
        assert len({t.id for tasks in splits.values() for t in tasks}) == 10
        drawn.append({s: {t.id for t in tasks} for s, tasks in splits.items()})
    assert drawn[0] == drawn[1]


def test_line_separators_within_a_question_are_no_line_ends(shop: Path) -> None:
    row = {"question": "What does\u2028thing 1\x85 cost?", "sql": GOOD[0]["sql"]}
    options = _own(shop, [json.dumps(row, ensure_ascii=False) + "\r", GOOD[1]])
    tasks = SqlEnvironment(options).tasks("train", 9, 0)
    assert row["question"] in {t.payload["questions"][0]["text"] for t in tasks}


def test_table_names_with_spaces_and_other_case(shop: Path) -> None:
    connection = sqlite3.connect(shop)
    connection.execute('CREATE TABLE "Order lines" (item_id INTEGER)')
    connection.execute('INSERT INTO "Order lines" VALUES (1), (2)')
    connection.commit()
    connection.close()
    sql = 'SELECT COUNT(*) FROM "Order lines"'
    environment = SqlEnvironment(_own(shop, [{"question": "How many lines?", "sql": sql}]))
    task = environment.tasks("train", 1, 0)[0]
    assert task.payload["tables"] == ["Order lines"]
    for quoted in ('"order LINES"', "[Order lines]", "`Order lines`"):
        environment.reset(task)
        described = environment.step(call("describe", table="ORDER lines"))
        assert described.messages[0]["content"] == "item_id INTEGER"
        assert described.rewards["sub_goal"] == pytest.approx(1 / 3)
        queried = environment.step(call("query", sql=f"SELECT COUNT(*) FROM {quoted}"))
        assert queried.rewards["sub_goal"] == pytest.approx(2 / 3)
    environment.reset(task)
    named = "SELECT 2 -- \"Order lines\"\n /* [Order lines] */ , 'a ''Order lines'"
    assert "right_tool" not in environment.step(call("query", sql=named)).rewards


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "holds no questions"),
        (["{"], "line 1: not JSON"),
        ([GOOD[0], "3"], "line 2: a number was given"),
        ([{"question": "a"}], "line 1: sql is missing"),
        ([{"question": "", "sql": "SELECT 1"}], "line 1: question is ''"),
        ([GOOD[0] | {"extra": 1}], "line 1: unknown key 'extra'"),
        ([GOOD[0] | {"split": "dev"}], "line 1: split is 'dev'"),
        ([GOOD[0], "", GOOD[0]], "line 3: the question is there twice"),
        ([{"question": "a", "sql": "SELECT x FROM items"}], "line 1: the sql fails"),
        ([{"question": "a", "sql": "DROP TABLE items"}], "line 1: the sql fails"),
        ([{"question": "a", "sql": "SELECT 1 WHERE 0"}], "line 1: the sql returns no rows"),
        ([{"question": "a", "sql": "SELECT * FROM items"}], "line 1: the sql returns too many"),
    ],
)
def test_bad_questions_name_file_and_line(shop: Path, rows: list[Any], says: str) -> None:
    with pytest.raises(UsageError) as error:
        SqlEnvironment(_own(shop, rows))
    assert says in str(error.value)
    assert "q.jsonl" in str(error.value)


def test_missing_and_foreign_files_are_usage_errors(tmp_path: Path, shop: Path) -> None:
    text = _write(tmp_path / "text.sqlite", ["this is no database, however long it may be"] * 9)
    rows = _write(tmp_path / "q.jsonl", GOOD)
    for database, path in ((text, rows), (tmp_path / "no.sqlite", rows), (shop, tmp_path / "no")):
        with pytest.raises(UsageError, match=r"environment\.(database|questions)"):
            SqlEnvironment(SqlOptions(database=database, questions=path))


# ---- options


@pytest.mark.parametrize(
    "given",
    [
        {"templates": ["riddle"]},
        {"templates": []},
        {"rows": [40, 20]},
        {"database": "x.sqlite"},
        {"speed": 1},
        {"expert": {"wrong_order": 2}},
    ],
)
def test_bad_options_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SqlOptions(**given)


def test_unknown_domains_and_overlaps_are_usage_errors() -> None:
    for options in (SqlOptions(domains=("zoo",)), SqlOptions(domains=("hotel",))):
        with pytest.raises(UsageError, match="domain"):
            SqlEnvironment(options).tasks("train", 1, 0)


def test_every_option_is_described() -> None:
    for model in (SqlOptions, ExpertOptions):
        assert all(field.description for field in model.model_fields.values())


def test_two_step_statement_is_one_select_with_a_subquery() -> None:
    names = {"@parent": "p", "@child": "c", "@parent_key": "pk", "@child_key": "ck", "city": "town"}
    question = Question("two_step", "?", measure="city", filter="@child_key", value=7)
    assert questions.sql(question, names) == (
        "SELECT town FROM p WHERE pk = (SELECT pk FROM c WHERE ck = 7)"
    )
