"""Real processes, launched as a person's command launches them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from stages.common.launch import CONFIGS, Launch, environment

PATIENCE = 900
"""Seconds; only a hang takes that long."""


def zero(stage: int, folder: Path) -> Path:
    """The shipped configuration, with no parameter too small to be partitioned."""
    config = json.loads((CONFIGS / f"zero{stage}.json").read_text())
    if stage == 3:
        config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    file = folder / f"zero{stage}-tiny.json"
    file.write_text(json.dumps(config))
    return file


def worker(how: Path | str, *words: Any) -> None:
    """Run ``tests.distributed.worker`` in two processes."""
    arguments = Launch(str(how), 2).arguments([str(word) for word in words])
    arguments[arguments.index("aacli")] = "tests.distributed.worker"
    command = [sys.executable, "-m", "accelerate.commands.launch", *arguments]
    done = _run(command, os.environ | environment())
    assert done.returncode == 0, done.stderr[-4000:]


def aac(*words: Any) -> subprocess.CompletedProcess[str]:
    """The real command, in a process of its own."""
    return _run([sys.executable, "-m", "aacli", *map(str, words)], dict(os.environ))


def _run(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    env["PYTHONPATH"] = str(root)
    return subprocess.run(
        command, cwd=root, env=env, capture_output=True, text=True, timeout=PATIENCE
    )
