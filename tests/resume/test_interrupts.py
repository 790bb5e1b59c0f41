"""Ctrl-C and SIGTERM to real processes: the state is saved, and the line names what goes on."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aacli.app import app
from stages.interaction.native import NativeSession
from tests.distributed.launching import PATIENCE
from tests.resume.lab import NEVER, STAGES, Lab, assert_same
from tests.resume.processes import Command, aac

UNITS = {"sft": "step", "reward": "step", "rl": "iteration"}


def goes_on(said: str) -> list[str]:
    """The words of the command that the last line names, less ``aac``."""
    line = said.splitlines()[-1]
    assert line.startswith("aac: interrupted: ") and said.count("aac: ") == 1, said
    name, *words = shlex.split(line.partition("; go on with: ")[2])
    assert name == "aac" and "Traceback" not in said
    return words


def under_way(folder: Path) -> bool:
    return (folder / "metrics.jsonl").exists()


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_saves_its_state_and_goes_on_to_the_same_end(
    stage: str, lab: Lab, tmp_path: Path
) -> None:
    number = {"sft": signal.SIGINT, "reward": signal.SIGTERM, "rl": signal.SIGTERM}[stage]
    folder = tmp_path / stage
    command = Command(*lab.words(stage, folder, **NEVER), log=tmp_path / "first.txt")
    assert command.until(lambda: under_way(folder))
    command.signal(number)
    assert command.ended() == 130
    (saved,) = (folder / "checkpoints").iterdir()
    step = saved.name.removeprefix("checkpoint-")
    assert f": the state after {UNITS[stage]} {step} is saved; go on with: " in command.said
    aac(*goes_on(command.said), log=tmp_path / "second.txt")
    assert_same(folder, lab.root / stage)


def test_a_rollout_is_given_up_in_the_middle(lab: Lab, tmp_path: Path) -> None:
    """Nothing was learnt from it, so the run goes on as if it had not begun it."""
    folder, asked = tmp_path / "rl", []
    real = NativeSession.ask

    def heard(self: NativeSession, requests: Any) -> Any:
        if requests[0].key[1] == 3 and requests[0].key[3] == 0:  # the fourth iteration's first turn
            signal.raise_signal(signal.SIGTERM)
        asked.append(requests[0].key)
        return real(self, requests)

    words = lab.words("rl", folder, **NEVER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NativeSession, "ask", heard)
        cut = CliRunner().invoke(app, words)
    assert cut.exit_code == 130 and "the state after iteration 3 is saved" in cut.stderr
    assert asked[-1][1:] == (3, 0, 0)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and "resumed from iteration 3" in done.stdout
    assert_same(folder, lab.root / "rl")


def test_the_second_interrupt_ends_at_once(lab: Lab, tmp_path: Path) -> None:
    """A world that never answers lets no safe point come."""
    tasks = tmp_path / "tasks.jsonl"
    folder, waiting = tmp_path / "rl", tmp_path / "waiting"
    tasks.write_text(json.dumps({"id": "a", "options": {"note": str(waiting)}}) + "\n")
    world = {
        "name": "gymnasium",
        "gymnasium": "tests.rl.sick_worlds:Deaf",
        "tasks": str(tasks),
        "max_turns": 2,
    }
    words = [*lab.words("rl", folder), "--set", f"environment={json.dumps(world)}"]
    command = Command(*words, log=tmp_path / "log.txt")
    assert command.until(waiting.exists), command.said
    command.signal(signal.SIGTERM)
    command.process.join(0.5)
    assert not command.over
    for _ in range(10):  # on a loaded machine the first two may arrive as one
        if not command.over:
            command.signal(signal.SIGTERM)
            command.process.join(10)
    assert command.ended() == 130
    assert "interrupted: nothing new is saved; go on with: " in command.said


@pytest.mark.full
def test_aac_run_passes_it_on(lab: Lab, tmp_path: Path) -> None:
    """As a person starts it, and presses Ctrl-C in its last stage."""
    sets = {"evaluation.episodes": 2, "evaluation.readiness": False, "rl.evaluate_every": 0}
    sets |= {"rl.iterations": 40, "rl.critic.warm_up.max_iterations": 0}
    settings = [word for path, value in sets.items() for word in ("--set", f"{path}={value}")]
    words = ["run", str(lab.recipe), "--output-dir", str(tmp_path / "out"), *map(str, settings)]
    folder = tmp_path / "out/rl"
    started = _aac(*words)
    _wait(started, lambda: under_way(folder))
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=PATIENCE)
    assert started.returncode == 130, errors
    assert goes_on(errors) == words
    done = _aac(*goes_on(errors))
    out, errors = done.communicate(timeout=PATIENCE)
    assert done.returncode == 0, errors
    assert "sft: finished before" in out and "resumed from iteration" in out
    assert json.loads((folder / "summary.json").read_text())["iterations"] == 40


@pytest.mark.full
def test_several_processes_save_and_stop_together(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "rl"
    words = lab.words("rl", folder, **NEVER | {"iterations": 40})
    words += ["--launch", "ddp", "--processes", "2"]
    started = _aac(*words)
    _wait(started, lambda: under_way(folder))
    started.send_signal(signal.SIGTERM)
    _, errors = started.communicate(timeout=PATIENCE)
    assert started.returncode == 130, errors
    assert goes_on(errors) == words
    (saved,) = (folder / "checkpoints").iterdir()
    assert f"the state after iteration {saved.name.removeprefix('checkpoint-')} is" in errors


def _aac(*words: str) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-m", "aacli", *words],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait(process: subprocess.Popen[str], seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not seen():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)
