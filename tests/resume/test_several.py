"""Two processes, of which one or all are killed, end as two do that nobody disturbed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from tests.distributed.launching import PATIENCE, zero
from tests.resume.lab import CLOCK, NEVER, Lab, assert_same, begins, figures

CLOSE = 1e-6


def started(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "aacli", *words],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(words: list[str]) -> None:
    process = started(words)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors[-4000:]


def ranks(launcher: subprocess.Popen[str]) -> list[psutil.Process]:
    found = [p for p in psutil.Process(launcher.pid).children() if "aacli" in p.cmdline()]
    assert len(found) == 2
    return found


def one(launcher: subprocess.Popen[str], rng: random.Random) -> None:
    """The launcher ends the other, and itself, in a sentence."""
    rng.choice(ranks(launcher)).kill()
    _, errors = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 1 and "was killed (SIGKILL)" in errors, errors[-4000:]
    assert "Traceback" not in errors


def all_of_them(launcher: subprocess.Popen[str], rng: random.Random) -> None:
    """As if the power went."""
    for process in (psutil.Process(launcher.pid), *ranks(launcher)):
        process.kill()
    launcher.communicate(timeout=PATIENCE)


def wait(launcher: subprocess.Popen[str], seen: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not seen():
        assert launcher.poll() is None, launcher.communicate()[1][-4000:]
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.resume
@pytest.mark.parametrize("how", ["ddp", "zero3"])
@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_killed_and_gone_on_with(stage: str, how: str, lab: Lab, tmp_path: Path) -> None:
    launch = ["--launch", how if how == "ddp" else str(zero(3, tmp_path)), "--processes", "2"]
    finished([*lab.words(stage, tmp_path / "whole", **NEVER), *launch])
    folder, rng = tmp_path / "cut", random.Random(how + stage)
    words = [*lab.words(stage, folder, **CLOCK), *launch]
    for kill in (one, all_of_them):
        writing = begins(folder)
        launcher = started(words)
        wait(launcher, writing)
        time.sleep(rng.uniform(0, 1))
        kill(launcher, rng)
        assert not (folder / "manifest.json").exists()
    finished(words)
    if how == "ddp":
        assert_same(folder, tmp_path / "whole")
    else:
        assert_close(folder, tmp_path / "whole")


def assert_close(folder: Path, whole: Path) -> None:
    """Weights, critic and every figure, to a millionth; the same words were said."""
    for name in ("model.safetensors", "critic/model.safetensors"):
        if not (whole / name).exists():
            continue
        ours, theirs = load_file(folder / name), load_file(whole / name)
        assert ours.keys() == theirs.keys()
        for key, tensor in theirs.items():
            torch.testing.assert_close(ours[key], tensor, rtol=CLOSE, atol=CLOSE)
    pairs = zip(figures(folder / "metrics.jsonl"), figures(whole / "metrics.jsonl"), strict=True)
    for row, other in pairs:
        assert row == pytest.approx(other, rel=CLOSE, abs=CLOSE, nan_ok=True)
    for file in (whole / "trajectories").glob("*.jsonl"):
        assert said(folder / "trajectories" / file.name) == said(file)


def said(file: Path) -> list[list[str]]:
    episodes = [json.loads(line) for line in file.read_text().splitlines()]
    return [[turn["action"]["text"] for turn in episode["turns"]] for episode in episodes]
