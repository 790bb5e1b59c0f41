"""The contract's checks: each passes on a good world and fails on the world that breaks it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stages.common.errors import RunError, UsageError
from stages.evaluation.check import check_command, check_environment, require_kept
from stages.evaluation.contract import CHECKS
from stages.evaluation.run import POLICIES
from stages.interaction import arena
from stages.interaction.environments import ADAPTERS, ENVIRONMENTS
from tests.evaluation import worlds


def checked(monkeypatch, world: type) -> dict:
    monkeypatch.setattr(arena, "make_environment", lambda options: world())
    return check_environment(worlds.OPTIONS, episodes=8)


def test_a_good_world_keeps_everything(monkeypatch):
    result = checked(monkeypatch, worlds.Doors)
    assert {name: row["ok"] for name, row in result["checks"].items()} == dict.fromkeys(
        CHECKS, True
    )
    assert result["ok"] and result["deterministic"] and result["steps_per_s"] > 0
    assert result["policies"]["null"]["success"] == 0.0
    assert result["policies"]["expert"]["success"] == 0.25  # it always answers door 0 of 4
    assert result["policies"]["most_frequent"] == {
        "success": 0.25,
        "return": pytest.approx(0.25),
        "turns": 1.0,
    }
    json.dumps(result, allow_nan=False)
    require_kept(result)


@pytest.mark.parametrize(
    ("world", "broken"),
    [
        (worlds.Forgetful, "reset_clears"),
        (worlds.Fickle, "deterministic"),
        (worlds.Leaky, "gold_hidden"),
        (worlds.Touchy, "bad_replies"),
        (worlds.Generous, "plain_records"),
        (worlds.Shared, "splits_disjoint"),
        (worlds.Restless, "tasks_repeat"),
        (worlds.Flattering, "relabelled"),
    ],
)
def test_a_broken_world_is_found_out(monkeypatch, world, broken):
    result = checked(monkeypatch, world)
    assert result["checks"][broken]["ok"] is False
    assert not result["ok"]
    with pytest.raises(RunError, match=f"doors breaks its contract.*{broken}"):
        require_kept(result)


def test_what_a_world_does_not_offer_is_not_held_against_it(monkeypatch, capsys):
    result = checked(monkeypatch, worlds.Mute)
    assert result["ok"]
    assert result["checks"]["gold_hidden"]["ok"] is None
    assert result["checks"]["relabelled"]["ok"] is None
    assert result["policies"]["expert"] is None
    assert "the expert policy was not played" in capsys.readouterr().err


def test_a_world_that_cannot_be_played_at_all(monkeypatch):
    class Broken(worlds.Doors):
        def reset(self, task):
            raise OSError("no doors today")

    monkeypatch.setattr(arena, "make_environment", lambda options: Broken())
    result = check_environment(worlds.OPTIONS, episodes=4)
    assert result["checks"]["plays"]["ok"] is False
    assert result["policies"] == dict.fromkeys(POLICIES)
    with pytest.raises(RunError, match="no doors today"):
        require_kept(result)


def test_a_file_too_small_to_divide_may_have_the_same_tasks_in_every_split(monkeypatch):
    class Few(worlds.Doors):
        def tasks(self, split, count, seed):
            return super().tasks("train", min(count, 3), 0)

    result = checked(monkeypatch, Few)
    assert result["checks"]["splits_disjoint"]["ok"] is None
    assert result["ok"]


def test_a_split_without_tasks_is_no_broken_contract(monkeypatch):
    class TrainAndTest(worlds.Doors):
        def tasks(self, split, count, seed):
            if split == "validation":
                raise UsageError("no validation here")
            return super().tasks(split, count, seed)

    assert checked(monkeypatch, TrainAndTest)["ok"]


def test_a_split_that_says_it_gives_another_ones_tasks_shares_them(monkeypatch):
    class Silent(worlds.Doors):
        def tasks(self, split, count, seed):
            return super().tasks("test" if split == "validation" else split, count, seed)

    class Told(Silent):
        stand_ins = {"validation": "test"}

    assert checked(monkeypatch, Silent)["checks"]["splits_disjoint"]["ok"] is False
    assert checked(monkeypatch, Told)["ok"]


def test_a_fool_that_wins_is_told(monkeypatch, capsys):
    monkeypatch.setattr(arena, "make_environment", lambda options: worlds.Doors())
    check_command(worlds.OPTIONS)
    shown = capsys.readouterr()
    assert "most_frequent policy wins 25%" in shown.err
    assert "kept" in shown.out


def test_a_world_played_by_a_person_is_refused():
    with pytest.raises(UsageError, match="human is played by a person at the terminal"):
        check_environment(ENVIRONMENTS["human"][0]())


def _marked(name: str) -> Any:
    """Running programs takes its time."""
    return pytest.param(name, marks=pytest.mark.full) if name == "code" else name


@pytest.mark.parametrize(
    "name", [_marked(n) for n in ENVIRONMENTS if n not in (*ADAPTERS, "human")]
)
def test_environments_keep_the_contract(name):
    result = check_environment(ENVIRONMENTS[name][0](), episodes=24)
    relabels = {"relabelled": True if name in ("sql", "service") else None}
    kept = {name: row["ok"] for name, row in result["checks"].items()}
    assert kept == dict.fromkeys(CHECKS, True) | relabels
    fools = [result["policies"][name]["success"] for name in ("null", "random", "most_frequent")]
    assert result["policies"]["null"]["success"] <= 0.05 and max(fools) < 0.1
    assert result["policies"]["expert"]["success"] == 1.0
    assert result["demonstrations"]["success"] < 1.0
