"""The real commands in two real processes, against the same command in one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from aacli.app import app
from stages.common import trl_trainer
from tests.distributed.launching import PATIENCE, aac, zero

SMOKE = Path(__file__).parents[2] / "recipes/smoke.yaml"
SMALL = [
    "sft.demonstrations=6",
    "sft.steps=3",
    "sft.batch_size=4",
    "sft.trainer={logging_steps: 1}",
    "environment.max_turns=4",
    "rl.iterations=2",
    "rl.episodes=5",
    "rl.evaluation_episodes=3",
    "rl.actor.max_new_tokens=24",
    "rl.ppo.minibatch_episodes=3",
    "rl.checkpoint_every=1",
    "rl.critic.warm_up.max_iterations=0",
    "distributed.timeout_s=120",
]
Rows = list[dict[str, Any]]


def words(command: str, out: Path, *extra: str, sets: tuple[str, ...] = ()) -> list[str]:
    settings = [word for text in (*SMALL, *sets) for word in ("--set", text)]
    return [command, str(SMOKE), *settings, "--output-dir", str(out), *extra]


def alone(*given: str) -> None:
    """One process, in this one."""
    done = CliRunner().invoke(app, list(given))
    assert done.exit_code == 0, done.output


def together(how: Path | str, *given: str) -> subprocess.CompletedProcess[str]:
    """Two processes."""
    done = aac(*given, "--launch", how, "--processes", 2)
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def rows(folder: Path, name: str = "metrics.jsonl") -> Rows:
    """The lines of a file less what a clock or a machine decides."""
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    apart = ("time/", "actor/held_share", "pool/bytes")  # digits of rounded log-probs
    return [{k: v for k, v in row.items() if not k.startswith(apart)} for row in lines]


def assert_same_figures(two: Path, one: Path) -> None:
    for theirs, ours in zip(rows(two), rows(one), strict=True):
        assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-5, nan_ok=True)


def assert_same_weights(two: Path, one: Path, name: str = "model.safetensors") -> None:
    """Tensor by tensor, in files that load without us."""
    theirs, ours = load_file(two / name), load_file(one / name)
    assert set(theirs) == set(ours)
    for name, tensor in ours.items():
        assert theirs[name].shape == tensor.shape and tensor.numel() > 0
        assert float((theirs[name] - tensor).abs().max()) < 1e-4, name


@pytest.fixture(scope="module")
def sft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sft") / "sft"
    alone(*words("sft", folder))
    return folder


def test_rl_under_zero3_plays_and_learns_as_one_process(sft: Path, tmp_path: Path) -> None:
    """Trajectories, whitening, rewards, KL and every other figure; parameters held by half."""
    given = ("--sft", str(sft), "--no-reward")
    alone(*words("rl", tmp_path / "one", *given))
    done = together(zero(3, tmp_path), *words("rl", tmp_path / "two", *given))
    assert done.stdout.count("rl: done") == 1
    assert "accelerate launch --use_deepspeed" in done.stdout
    assert_same_figures(tmp_path / "two", tmp_path / "one")
    for name in ("00000", "00001"):
        played = [
            [[t["action"]["text"] for t in e["turns"]] for e in rows(folder, f"pool/{name}.jsonl")]
            for folder in (tmp_path / "two", tmp_path / "one")
        ]
        assert played[0] == played[1]
        assert len(played[0]) == 5
    assert_same_weights(tmp_path / "two", tmp_path / "one")
    lines = (tmp_path / "two/metrics.jsonl").read_text().splitlines()
    held = [json.loads(line) for line in lines]
    assert all(0.5 <= row["actor/held_share"] <= 0.55 for row in held)
    AutoModelForCausalLM.from_pretrained(tmp_path / "two")
    assert (
        load_file(tmp_path / "two/critic/model.safetensors").keys()
        == load_file(tmp_path / "one/critic/model.safetensors").keys()
    )


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_another_launch_may_not_go_on_from_stage_one_checkpoints(tmp_path: Path) -> None:
    """Under ZeRO they lie in as many pieces as there were processes."""
    given = words("sft", tmp_path / "sft", sets=("sft.checkpoint_every=1",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trl_trainer, "mode", lambda: "zero3")
        patch.setattr(trl_trainer, "world_size", lambda: 2)
        patch.setattr(trl_trainer, "save_trained", interrupted)
        assert CliRunner().invoke(app, given).exit_code == 130
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 2
    assert "was made by 2 processes (zero3), and this is a run of 1 process (one)" in done.output
    assert "--resume never" in done.output


@pytest.mark.full
def test_sft_under_zero3_equals_one_process(sft: Path, tmp_path: Path) -> None:
    half = ("sft.batch_size=2",)
    done = together(zero(3, tmp_path), *words("sft", tmp_path / "two", sets=half))
    assert done.stdout.count("sft: done") == 1
    assert_same_figures(tmp_path / "two", sft)
    assert_same_weights(tmp_path / "two", sft)
    AutoModelForCausalLM.from_pretrained(tmp_path / "two")


@pytest.mark.full
def test_reward_model_under_zero3_equals_one_process_and_scores_sharded(
    sft: Path, tmp_path: Path
) -> None:
    pairs = tmp_path / "pairs.jsonl"
    lines = [
        {"prompt": f"how many {w}?", "chosen": f"there are {w}", "rejected": f"no {w} {w}"}
        for w in ("orders", "tables", "goals", "units", "answers", "errors", "users", "prices")
    ]
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sets = (f"reward.data={pairs}", "reward.trainer={logging_steps: 1}", "reward.epochs=2")
    from_sft = ("--sft", str(sft))
    one, two = tmp_path / "one/reward", tmp_path / "two/reward"
    alone(*words("train-reward", one, *from_sft, sets=(*sets, "reward.batch_size=4")))
    config = zero(3, tmp_path)
    together(config, *words("train-reward", two, *from_sft, sets=(*sets, "reward.batch_size=2")))
    assert len(rows(one)) >= 3
    assert_same_figures(two, one)
    assert_same_weights(two, one)
    given = (*from_sft, "--reward", str(one))
    alone(*words("rl", tmp_path / "rl", *given))
    for how in ("sharded", "replicated"):
        out = tmp_path / how
        together(config, *words("rl", out, *given, sets=(f"distributed.reward_model={how}",)))
        assert_same_figures(out, tmp_path / "rl")


@pytest.mark.full
def test_a_killed_process_ends_the_run_and_resume_goes_on(sft: Path, tmp_path: Path) -> None:
    """Also with another number of processes: one goes on where two were."""
    long = ("rl.iterations=6",)
    given = words("rl", tmp_path / "rl", "--sft", str(sft), "--no-reward", sets=long)
    launch = ["--launch", str(zero(3, tmp_path)), "--processes", "2"]
    started = subprocess.Popen(
        [sys.executable, "-m", "aacli", *given, *launch],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _wait_for(tmp_path / "rl/checkpoints/checkpoint-2", started)
    ranks = [p for p in psutil.Process(started.pid).children() if "aacli" in p.cmdline()]
    assert len(ranks) == 2
    ranks[1].send_signal(signal.SIGKILL)
    begun = time.monotonic()
    _, errors = started.communicate(timeout=PATIENCE)
    assert time.monotonic() - begun < 120
    assert started.returncode == 1
    complaints = [line for line in errors.splitlines() if line.startswith("aac: ")]
    assert len(complaints) == 1 and "was killed (SIGKILL)" in complaints[0]
    assert "Traceback" not in errors
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    assert "resumed from iteration" in done.output
    alone(*words("rl", tmp_path / "whole", "--sft", str(sft), "--no-reward", sets=long))
    assert_same_figures(tmp_path / "rl", tmp_path / "whole")
    assert_same_weights(tmp_path / "rl", tmp_path / "whole")


@pytest.mark.full
def test_adapters_under_zero3_equal_one_process(tmp_path: Path) -> None:
    """SFT makes them, RL goes on with them, beside a frozen copy as its reference."""
    lora, config = ("model.lora={rank: 4, alpha: 8}",), zero(3, tmp_path)
    one, two = tmp_path / "sft", tmp_path / "sft-two"
    alone(*words("sft", one, sets=lora))
    together(config, *words("sft", two, sets=(*lora, "sft.batch_size=2")))
    rl = ("--sft", str(one), "--no-reward")
    alone(*words("rl", tmp_path / "rl", *rl, sets=lora))
    together(config, *words("rl", tmp_path / "rl-two", *rl, sets=lora))
    for many, single in ((two, one), (tmp_path / "rl-two", tmp_path / "rl")):
        assert_same_figures(many, single)
        assert_same_weights(many, single, "adapter_model.safetensors")
        assert not (many / "model.safetensors").exists()
    assert rows(tmp_path / "rl-two")[0]["actor/kl"] == pytest.approx(0, abs=1e-6)


SSH = "#!/bin/sh\necho 127.0.0.1\n"
PDSH = """#!{python}
import subprocess, sys
at = sys.argv.index("-w")
line = " ".join(sys.argv[at + 2:])
lines = [line.replace("%n", str(n)) for n, _ in enumerate(sys.argv[at + 1].split(","))]
runs = [subprocess.Popen(["bash", "-c", line]) for line in lines]
sys.exit(max(run.wait() for run in runs))
"""


@pytest.mark.full
@pytest.mark.parametrize("machines", [["localhost slots=2"], ["one slots=1", "two slots=1"]])
def test_machines_of_a_hostfile(
    machines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One machine needs nothing else; two are reached by doubles of ssh and pdsh, which stay on
    this one: everything above them is real."""
    doubles = {"ssh": SSH, "pdsh": PDSH.format(python=sys.executable)} if machines[1:] else {}
    for name, text in doubles.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "hosts").write_text("\n".join(machines))
    given = words("sft", tmp_path / "sft", sets=("sft.batch_size=2",))
    done = aac(*given, "--launch", "zero2", "--hostfile", tmp_path / "hosts")
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("sft: done") == 1
    alone(*words("sft", tmp_path / "one"))
    assert_same_figures(tmp_path / "sft", tmp_path / "one")
    assert not (Path(__file__).parents[2] / ".deepspeed_env").exists()


@pytest.mark.full
def test_the_pipeline_launches_its_stages(tmp_path: Path) -> None:
    out, sets = tmp_path / "run", ("evaluation.episodes=2", "evaluation.readiness=false")
    sets += ("rl.rewards.reward_model=0",)
    done = together("ddp", *words("run", out, "--json", sets=sets))
    summary = json.loads(done.stdout)
    assert set(summary["stages"]) == {"sft", "rl"}
    assert json.loads((out / "rl/summary.json").read_text())["iterations"] == 2


def _wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert process.poll() is None, process.communicate()[1][-4000:]
        assert time.monotonic() < deadline
        time.sleep(0.2)
