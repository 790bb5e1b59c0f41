"""What one iteration leaves behind: figures, trajectories, a line on the screen."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.common.live import Board, Curve
from stages.common.run_folder import MetricsWriter
from stages.interaction.actions import in_short
from stages.interaction.trajectory import Trajectory
from stages.rl.monitor import ALARMS
from stages.rl.pool import write_trajectories

EPISODE_FIGURES = (
    "success",
    "turns",
    "out_of_budget",
    "invalid_actions",
    "repeated_calls",
    "loops",
    "babble",
    "template",
    "new_segments",
    "dropped",
    "sick_simulator",
    "simulator_slips",
)


def rollout_metrics(figures: Mapping[str, Any], episodes: Sequence[Trajectory]) -> dict[str, float]:
    """``reward/*`` and ``episode/*`` from the figures of ``evaluation.metrics``."""
    metrics = {"reward/total": figures["return"]}
    metrics |= {f"reward/{name}": value for name, value in figures["components"].items()}
    metrics |= {f"reward/capped_{name}": value for name, value in figures["capped"].items()}
    metrics |= {f"episode/{name}": figures[name] for name in EPISODE_FIGURES}
    # Drop rates by last action: what an actor can use as a way out shows here.
    count = figures["episodes"] + figures["dropped"]
    metrics |= {f"dropped/{name}": n / count for name, n in figures["dropped_at"].items()}
    metrics["episode/action_tokens"] = float(
        sum(len(turn.action_ids) for e in episodes for turn in e.turns)
    )
    return {name: float(value) for name, value in metrics.items() if value is not None}


class IterationReport:
    """Writes ``metrics.jsonl`` and ``trajectories/NNNNN.jsonl``, tells the board."""

    def __init__(
        self,
        metrics: MetricsWriter,
        folder: Path,
        *,
        board: Board,
        shown: Callable[[], None],
        writes: bool = True,
    ) -> None:
        """``shown``: of ``console.watch``. ``writes``: one of several processes tells for all."""
        self.metrics, self.folder = metrics, folder
        self.board, self.shown = board, shown
        self.writes = writes

    def __call__(
        self, iteration: int, metrics: dict[str, float], episodes: Sequence[Trajectory]
    ) -> None:
        """One iteration. ``time/rollout_s`` becomes tokens per second, too."""
        if not self.writes:
            return
        seconds = metrics.get("time/rollout_s", 0.0)
        if seconds > 0:
            # A rate is wall-clock too, so it stays under time/, outside every equality.
            metrics["time/tokens_per_s"] = metrics["episode/action_tokens"] / seconds
        self.metrics.write(iteration, metrics)
        write_trajectories(self.folder / f"{iteration - 1:05d}.jsonl", episodes)
        show_iteration(self.board, iteration, metrics)
        self.board.turn = sample_turn(episodes) or self.board.turn
        self.shown()


def rl_board(iterations: int, before: Sequence[Mapping[str, Any]]) -> Board:
    """What is shown of stage 3; ``before``: the lines of metrics.jsonl so far."""
    curves = (
        Curve("success", "episode/success"),
        Curve("held out", "evaluation/success"),
        Curve("reward", "reward/total"),
        Curve("KL", "actor/kl"),
    )
    board = Board("rl", iterations, len(before), "iteration", curves, parts="reward/")
    for row in before:
        board.tell({name: value for name, value in row.items() if value is not None})
    return board


def sample_turn(episodes: Sequence[Trajectory]) -> list[str]:
    """The last turn of the last episode: what was asked, done and answered, and its rewards."""
    played = [episode for episode in episodes if episode.turns]
    if not played:
        return []
    episode, turn = played[-1], played[-1].turns[-1]
    result = " ".join(str(message.get("content") or "") for message in turn.observation)
    earned = ", ".join(f"{name} {value:.3g}" for name, value in turn.rewards.items() if value)
    verdict = "success" if episode.success else "no success"
    return [
        f"goal: {episode.goal}",
        f"turn {turn.index + 1}: {in_short(turn.action)}",
        f"result: {result or '-'}",
        f"{verdict}; rewards: {earned or 'none'}",
    ]


class FittingReport:
    """The same for an iteration in which nothing was played."""

    def __init__(
        self,
        metrics: MetricsWriter,
        *,
        board: Board,
        shown: Callable[[], None],
        writes: bool = True,
    ) -> None:
        """See ``IterationReport``."""
        self.metrics, self.board, self.shown = metrics, board, shown
        self.writes = writes

    def __call__(self, iteration: int, metrics: dict[str, float]) -> None:
        """One iteration."""
        if self.writes:
            self.metrics.write(iteration, metrics)
            show_iteration(self.board, iteration, metrics)
            self.shown()


def show_iteration(board: Board, iteration: int, metrics: Mapping[str, float]) -> None:
    """Its figures and its last alarm."""
    board.move(iteration)
    board.tell(metrics)
    raised = [name.removeprefix("alarm/") for name in metrics if name.startswith("alarm/")]
    if raised:
        means = ALARMS[raised[-1]].means
        board.alarm = f"iteration {iteration}: {raised[-1]}, {means}"


def append_json(file: Path, row: Mapping[str, Any]) -> None:
    """Append one JSON object as a line."""
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")
