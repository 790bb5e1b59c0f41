"""Runs so small that they can be killed many times, and what must be the same in the end."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from tests.resume.processes import Command, aac
from tests.tiny_models import tiny_llama

STAGES = ("sft", "reward", "rl")
COMMANDS = {"sft": "sft", "reward": "train-reward", "rl": "rl"}
WORDS = ("orders", "tables", "goals", "units", "answers", "errors", "users", "prices")
NEVER = {"checkpoint_minutes": 0, "checkpoint_every": 10**6}
CLOCK = {"checkpoint_minutes": 1e-4, "checkpoint_every": 0, "checkpoints_kept": 2}
"""Every few milliseconds: when exactly, the machine decides."""
RECIPE: dict[str, Any] = {
    "name": "kill",
    "threads": 1,
    "environment": {"name": "sql", "max_turns": 2},
    "state": {"tool_prompt": "none", "max_tokens": 700},
    # 5 does not divide the steps: checkpoints fall between two lines of metrics
    "sft": {"steps": 18, "batch_size": 2, "learning_rate": 0.01, "trainer": {"logging_steps": 5}},
    "reward": {"epochs": 6, "batch_size": 2, "trainer": {"logging_steps": 5}},
    "rl": {
        "iterations": 6,
        "episodes": 4,
        "evaluate_every": 2,
        "evaluation_episodes": 2,
        "keep": "best",
        "actor": {"max_new_tokens": 8, "learning_rate": 1e-3},
        "critic": {"steps": 2, "batch_size": 4, "hidden_size": 8, "warm_up": {"max_iterations": 1}},
        "pool": {"max_episodes": 8, "sampling": "prioritised"},
        "ppo": {"epochs": 1, "minibatch_episodes": 2, "kl_target": 0.1},
        "rewards": {"reward_model": 0.5},
    },
}


class Lab:
    """A recipe, its data, a tiny actor with dropout, and each stage's uninterrupted run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        # Dropout draws from torch's own generator, whose state has to come back, too.
        actor = tiny_llama(root / "actor", attention_dropout=0.2)
        dialogues = [{"prompt": f"say {w}", "completion": f"the answer is {w}"} for w in WORDS]
        pairs = [
            {"prompt": f"how many {w}?", "chosen": f"there are {w}", "rejected": f"no {w} {w}"}
            for w in WORDS
        ]
        content = RECIPE | {"model": {"actor": str(actor)}}
        for name, stage, rows in (("dialogues", "sft", dialogues), ("pairs", "reward", pairs)):
            file = root / f"{name}.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            content[stage] = content[stage] | {"data": str(file)}
        self.recipe = root / "recipe.yaml"
        self.recipe.write_text(yaml.safe_dump(content))
        self._logs = 0
        self.seconds: dict[str, float] = {}
        """What each stage's run takes."""
        for stage in STAGES:
            start = time.monotonic()
            aac(*self.words(stage, root / stage, **NEVER), log=self.log())
            self.seconds[stage] = time.monotonic() - start

    def words(self, stage: str, out: Path, **over: Any) -> list[str]:
        """The command of a stage on the first run's folders."""
        words = [COMMANDS[stage], str(self.recipe), "--output-dir", str(out)]
        for name, value in over.items():
            words += ["--set", f"{stage}.{name}={json.dumps(value)}"]
        for parent in STAGES[: STAGES.index(stage)]:
            words += [f"--{parent}", str(self.root / parent)]
        return words

    def log(self) -> Path:
        """A fresh file for what a command says."""
        self._logs += 1
        return self.root / f"log-{self._logs}.txt"


def while_writing(command: Command, folder: Path, rng: random.Random) -> bool:
    """Kill within a checkpoint's write; False: the run was over before."""
    found = command.until(begins(folder))
    time.sleep(rng.uniform(0, 0.02))
    return found and killed(command)


def begins(folder: Path) -> Callable[[], bool]:
    """Whether a checkpoint's write has begun since now; a kill may have left another's folder."""
    place = folder / "checkpoints/.writing"

    def seen() -> tuple[int, int] | None:
        with suppress(FileNotFoundError):
            return place.stat().st_ino, place.stat().st_ctime_ns
        return None

    before = seen()
    return lambda: seen() not in (None, before)


def anywhere(command: Command, seconds: float, rng: random.Random) -> bool:
    """Kill at any moment from the command's start on."""
    moment = time.monotonic() + rng.uniform(0, seconds)
    return command.until(lambda: time.monotonic() > moment) and killed(command)


def killed(command: Command) -> bool:
    """By SIGKILL, which nothing can be done about; False: it was over before."""
    command.signal(signal.SIGKILL)
    return command.ended() == -signal.SIGKILL


def kills(lab: Lab, stage: str, root: Path, count: int, seed: int) -> Iterator[Path]:
    """Runs that are killed ``count`` times in all, each folder once it has come to its end.

    Every other kill comes while a checkpoint is written.
    """
    rng, done, number = random.Random(f"{stage} {seed}"), 0, 0
    while done < count:
        number += 1
        folder = root / f"{stage}-{number}"
        words = lab.words(stage, folder, **CLOCK)
        while done < count and not (folder / "manifest.json").exists():
            command = Command(*words, log=lab.log())
            if done % 2:
                done += anywhere(command, lab.seconds[stage], rng)
            else:
                done += while_writing(command, folder, rng)
            assert command.ended() in (0, -signal.SIGKILL), command.said
        if not (folder / "manifest.json").exists():
            aac(*words, log=lab.log())
        yield folder


def figures(file: Path) -> list[dict[str, Any]]:
    """Lines of a log less what a clock decides."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def assert_same(folder: Path, whole: Path) -> None:
    """Weights, critic, pool, trajectories, evaluations and metrics, bit for bit."""
    names = contents(folder)
    assert names == contents(whole)
    assert {"model.safetensors", "metrics.jsonl", "manifest.json"} <= names
    for name in sorted(names - {"manifest.json", "summary.json"}):
        if name == "metrics.jsonl":
            assert figures(folder / name) == figures(whole / name)
        else:
            assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
    ours, theirs = (json.loads((f / "manifest.json").read_text()) for f in (folder, whole))
    for key in ("content_hash", "data", "seed", "base"):
        assert ours[key] == theirs[key]
    ours, theirs = (json.loads((f / "summary.json").read_text()) for f in (folder, whole))
    timeless = [{k: v for k, v in row.items() if "seconds" not in k} for row in (ours, theirs)]
    assert timeless[0] == timeless[1]


def contents(folder: Path) -> set[str]:
    """Files of a run, but for the libraries' chatter."""
    found = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return {name for name in found if not name.startswith("log")}
