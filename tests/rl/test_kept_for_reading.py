"""What an evaluation keeps whole for a reader: the critic judges it, and learns nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stages.evaluation.audit import WHOLE, read_picks
from stages.interaction.trajectory import Trajectory
from stages.rl import session
from stages.rl.pool import read_trajectories
from tests.adapted import World, rows, tensors

OVER: dict[str, Any] = {"rl__evaluate_every": 1, "rl__evaluation_episodes": 3}
FRESH = ("time/",)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(tmp_path_factory.mktemp("kept"))
    made.aac("sft", "sft")
    return made


def kept(run: Path) -> dict[str, list[Trajectory]]:
    """By the iteration of the evaluation."""
    return {file.stem: read_trajectories(file) for file in sorted((run / WHOLE).glob("*.jsonl"))}


def figures(run: Path) -> list[dict[str, Any]]:
    """All but seconds."""
    return [{n: v for n, v in row.items() if not n.startswith(FRESH)} for row in rows(run)]


def test_picked_episodes_carry_value_and_review(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.rl("judged", **OVER)
    run = world.root / "judged"
    found = kept(run)
    assert list(found) == ["00001", "00002"]
    for stem, episodes in found.items():
        picks = [row for row in read_picks(run) if row["step"] == int(stem)]
        assert [e.goal for e in episodes] == [row["goal"] for row in picks]
        assert all(e.key and e.turns[0].prompt_ids for e in episodes)
        for turn in (turn for e in episodes for turn in e.turns):
            assert {"value", "review"} <= set(turn.info) and "advantage" not in turn.info
    assert len({t.info["value"] for es in found.values() for e in es for t in e.turns}) > 2

    # With nothing judged the run is the same to the last bit.
    monkeypatch.setattr(session, "judged_apart", lambda _, episodes: list(episodes))
    world.rl("unjudged", **OVER)
    other = world.root / "unjudged"
    assert all("value" not in t.info for es in kept(other).values() for e in es for t in e.turns)
    assert figures(other) == figures(run)
    ours, theirs = tensors(run), tensors(other)
    assert all((ours[name] == theirs[name]).all() for name in ours)


@pytest.mark.parametrize(("kind", "judged"), [("none", False), ("q", True)])
def test_only_a_critic_with_values_judges(kind: str, judged: bool, world: World) -> None:
    critic = {"kind": kind, "steps": 2, "batch_size": 4, "hidden_size": 8}
    world.rl(f"kind-{kind}", **OVER | {"rl__iterations": 1, "rl__critic": critic})
    turns = [t for es in kept(world.root / f"kind-{kind}").values() for e in es for t in e.turns]
    assert turns and all(("value" in turn.info) == judged for turn in turns)


def test_a_view_without_room_leaves_the_episodes_unjudged() -> None:
    from stages.common.errors import UsageError
    from stages.rl.baselines import judged_apart

    class Full:
        gives_values = True

        def judge(self, episodes: Any) -> Any:
            raise UsageError("no room")

    episode = Trajectory("t", "k", "g", "goal")
    assert judged_apart(Full(), [episode]) == [episode]  # type: ignore[arg-type]
