"""What a fresh clone relies on: pinned versions, Makefile targets, CI script, no network."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import threading
import tomllib
from pathlib import Path

import pytest

from tests.conftest import NetworkBlocked

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if "==" in line and not line.startswith("#")
)
TARGETS = (
    "setup quickstart test test-full sft reward rl eval lint bench clean base help "  # noqa: SIM905
    "plan-check device-check bench-seeds bench-states test-server test-resume models laptop "
    "test-laptop".split()
)

needs_make = pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")


def make(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    # The tests may themselves have been started by make, whose flags must not be inherited.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", *words], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_every_dependency_is_pinned():
    wanted = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]
    names = {re.split(r"[<>=;\s\[]", text)[0].lower() for text in wanted}
    assert names <= {name.lower() for name in PINS}


def test_versions_that_the_design_rests_on():
    assert PINS["torch"] == "2.13.0"
    assert PINS["trl"].startswith("1.12.")
    assert "trl>=1.12,<1.13" in PROJECT["dependencies"]
    assert any(re.match(r"deepspeed.*sys_platform == .linux.", d) for d in PROJECT["dependencies"])
    assert PROJECT["requires-python"] == ">=3.11"
    assert PROJECT["scripts"] == {"aac": "aacli.app:main"}


@needs_make
def test_help_names_every_target():
    out = make().stdout
    for target in TARGETS:
        assert re.search(rf"^  make {target} +\w", out, re.MULTILINE), target


@needs_make
@pytest.mark.parametrize("target", [t for t in TARGETS if t not in ("help", "clean")])
def test_targets_set_up_the_environment_first(target, tmp_path):
    done = make("-n", target, f"VENV={tmp_path}/venv", "PIP_ARGS=--find-links wheels")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    install = next(i for i, line in enumerate(lines) if " -m pip install" in line)
    assert "--find-links wheels -c constraints.txt -e" in lines[install]
    uses = [i for i, line in enumerate(lines) if "/bin/aac" in line or "/bin/ruff" in line]
    assert all(i > install for i in uses)


@needs_make
def test_stage_targets_run_the_real_commands_on_any_recipe(tmp_path):
    stamp = tmp_path / ".installed"
    stamp.touch()
    words = ["-n", "sft", "reward", "rl", "RECIPE=recipes/smoke.yaml", f"VENV={tmp_path}"]
    commands = [line.removeprefix(f"{tmp_path}/bin/") for line in make(*words).stdout.splitlines()]
    assert [line.strip() for line in commands] == [
        "aac sft recipes/smoke.yaml",
        "aac train-reward recipes/smoke.yaml",
        "aac rl recipes/smoke.yaml",
    ]


@needs_make
def test_base_is_made_as_the_shipped_weights_were(tmp_path):
    (tmp_path / ".installed").touch()
    (command,) = make("-n", "base", f"VENV={tmp_path}").stdout.splitlines()
    words = "-m stages.pretraining.run --output recipes/base --steps 5000 --seed 0"
    assert command == f"{tmp_path}/bin/python {words}"


@needs_make
def test_bench_seeds_hands_the_persons_arguments_to_everyone(tmp_path):
    """The opponents' own settings come last, and aac eval has no --overwrite."""
    log = tmp_path / "log"
    (tmp_path / "bin").mkdir()
    for name in ("aac", "python"):
        script = tmp_path / "bin" / name
        script.write_text(f'#!/bin/sh\necho {name} "$@" >> {log}\n')
        script.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "runs/bench/seed-3").mkdir(parents=True)
    (tmp_path / ".installed").touch()
    words = ["SEEDS=3", f"VENV={tmp_path}", "ARGS=--set rl.iterations=2 --overwrite"]
    done = make("bench-seeds", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    *commands, table = [line.split() for line in log.read_text().splitlines()]
    assert [c[1] for c in commands] == ["run", *["sft"] * 3, *["eval"] * 5]
    assert all("rl.iterations=2" in command for command in commands)
    assert ["--overwrite" in command for command in commands] == [True] * 4 + [False] * 5
    steps = [w for c in commands[1:4] for w in c if w.startswith("sft.steps=")]
    assert steps == ["sft.steps=750", "sft.steps=1100", "sft.steps=1100"]
    actors = [c[c.index("--actor") + 1].rpartition("/")[2] for c in commands[4:]]
    assert actors == ["sft", "longer-sft", "more-sft", "cloning", "rl"]
    assert table == "python -m stages.evaluation.seeds runs/bench/seed-3".split()  # noqa: SIM905


@needs_make
def test_clean_removes_the_chosen_environment():
    (command, _) = make("-n", "clean", "VENV=other/venv").stdout.splitlines()
    assert command.startswith("rm -rf other/venv ")


@needs_make
def test_old_or_missing_python_is_one_clear_sentence(tmp_path):
    old = tmp_path / "python"
    old.write_text('#!/bin/sh\ncase "$2" in *platform*) echo 3.9.1;; *) exit 1;; esac\n')
    old.chmod(0o755)
    done = make("sft", f"PYTHON={old}", f"VENV={tmp_path}/venv")
    assert done.returncode != 0
    assert f"aac needs Python 3.11 or newer, but '{old}' is 3.9.1" in done.stdout
    assert "make sft PYTHON=" in done.stdout
    missing = make("sft", "PYTHON=no-such-python", f"VENV={tmp_path}/venv")
    assert "'no-such-python' is missing" in missing.stdout


def test_ci_runs_the_tests_and_the_three_stages():
    script = (ROOT / ".ci/run").read_text()
    assert (ROOT / ".ci/run").stat().st_mode & 0o100
    assert "set -e" in script
    assert re.search(r"^make test$", script, re.MULTILINE)
    assert re.search(r"^make sft reward rl RECIPE=recipes/smoke.yaml", script, re.MULTILINE)


def test_tests_cannot_reach_the_network():
    with socket.socket() as sock, pytest.raises(NetworkBlocked, match="tests use no network"):
        sock.connect(("192.0.2.1", 80))


def test_tests_may_use_this_machine():
    with socket.create_server(("127.0.0.1", 0)) as server:
        answer = threading.Thread(target=lambda: server.accept()[0].close())
        answer.start()
        with socket.create_connection(server.getsockname()):
            pass
        answer.join()
