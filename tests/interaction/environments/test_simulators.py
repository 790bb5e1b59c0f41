"""A model in the customer's and the judge's place: its role, its health, what it never sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from stages.evaluation.metrics import episode_metrics
from stages.interaction.arena import Arena
from stages.interaction.environments.service import HabitOptions, ServiceEnvironment, ServiceOptions
from stages.interaction.environments.service.tasks import Case
from stages.interaction.environments.service.users.base import Card
from stages.interaction.environments.service.users.scripted import ScriptedUser
from stages.interaction.rewards.mix import RewardMix
from tests.interaction.endpoint import serving
from tests.interaction.toys import Script
from tests.tiny_models import tiny_qwen3

STATE = {"checklist": False, "tool_prompt": "none"}


def arena(**options: Any) -> Arena:
    return Arena(ServiceOptions(expert=HabitOptions.clean(), **options), STATE)


def player_of(tasks: Any) -> Callable[[list[dict[str, str]]], str]:
    """A perfect model of the customer: says what the scripted one would say."""
    cards = [Card.of(Case.of(task)) for task in tasks]

    def facts(card: Card) -> list[str]:
        wish = card.wishes[0]
        return [f"{label} {value}" for label, value in card.facts(wish).items()]

    def say(messages: list[dict[str, str]]) -> str:
        role = str(messages[0])
        (card,) = [c for c in cards if all(fact in role for fact in facts(c))]
        user = ScriptedUser()
        text = user.open(card, "")
        for message in [m for m in messages if m["role"] == "user"][1:]:
            reply = user.reply(message["content"])
            text = f"{reply.text} [done]" if reply.over else reply.text
        return text

    return say


def test_a_model_plays_the_customer_over_http_and_sees_its_card_only(monkeypatch):
    monkeypatch.setenv("DESK_KEY", "s3cret")
    tasks = ServiceEnvironment().tasks("test", 6, 0)
    with serving(player_of(tasks)) as endpoint:
        user = {"kind": "model", "speaker": endpoint.options(api_key_env="DESK_KEY")}
        world = arena(user=user)
        episodes = world.demonstrate(tasks, seed=0)
        first = [dict(r) for r in endpoint.requests]
        endpoint.requests.clear()
        environment = ServiceEnvironment()
        world.demonstrate([environment.alter_gold(task) for task in tasks], seed=0)
    assert [e.error for e in episodes] == [None] * 6
    assert all(e.success for e in episodes)
    assert endpoint.requests == first, "another right ending changes nothing the customer sees"
    assert set(endpoint.keys) == {"Bearer s3cret"}
    seen = json.dumps(first)
    assert not any(word in seen for word in ("find_", "cancel_", "arguments", "expected"))
    assert first[0]["max_tokens"] == 64 and first[0]["model"] == "tiny"
    assert {m["role"] for m in first[-1]["messages"]} == {"system", "user", "assistant"}
    healthy = [t.info["user"] for e in episodes for t in e.turns if "user" in t.info]
    assert healthy and all(h == {"tries": 1, "faults": []} for h in healthy)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("", "it said nothing"),
        ('{"name": "find_order", "arguments": {}}', "it speaks as the agent"),
        ("As an AI language model, I cannot want anything.", "it speaks as the agent"),
        ("agent: your order is on its way", "it speaks as the agent"),
        ("and so on " * 200, "it talks without end"),
        ("my order is number 12345", "it names 12345, which is not on its card"),
    ],
)
def test_a_customer_out_of_its_role_is_tried_again_then_labelled(line, fault):
    with serving(lambda _: line) as endpoint:
        world = arena(user={"kind": "model", "speaker": endpoint.options(), "retries": 1})
        (episode,) = world.play(world.tasks("test", 1, 0), Script("which order?"))
    seeds = {request["seed"] for request in endpoint.requests}
    assert len(endpoint.requests) == 2 == len(seeds), "each try has random numbers of its own"
    assert episode.error == f"SickSimulator: the customer fell out of its role 2 times: {fault}"
    figures = episode_metrics([episode, _fine()], RewardMix())
    assert (figures["dropped"], figures["sick_simulator"], figures["episodes"]) == (1, 1, 1)


def test_a_slip_is_recorded_on_the_turn():
    lines = iter(["hello", '{"name": "x"', "my name is Ada"])
    with serving(lambda _: next(lines)) as endpoint:
        world = arena(user={"kind": "model", "speaker": endpoint.options()}, max_turns=1)
        (episode,) = world.play(world.tasks("test", 1, 0), Script("your name?"))
    assert episode.turns[0].observation[0]["content"] == "my name is Ada"
    health = {"tries": 2, "faults": ["it speaks as the agent"]}
    assert episode.turns[0].info["user"] == health
    assert episode_metrics([episode, _fine()], RewardMix())["simulator_slips"] == 1.0
    assert episode_metrics([_fine()], RewardMix())["simulator_slips"] is None


def test_a_loop_is_the_customers_own_only_if_the_agent_says_new_things():
    with serving(lambda _: "hello there") as endpoint:
        world = arena(user={"kind": "model", "speaker": endpoint.options()}, max_turns=6)
        tasks = world.tasks("test", 1, 0)
        (own,) = world.play(tasks, Script("one", "two", "three", "four"))
        (agents,) = world.play(tasks, Script("again"))
    assert own.error == "SickSimulator: the customer repeats itself"
    assert agents.error is None and agents.out_of_budget and not agents.success


def test_an_endpoint_that_is_down_is_told_and_labelled():
    with serving(lambda _: "x") as endpoint:
        down = endpoint.url
    world = arena(user={"kind": "model", "speaker": {"endpoint": down, "time_limit_s": 1}})
    (episode,) = world.play(world.tasks("test", 1, 0), Script("hello"))
    assert episode.error is not None
    assert episode.error.startswith(f"SickSimulator: the endpoint {down} gave no message")


@pytest.mark.parametrize(
    ("verdict", "success", "share"),
    [
        ("1: yes\n2: yes\n3: yes", True, 1.0),
        ("1. yes, 2. no, 3. yes", False, 2 / 3),
        ("I think so", None, None),
        ("1: yes\n2: yes", None, None),
    ],
)
def test_a_model_judge_decides_by_its_rubric_beside_the_rules(verdict, success, share):
    with serving(lambda _: verdict) as endpoint:
        world = arena(judge={"kind": "model", "speaker": endpoint.options(), "retries": 1})
        (episode,) = world.demonstrate(world.tasks("test", 1, 0), seed=0)
    if success is None:
        assert episode.error == "SickSimulator: the judge gave no verdict in 2 tries"
        assert len(endpoint.requests) == 2
        return
    last = episode.turns[-1].rewards
    assert episode.success == success and last["judge"] == pytest.approx(share)
    assert last["final_state"] == 1.0
    asked = endpoint.requests[0]["messages"][0]["content"]
    assert "only the owner" in asked and episode.goal in asked
    assert "1. The agent did what the customer wished" in asked
    assert episode.turns[0].action.text in asked


def test_a_local_folder_speaks_and_is_judged_like_an_endpoint(tmp_path):
    folder = tiny_qwen3(tmp_path / "talker")
    speaker = {"folder": folder, "max_tokens": 8}
    world = arena(user={"kind": "model", "speaker": speaker, "retries": 0}, max_turns=2)
    tasks = world.tasks("test", 3, 0)
    first, again = (world.play(tasks, Script("which order?")) for _ in "12")
    assert [e.to_json() for e in first] == [e.to_json() for e in again]
    said = {e.goal for e in first if e.error is None}
    assert all(e.error is None or e.error.startswith("SickSimulator") for e in first)
    assert said or all(e.error for e in first)


def _fine() -> Any:
    world = arena()
    (episode,) = world.demonstrate(world.tasks("test", 1, 0), seed=0)
    return episode
