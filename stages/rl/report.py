"""What one iteration leaves behind: figures, trajectories, a line on the screen."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.common.run_folder import MetricsWriter
from stages.interaction.trajectory import Trajectory
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
    """Writes ``metrics.jsonl`` and ``trajectories/NNNNN.jsonl``, tells trackers and the bar."""

    def __init__(
        self,
        metrics: MetricsWriter,
        folder: Path,
        *,
        advance: Callable[..., None],
        publish: Callable[[int, dict[str, float]], None],
        writes: bool = True,
    ) -> None:
        """``writes``: one of several processes tells for all."""
        self.metrics, self.folder = metrics, folder
        self.advance, self.publish = advance, publish
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
        self.publish(iteration, metrics)
        write_trajectories(self.folder / f"{iteration - 1:05d}.jsonl", episodes)
        note = (
            f"success {metrics['episode/success']:.2f}  reward {metrics['reward/total']:.2f}  "
            f"KL {metrics.get('actor/kl', 0.0):.3f}"
        )
        self.advance(note=note)


def append_json(file: Path, row: Mapping[str, Any]) -> None:
    """Append one JSON object as a line."""
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")


def truncate_json(file: Path, step: int) -> None:
    """Drop the lines after ``step``, which a resumed run writes again, and one cut by a kill."""
    if not file.exists():
        return
    rows = [line for line in file.read_text("utf-8").splitlines() if _step(line) <= step]
    partial = file.with_suffix(".partial")
    partial.write_text("".join(row + "\n" for row in rows), "utf-8")
    partial.replace(file)


def _step(line: str) -> float:
    try:
        return int(json.loads(line)["step"])
    except json.JSONDecodeError:
        return math.inf
