"""The RL stage's own loop, iteration by iteration: all that ``aac rl`` does but its start."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stages.common.errors import RunError
from stages.common.records import read_records
from stages.interaction.trajectory import Trajectory

FOREVER = 10**6
PHASE = re.compile(r"time/(?!tokens_per)\w+_s")


def recipe_file(folder: Path, content: Mapping[str, Any]) -> Path:
    """A recipe on disk (JSON is YAML)."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "recipe.yaml"
    file.write_text(json.dumps(content), "utf-8")
    return file


def aac(words: Sequence[str], log: Path, **environment: str) -> None:
    """The real command, quietly. RunError unless it ends well; ``log`` takes what it says."""
    command = [sys.executable, "-m", "aacli", *words, "--quiet"]
    with log.open("a", encoding="utf-8") as file:
        done = subprocess.run(command, stdout=file, stderr=file, env=os.environ | environment)
    if done.returncode:
        raise RunError(f"{shlex.join(command)} ended with {done.returncode}; {log} says more.")


def phases(run: Path) -> list[dict[str, float]]:
    """Seconds of each iteration of a finished RL run, by phase."""
    rows = [row for _, row in read_records(run / "metrics.jsonl")]
    return [{k: row[k] for k in row if PHASE.fullmatch(k)} for row in rows]


class Running:
    """A session; each call is one iteration, with no evaluation and no checkpoint."""

    def __init__(
        self,
        folder: Path,
        recipe: Path,
        *,
        sft: Path,
        reward: Path | None = None,
        overrides: Sequence[str] = (),
    ) -> None:
        """``folder``: where the run's own folder is made."""
        from stages.common.live import Board
        from stages.common.run_folder import RunFolder, RunRequest
        from stages.common.seeding import seed_everything, set_threads
        from stages.recipe.load import load_recipe
        from stages.rl.session import Session

        resolved = load_recipe(
            recipe, [f"rl.iterations={FOREVER}", "rl.forgetting.every=0", *overrides]
        )
        set_threads(None)
        seed_everything(resolved.seed)
        opened = RunFolder.open(RunRequest(folder / "rl", quiet=True), "rl")
        self.session = Session(resolved, opened, sft, reward)
        self.episodes: Sequence[Trajectory] = ()
        """Of the latest iteration."""
        self.metrics: Mapping[str, float] = {}
        opened.metrics.listeners.append(self._hear)
        parts = self.session.parts(Board("", 1, 0, "", ()), lambda: None)
        self._parts = replace(parts, score=self._score(parts.score), evaluate=lambda _: {})

    def __call__(self) -> dict[str, Any]:
        """One iteration: tokens, episodes, optimizer steps, and seconds by phase."""
        trainer = self.session.trainer
        trainer.train(self._parts, self.session.learner, iterations=trainer.progress.iteration + 1)
        turns = [turn for episode in self.episodes for turn in episode.turns]
        return {
            "prompt_tokens": sum(len(turn.prompt_ids) for turn in turns),
            "response_tokens": sum(len(turn.action_ids) for turn in turns),
            "episodes": len(self.episodes),
            "turns": len(turns),
            "optimizer_steps": int(self.metrics.get("actor/updates", 0)),
            "phases": {k: v for k, v in self.metrics.items() if k.startswith("time/")},
        }

    def _hear(self, _: int, metrics: Mapping[str, float]) -> None:
        self.metrics = dict(metrics)

    def _score(self, score: Any) -> Any:
        def scored(episodes: Sequence[Trajectory]) -> list[Trajectory]:
            self.episodes = score(episodes)
            return list(self.episodes)

        return scored
