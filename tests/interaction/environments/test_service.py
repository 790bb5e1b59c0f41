"""The service desk: what is paid, what breaks the policy, what the scripted customer does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from stages.interaction.actions import format_call, parse_action
from stages.interaction.arena import Arena
from stages.interaction.environments.base import Step, Task
from stages.interaction.environments.service import (
    HabitOptions,
    ServiceEnvironment,
    ServiceOptions,
)
from stages.interaction.environments.service.domains import DOMAINS
from stages.interaction.environments.service.users.scripted import DOUBT, PUZZLED, UNKNOWN
from stages.interaction.rewards.mix import RewardMix
from stages.recipe.load import load_recipe

RECORDS = {
    "42": {"owner": "Ada", "status": "open", "item": "book", "city": "Rome"},
    "17": {"owner": "Ben", "status": "shipped", "item": "coat", "city": "Oslo"},
}


def a_task(
    intent: str, number: str = "42", name: str = "Ada", value: str = "", **more: Any
) -> Task:
    """A task over RECORDS whose right ending is worked out by hand: see ``expected``, ``told``."""
    wish = {"intent": intent, "number": number, "name": name, "value": value}
    wish |= {"told": more.get("said", []), "greeting": "", "doubts": more.get("doubts", False)}
    expected = {n: {**row} for n, row in RECORDS.items()}
    expected[number] |= more.get("expected", {})
    payload = {"domain": "orders", "records": RECORDS, "wishes": [wish]}
    payload |= {"expected": expected, "told": more.get("told", [])}
    return Task("orders-x", intent, "orders", payload)


def tells(number: str, field: str, *words: str) -> dict[str, Any]:
    return {"number": number, "field": field, "words": list(words)}


CITY = a_task("change_city", value="Lima", expected={"city": "Lima"})
RETURN_REFUSED = a_task("return", told=[tells("42", "status", "open")])
STRANGER = a_task("cancel", name="Zoe", told=[tells("42", "", "owner", "name")])

FIND = format_call("find_order", {"order": "42"})
MOVE = format_call("change_city", {"order": "42", "city": "Lima"})


def play(task: Task, replies: Sequence[str], **options: Any) -> list[Step]:
    environment = ServiceEnvironment(ServiceOptions(**options))
    reset = environment.reset(task)
    return [environment.step(parse_action(text, reset.tools)) for text in replies]


def heard(steps: Sequence[Step]) -> list[str]:
    return [step.messages[-1]["content"] for step in steps]


def test_a_whole_conversation_and_what_each_turn_is_paid():
    steps = play(
        CITY,
        [
            "Which order, and your name?",
            "Which city?",
            FIND,
            "change the city of order 42 to Lima?",
            MOVE,
            "done",
        ],
    )
    assert heard(steps) == [
        "order 42, name Ada",
        "city Lima",
        "order 42, owner Ada, status open, item book, city Rome",
        "yes",
        "order 42, owner Ada, status open, item book, city Lima",
        "thanks, bye",
    ]
    third = pytest.approx(1 / 3)
    found = {"right_tool": 1.0, "right_arguments": 1.0, "useful_result": 1.0, "sub_goal": third}
    moved = {"right_tool": 1.0, "right_arguments": 1.0, "sub_goal": third}
    end = {"success": 1.0, "final_state": 1.0, "information": 1.0}
    assert [dict(step.rewards) for step in steps] == [
        {},
        {},
        found,
        {"sub_goal": third},
        moved,
        end,
    ]
    assert [step.terminated for step in steps] == [False] * 5 + [True]
    assert steps[-1].success
    assert steps[3].privileged["to_change"] == ["42 city Lima"]
    assert steps[4].privileged["to_change"] == []
    assert steps[0].checklist == (("found", False), ("agreed", False), ("changed", False))
    assert all(done for _, done in steps[-1].checklist)


@pytest.mark.parametrize(
    ("replies", "broken"),
    [
        (["your name?", FIND, MOVE, "done"], "not agreed"),
        ([FIND, "change the city of order 42 to Lima?", MOVE, "done"], "not the owner"),
        (["your name?", FIND, "order 42?", MOVE, MOVE, "done"], "not agreed"),
    ],
)
def test_the_policy_spoils_success_though_the_state_is_right(replies, broken):
    steps = play(CITY, replies)
    assert steps[-1].terminated and not steps[-1].success
    assert steps[-1].rewards["final_state"] == 1.0
    assert broken in steps[-1].privileged["violations"]
    assert sum(step.rewards.get("policy_violation", 0.0) for step in steps) == 1.0


def test_what_the_status_forbids():
    returning = format_call("return_order", {"order": "42"})
    steps = play(RETURN_REFUSED, ["your name?", FIND, "return order 42?", returning, "done"])
    assert steps[-1].privileged["violations"] == ["status"]
    assert steps[-1].rewards == {"success": 0.0, "final_state": 0.0, "information": 0.0}
    refused = play(RETURN_REFUSED, ["your name?", FIND, "sorry, the status is open"])
    assert refused[-1].success


@pytest.mark.parametrize(
    ("replies", "right"),
    [
        (["your name?", FIND, "sorry, not the owner"], True),
        (["sorry, not the owner"], False),
        (["your name?", FIND, "sorry"], False),
        (["your name?", FIND, "sorry, not the owner, it is open"], False),
    ],
)
def test_a_stranger_is_refused_after_a_look_and_told_nothing(replies, right):
    steps = play(STRANGER, replies)
    assert steps[-1].terminated and steps[-1].success == right
    told = "it is open" in replies[-1]
    assert steps[-1].privileged["violations"] == ["told a stranger"] * told


@pytest.mark.parametrize(
    ("said", "right"),
    [("the status is open", True), ("open or shipped", False), ("is it open?", None)],
)
def test_a_question_is_answered_by_the_one_right_value(said, right):
    task = a_task("ask_status", told=[tells("42", "status", "open")])
    steps = play(task, ["your name?", FIND, said])
    assert steps[-1].terminated == (right is not None)
    assert steps[-1].success == bool(right)


def test_the_customer_tells_only_what_is_asked_and_checks_what_is_proposed():
    steps = play(
        CITY,
        [
            "what is the item?",
            "cancel order 42?",
            "change the city of order 17 to Lima?",
            "change the city of order 42 to Oslo?",
            "who are you?",
            "give me the number of the order",
            "hm",
            "hm?",
        ],
    )
    assert heard(steps) == [
        UNKNOWN,
        "no, change the city of my order",
        "no, order 42",
        "no, city Lima",
        "name Ada",
        "order 42",
        PUZZLED,
        PUZZLED,
    ]
    assert not any(step.terminated for step in steps)


def test_a_customer_in_doubt_asks_once_more_and_one_who_understands_nothing_leaves():
    doubting = a_task("change_city", value="Lima", doubts=True)
    assert heard(play(doubting, ["done", "yes, it is done"])) == [DOUBT, "thanks, bye"]
    steps = play(CITY, ["hm", "hm"], user={"patience": 2})
    assert [step.terminated for step in steps] == [False, True]


def test_what_is_told_without_being_asked():
    said = a_task("change_city", value="Lima", said=["number", "value"])
    reset = ServiceEnvironment(ServiceOptions()).reset(said)
    assert (
        reset.messages[0]["role"] == "system" and "only the owner" in reset.messages[0]["content"]
    )
    assert reset.messages[1]["content"] == "change the city of my order, order 42, city Lima"
    bare = ServiceEnvironment(ServiceOptions(show_policy=False)).reset(said)
    assert [m["role"] for m in bare.messages] == ["user"]


def test_wrong_calls_are_observations():
    texts = [
        format_call("find_order", {"order": "99"}),
        format_call("find_order", {"number": "42"}),
        format_call("change_city", {"order": "42", "city": "Atlantis"}),
        format_call("find_order", {"order": [42]}),
        format_call("drop_tables", {}),
    ]
    steps = play(CITY, [*texts, "", '{"name": '])
    assert [step.messages[-1]["content"].partition(";")[0][:34] for step in steps] == [
        "error: no order 99",
        "error: find_order takes exactly or",
        "error: city must be one of Rome, P",
        "error: order must be a text",
        "error: unknown tool 'drop_tables'",
        "error: the reply is empty",
        "error: the call is not valid JSON:",
    ]
    assert [step.rewards.get("invalid", 0.0) for step in steps] == [0, 1, 1, 1, 1, 0, 0]
    assert steps[0].info["tool_error"] == "no order 99"


def test_endless_talk_is_paid_nothing():
    """Lookups, proposals and answers pay once, however often they are said again."""
    steps = play(CITY, ["your name?", *[FIND, "change the city of order 42 to Lima?"] * 10])
    paid = [sum(step.rewards.values()) for step in steps]
    assert sum(paid[3:]) == 0.0
    assert RewardMix().weights["policy_violation"] < 0


def arena(**options: Any) -> Arena:
    state = {"checklist": False, "tool_prompt": "none"}
    return Arena(ServiceOptions(**options), state)


def test_tasks_are_disjoint_repeatable_json_and_of_every_kind():
    environment = ServiceEnvironment()
    drawn = {s: environment.tasks(s, 60, seed) for seed, s in enumerate(("train", "test"))}
    assert environment.tasks("train", 60, 0) == drawn["train"]
    assert not {t.id for t in drawn["train"]} & {t.id for t in drawn["test"]}
    assert json.loads(json.dumps(dict(drawn["train"][0].payload))) == drawn["train"][0].payload
    assert {t.group for t in drawn["train"]} == set(DOMAINS)
    refused = [t for t in drawn["train"] if t.kind.endswith("refused")]
    assert 0.1 < len(refused) / 60 < 0.5


def test_the_clean_expert_serves_three_wishes_and_habits_spoil_them():
    clean = arena(expert=HabitOptions.clean(), wishes=3, max_turns=40)
    played = clean.demonstrate(clean.tasks("test", 40, 0), seed=0)
    assert all(episode.success for episode in played)
    for habit in ("skipped_name", "ignored_status", "skipped_confirmation", "early_done"):
        flawed = arena(expert=HabitOptions(**{**HabitOptions.clean().model_dump(), habit: 1.0}))
        spoiled = flawed.demonstrate(flawed.tasks("test", 40, 0), seed=0)
        assert sum(not e.success for e in spoiled) / 40 > 0.0, habit
    mild = {"wrong_number": 1.0, "vague_question": 1.0, "redundant_call": 1.0}
    slow = arena(expert=HabitOptions(**{**HabitOptions.clean().model_dump(), **mild}))
    recovered = slow.demonstrate(slow.tasks("test", 40, 0), seed=0)
    assert all(episode.success for episode in recovered)
    assert sum(len(e.turns) for e in recovered) > 40 * 5


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("environment.domains=[banks]", "unknown domains"),
        ("environment.wishes=4", "must not be more than records"),
        ("environment.user.kind=model", "kind model and a speaker go together"),
        ("environment.user.speaker={endpoint: localhost}", "must begin with http"),
        ("environment.judge={kind: model, speaker: {}}", "give either endpoint"),
    ],
)
def test_bad_options_are_one_sentence(given, words, tmp_path):
    from stages.common.errors import UsageError

    (tmp_path / "r.yaml").write_text(
        "name: r\nmodel: {actor: base}\nenvironment: {name: service}\n"
    )
    with pytest.raises(UsageError, match=words) as error:
        load_recipe(tmp_path / "r.yaml", [given])
    assert "\n" not in str(error.value)
