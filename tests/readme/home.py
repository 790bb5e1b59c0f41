"""A person's folder, in which what the documents show is typed, small."""

from __future__ import annotations

import contextlib
import glob
import json
import shlex
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from aacli.app import app
from tests.readme.documents import README, ROOT

SMALL = (
    "threads=1",
    "environment.max_turns=4",
    "sft.demonstrations=24",
    "sft.steps=2",
    "sft.batch_size=4",
    "reward.tasks=8",
    "reward.epochs=1",
    "reward.batch_size=4",
    "rl.iterations=1",
    "rl.episodes=4",
    "rl.evaluate_every=0",
    "rl.actor.max_new_tokens=48",
    "rl.evaluation_episodes=2",
    "rl.critic.steps=2",
    "rl.critic.batch_size=4",
    "rl.critic.warm_up.max_iterations=0",
    "rl.ppo.epochs=1",
    "rl.ppo.minibatch_episodes=2",
    "evaluation.episodes=2",
    "evaluation.readiness_tasks=1",
)
"""Enough of every stage to leave its traces."""
DATA = [json.loads(line) for block in README.blocks("json") for line in block.splitlines()]
"""The rows that the README shows: two dialogues, a pair, a question."""


@dataclass
class Home:
    """One folder for each story, and what was typed there so far, each command once."""

    root: Path
    said: dict[tuple[str, str], Any] = field(default_factory=dict)

    def place(self, story: str) -> Path:
        """The story's folder, with what its person has."""
        folder = self.root / story
        if not folder.exists():
            folder.mkdir()
            (folder / "recipes").symlink_to(ROOT / "recipes")
            furnish(folder)
        return folder

    def typed(
        self, command: str, *, story: str, more: Sequence[str] = (), keys: str = ""
    ) -> tuple[Path, Any]:
        """Type ``aac`` as it is shown, with ``more`` words behind; its folder and result."""
        folder = self.place(story)
        if (story, command) not in self.said:
            with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
                words = [*_globbed(shlex.split(command)[1:]), *more]
                patch.setattr(sys, "argv", ["aac", *words])
                self.said[story, command] = CliRunner().invoke(app, words, input=keys)
        result = self.said[story, command]
        assert result.exit_code == 0, result.output
        return folder, result


def _globbed(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        yield from sorted(glob.glob(word)) if "*" in word else [word]


def furnish(folder: Path) -> None:
    """my.yaml as the README shows it, a model, and data like the rows it shows."""
    blocks = README.blocks("yaml")
    (folder / "my.yaml").write_text(next(b for b in blocks if b.startswith("# my.yaml")))
    shutil.copytree(ROOT / "recipes/base", folder / "path/to/your-model")
    *dialogues, pair, question = DATA
    write(folder / "dialogues.jsonl", [*dialogues, *(dialogue(k) for k in range(30))])
    write(folder / "preferences.jsonl", [pair, *(preference(k) for k in range(11))])
    write(folder / "questions.jsonl", [question, *(asked(k) for k in range(40))])
    write(folder / "episodes.jsonl", [episode(k) for k in range(4)] + [{"messages": "none"}])
    database(folder / "shop.sqlite")


def in_own_database(folder: Path) -> None:
    """my.yaml in the world of the README's second recipe."""
    path, block = folder / "my.yaml", world_of_ones_own()
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | block))


def world_of_ones_own() -> dict[str, Any]:
    """The README's environment over a SQLite file."""
    blocks = map(yaml.safe_load, README.blocks("yaml"))
    return next(b for b in blocks if "database" in b.get("environment", {}))


def write(path: Path, rows: Sequence[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def dialogue(number: int) -> dict[str, Any]:
    return {"instruction": f"How many orders on day {number}?", "reply": f"There are {number}."}


def preference(number: int) -> dict[str, Any]:
    asked = {"prompt": f"How many orders on day {number}?"}
    return {**asked, "chosen": f"There are {number}.", "rejected": "Many, or few."}


def asked(number: int) -> dict[str, Any]:
    sql = f"SELECT COUNT(*) FROM orders WHERE id <= {number}"
    return {"question": f"How many orders have an id up to {number}?", "sql": sql}


def episode(number: int) -> dict[str, Any]:
    """Task 0 and 1, each solved and not."""
    said = [{"role": "user", "content": f"task {number // 2}"}]
    reply = {"role": "assistant", "content": f"answer {number}"}
    return {"task_id": number // 2, "messages": [*said, reply], "reward": float(number % 2)}


def database(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as shop, shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT, total REAL)")
        rows = [(k, "shipped" if k % 3 else "open", 5.0 * k) for k in range(1, 31)]
        shop.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
