"""Slips: wrong in one word, done right afterwards, and never learned."""

from __future__ import annotations

import json
import random

import pytest

from stages.interaction.actions import parse_action
from stages.interaction.arena import Arena
from stages.interaction.environments.base import Slip
from stages.interaction.environments.sql import ExpertOptions, SqlEnvironment, SqlOptions
from stages.interaction.environments.sql.expert import call_text
from stages.interaction.environments.sql.slips import miswritten, unreadable
from stages.interaction.trajectory import SLIP, Trajectory
from stages.recipe.rewards import RewardsSection
from stages.recipe.state import StateSection

STATEMENT = "SELECT COUNT(*) FROM orders JOIN users USING (user_id) WHERE city = 'Green Hill'"


def demonstrated(slip: float, **habits: float) -> list[Trajectory]:
    expert = ExpertOptions.clean().model_copy(update={"slip": slip, **habits})
    options = SqlOptions(expert=expert, max_turns=40)
    arena = Arena(options, StateSection(exchanges=40, max_tokens=2000), RewardsSection())
    return arena.demonstrate(arena.tasks("train", 40, 0), seed=3)


def acts(episode: Trajectory, *, slips: bool) -> list[str]:
    return [t.action.text for t in episode.turns if bool(t.info.get(SLIP)) == slips]


def test_without_its_slips_an_expert_does_what_it_does_without_slipping() -> None:
    slipping, plain = demonstrated(0.4), demonstrated(0.0)
    right = [acts(e, slips=False) for e in slipping]
    assert [list(dict.fromkeys(row)) for row in right] == [acts(e, slips=False) for e in plain]
    again = sum(len(row) - len(set(row)) for row in right)  # another look, every other time
    assert 0.3 < again / sum(len(acts(e, slips=True)) for e in slipping) < 0.6
    assert all(e.success for e in slipping)
    assert not any(acts(e, slips=True) for e in plain)
    calls = [t.info.get(SLIP, False) for e in slipping for t in e.turns if _can_slip(t.action.text)]
    assert 0.3 < sum(calls) / len(calls) < 0.5


def _can_slip(text: str) -> bool:
    return "list_tables" not in text and '"answer"' not in text


def test_what_comes_back_from_a_slip_is_passed_over() -> None:
    """Most of them fail; a misspelt value does not, and its empty result is no answer."""
    told = [
        str(turn.observation[0]["content"])
        for episode in demonstrated(0.4)
        for turn in episode.turns
        if turn.info.get(SLIP)
    ]
    failed = sum(text.startswith("error") for text in told)
    assert 0.7 < failed / len(told) < 1
    assert any("not valid JSON" in text for text in told)


def test_every_name_and_value_can_come_out_wrong_and_one_at_a_time() -> None:
    rng = random.Random(0)
    wrong = set()
    for _ in range(600):
        said = miswritten(STATEMENT, ["orders", "users", "user_id", "city"], rng)
        start = len(_common_start(said, STATEMENT))
        end = len(_common_start(said[::-1], STATEMENT[::-1]))
        assert said != STATEMENT and start + end >= len(STATEMENT) - len("Green Hill") - 1
        wrong.add(_word_at(STATEMENT, start))
    assert {"orders", "users", "user_id", "city", "Green Hill"} <= wrong
    assert not wrong & {"SELECT", "COUNT", "FROM", "JOIN", "USING", "WHERE"}


def test_a_name_of_elsewhere_comes_in_half_of_the_time() -> None:
    rng = random.Random(0)
    said = [miswritten("forts", ["roads"], rng, {"forts": ["castles"]}) for _ in range(400)]
    assert 0.4 < said.count("castles") / 400 < 0.6 and "forts" not in said


def test_a_call_becomes_unreadable_now_and_then_where_it_can() -> None:
    rng = random.Random(0)
    call = call_text("query", sql=STATEMENT)
    broken = [text for _ in range(600) if (text := unreadable(call, rng))]
    assert 0.1 < len(broken) / 600 < 0.2
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(broken[0])
    assert unreadable(call_text("describe", table="orders"), rng) is None


def _common_start(a: str, b: str) -> str:
    n = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:n]


def _word_at(statement: str, place: int) -> str:
    """The word around or just before a place."""
    words = ["SELECT", "COUNT", "FROM", "JOIN", "USING", "WHERE", "Green Hill"]
    words += ["orders", "users", "user_id", "city"]
    for word in words:
        start = statement.find(word)
        if start <= place <= start + len(word):
            return word
    return statement[place:]


@pytest.mark.parametrize("word", ["a", "s", "id"])
@pytest.mark.parametrize("others", [[], ["a"], ["orders"]])
def test_short_names_come_out_wrong_too(word: str, others: list[str]) -> None:
    rng = random.Random(1)
    assert all(miswritten(word, others, rng) != word for _ in range(50))


def test_a_slip_is_text_that_says_what_it_is() -> None:
    expert = ExpertOptions.clean().model_copy(update={"slip": 1.0})
    environment = SqlEnvironment(SqlOptions(expert=expert))
    task = environment.tasks("train", 1, seed=0)[0]
    act, world = environment.demonstrate(task, 0), environment.reset(task)
    first = act(world.messages)
    assert type(first) is str  # there is no word in it that could come out wrong
    again = act(environment.step(parse_action(first, world.tools)).messages)
    assert isinstance(again, Slip) and json.loads(again)["name"] == "describe"
