"""Which episodes are picked for a person, and how they are shown and judged."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aacli.app import app
from stages.common.errors import UsageError
from stages.evaluation.audit import picks, read_picks, run_folder, write_picks
from stages.evaluation.verdicts import audit_command, turn_numbers
from stages.interaction.rewards.audited import Audited, marked_bad
from stages.interaction.rewards.mix import RewardMix
from stages.interaction.trajectory import Trajectory
from stages.recipe.load import load_recipe

Episode = Callable[..., Trajectory]
MIX = RewardMix()


def found(episodes: list[Trajectory]) -> dict[str, str]:
    """Reasons by the goal of the episode."""
    return {row["goal"]: "; ".join(row["reasons"]) for row in picks(5, episodes, MIX)}


def plain(episode: Episode, *, count: int = 8, **fields: Any) -> list[Trajectory]:
    """Honest successes of four turns, each about something else."""
    won = {3: {"success": 1.0}}
    return [
        episode(
            "list",
            f"show {n}",
            f"query {n}",
            f"answer {n}",
            success=True,
            rewards=won,
            goal=f"g{n}",
        )
        for n in range(count)
    ]


def test_the_best_paid_are_picked_and_say_so(episode: Episode) -> None:
    """Success is 1, a sub-goal 0.1: by hand 1.2 and 1.1 are the two highest."""
    rich = [
        episode(
            "list", "look", "query", f"answer {n}", success=True, goal=f"rich{n}",
            rewards={0: {"sub_goal": float(n)}, 3: {"success": 1.0}},
        )
        for n in (1, 2)
    ]  # fmt: skip
    reasons = found([*plain(episode), *rich])
    assert "reward 1.20, among the highest" in reasons["rich2"]
    assert "reward 1.10, among the highest" in reasons["rich1"]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            lambda e: e("list", "look", rewards={0: {"right_tool": 4.0}}, goal="odd"),
            "paid 0.20 without success, most of it by right_tool",
        ),
        (
            lambda e: e("list", "look 1", "list", "look 1", "list", goal="odd"),
            "loops: 3 of 5 turns do again",
        ),
        (
            lambda e: e("answer 1", success=True, rewards={0: {"success": 1.0}}, goal="odd"),
            "succeeds in 1 turns, where others take 4",
        ),
        (
            lambda e: e("!what", "!ever", success=True, goal="odd"),
            "succeeds though none of its actions could be carried out",
        ),
        (
            lambda e: e("list", "!" + "one two three four " * 4, "answer", goal="odd"),
            "a reply repeats itself: 69 % of its runs of words",
        ),
    ],
)
def test_each_suspicion_picks_its_episode(
    made: Callable[[Episode], Trajectory], words: str, episode: Episode
) -> None:
    assert words in found([*plain(episode), made(episode)])["odd"]


def test_one_component_that_pays_much_more_than_usual(episode: Episode) -> None:
    odd = episode(
        "list", "a", "b", "answer x", success=True, goal="odd",
        rewards={0: {"useful_result": 30.0}, 3: {"success": 1.0}},
    )  # fmt: skip
    assert "useful_result pays 0.30, usually 0.00" in found([*plain(episode), odd])["odd"]


def test_a_template_is_told_with_the_number_of_its_goals(episode: Episode) -> None:
    same = [episode("list", "answer 4", goal=f"t{n}") for n in range(5)]
    reasons = found([*plain(episode), *same])
    assert "says word for word what it says to 4 other goals" in reasons["t0"]
    assert not any(f"t{n}" in reasons for n in range(1, 5))


def test_honest_episodes_are_picked_for_their_reward_alone(episode: Episode) -> None:
    dropped = episode("list", error="the world is gone", goal="gone")
    rows = picks(5, [*plain(episode), dropped], MIX)
    assert [len(row["reasons"]) for row in rows] == [1, 1]
    json.dumps(rows, allow_nan=False)


@pytest.fixture
def run(tmp_path: Path, episode: Episode) -> Path:
    """A run whose iterations 5 and 10 kept something."""
    looping = episode(
        "look 1", "look 1", "look 1", goal="<b>which</b> [red]box[/red]?",
        rewards={0: {"right_tool": 4.0}},
    )  # fmt: skip
    for step in (5, 10):
        write_picks(tmp_path, step, picks(step, [looping, *plain(episode, count=3)], MIX))
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    return tmp_path


def test_the_newest_evaluation_comes_first_and_the_pipelines_folder_will_do(run: Path) -> None:
    assert [row["step"] for row in read_picks(run)] == [10] * 3 + [5] * 3
    inner = run / "whole" / "rl"
    inner.mkdir(parents=True)
    assert run_folder(run / "whole") == inner and run_folder(run) == run
    with pytest.raises(UsageError, match="holds no episodes to audit"):
        read_picks(inner)


def test_a_verdict_is_kept_with_the_actions_it_is_about(run: Path) -> None:
    audit_command(run, pick="5-0", verdict="bad", turns=[3, 2], note="loops")
    audit_command(run, pick="10-1", verdict="good")
    kept = json.loads((run / "audit/verdicts.json").read_text())
    said = '{"name": "look", "arguments": {"value": "1"}}'
    assert kept["5-0"] | {"verdict": "bad", "turns": [2, 3], "actions": [said, said]} == kept["5-0"]
    assert kept["10-1"]["turns"] == [1, 2, 3, 4]
    assert marked_bad(run / "audit/verdicts.json") == [said, said]
    assert not list((run / "audit").glob("*.tmp"))


def test_a_killed_write_leaves_the_verdicts_as_they_were(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit_command(run, pick="5-0", verdict="bad")
    before = (run / "audit/verdicts.json").read_text()

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError):
        audit_command(run, pick="10-0", verdict="bad")
    assert (run / "audit/verdicts.json").read_text() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pick": "7-7"}, "--pick 7-7 is unknown"),
        ({"verdict": "bad"}, "name it with --pick"),
        ({"pick": "5-0", "verdict": "bad", "turns": [4]}, "turn 4 of 5-0 does not exist"),
    ],
)
def test_wrong_verdicts_are_refused(run: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        audit_command(run, **options)
    assert not (run / "audit/verdicts.json").exists()


def test_turns_as_a_person_types_them() -> None:
    assert turn_numbers("2, 3 5") == [2, 3, 5] and turn_numbers(" ") == []
    with pytest.raises(UsageError, match="expected numbers from 1"):
        turn_numbers("two")


def test_marked_actions_and_near_ones_are_fined(episode: Episode) -> None:
    judge = Audited(['{"name": "look", "arguments": {"value": "the red box"}}'], 0.9)
    for argument, fined in (("the red box", 1.0), ("the red  box", 1.0), ("a green door", 0.0)):
        (turn,) = episode(f"look {argument}").turns
        assert judge(turn, ()) == fined
    (other,) = episode("answer the red box").turns
    assert judge(other, ()) == 0.0 and Audited(judge._marked, 0.5)(other, ()) == 1.0


def test_a_file_that_holds_no_verdicts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"5-0": {"verdict": "bad"}}')
    with pytest.raises(UsageError, match=r"no verdicts\.json of aac audit"):
        marked_bad(tmp_path / "x.json")


def test_the_command_says_where_verdicts_are_and_what_to_do_with_bad_ones(run: Path) -> None:
    good = CliRunner().invoke(app, ["audit", str(run), "--pick", "10-1", "--verdict", "good"])
    assert good.stdout == f"1 of 1 have a verdict, kept in {run}/audit/verdicts.json\n"
    bad = CliRunner().invoke(app, ["audit", str(run), "--pick", "5-0", "--verdict", "bad"])
    words = shlex.split(bad.stdout.splitlines()[-1])
    assert words == ["--set", f"rl.rewards.audited.verdicts={run}/audit/verdicts.json"]
    smoke = Path(__file__).parents[2] / "recipes/smoke.yaml"
    fined = load_recipe(smoke, [words[1]]).rl.rewards.audited
    assert fined is not None and fined.verdicts == run / "audit/verdicts.json"
