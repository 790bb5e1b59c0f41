"""What the board of stage 3 is told: figures, alarms, a sample turn, and what was before."""

from __future__ import annotations

from pathlib import Path

from stages.common.run_folder import MetricsWriter
from stages.interaction.trajectory import Action, ToolCall, Trajectory, Turn
from stages.rl.report import IterationReport, rl_board, sample_turn


def episode(goal: str, *, success: bool, turns: int = 2) -> Trajectory:
    made = [
        Turn(
            index=k,
            messages=(),
            action=Action("", (ToolCall("query", {"sql": f"SELECT {k}"}),)),
            observation=({"role": "tool", "content": f"{k}\nrows"},),
            rewards={"useful_result": 1.0, "invalid": 0.0},
        )
        for k in range(turns)
    ]
    return Trajectory("t", "k", "g", goal, turns=tuple(made), success=success)


def test_a_sample_turn_is_the_last_of_the_last_episode_with_one():
    played = [episode("first", success=False), episode("second", success=True)]
    assert sample_turn([*played, episode("empty", success=False, turns=0)]) == [
        "goal: second",
        "turn 2: query(SELECT 1)",
        "result: 1\nrows",
        "success; rewards: useful_result 1",
    ]
    assert sample_turn([]) == []


def test_each_iteration_reaches_the_board(tmp_path: Path):
    told: list[int] = []
    board = rl_board(5, [{"step": 1, "episode/success": 0.25, "actor/kl": None}])
    report = IterationReport(
        MetricsWriter(tmp_path / "metrics.jsonl"),
        tmp_path / "trajectories",
        board=board,
        shown=lambda: told.append(board.step),
    )
    figures = {"episode/success": 0.5, "reward/total": 3.0, "episode/action_tokens": 9.0}
    report(2, figures | {"alarm/repetition": 1.0}, [episode("g", success=True)])
    report(3, dict(figures), [])
    assert told == [2, 3]
    assert board.values["episode/success"] == [0.25, 0.5, 0.5]
    assert board.alarm == "iteration 2: repetition, the actor repeats itself more and more"
    assert board.turn[0] == "goal: g"
    assert board.newest() == "success 0.5  reward 3"
