"""What ``--launch`` runs and prints, and what it refuses, before anything heavy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stages.common import engine
from stages.common.errors import RunError, UsageError
from stages.common.launch import CONFIGS, Launch, environment, own_words, typed


def test_every_shipped_configuration_says_its_stage_and_leaves_sizes_to_the_run():
    stages = {}
    for file in CONFIGS.glob("*.json"):
        config = json.loads(file.read_text())
        stages[file.stem] = config["zero_optimization"]["stage"]
        assert config["train_micro_batch_size_per_gpu"] == "auto"
    assert stages == {"zero2": 2, "zero3": 3, "zero3-cpu": 3, "zero3-nvme": 3}
    cpu = json.loads((CONFIGS / "zero3-cpu.json").read_text())["zero_optimization"]
    assert cpu["offload_optimizer"]["device"] == cpu["offload_param"]["device"] == "cpu"


@pytest.mark.parametrize("name", ["zero2", "zero3", "zero3-cpu", "zero3-nvme"])
def test_deepspeed_accepts_the_shipped_configurations(name):
    """By its own parser; NVMe needs a disk and libaio, so no more is shown of that one."""
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    section = json.loads((CONFIGS / f"{name}.json").read_text())["zero_optimization"]
    known = {k: v for k, v in section.items() if v != "auto"}
    assert DeepSpeedZeroConfig(**known).stage == section["stage"]


def test_the_words_of_the_command_go_to_every_process():
    words = own_words(
        "rl r.yaml --launch zero3 --set a=1 --processes=4 --hostfile h --quiet".split()  # noqa: SIM905
    )
    assert words == ["rl", "r.yaml", "--set", "a=1", "--quiet"]
    arguments = Launch("zero3", 4).arguments(words)
    config = arguments[arguments.index("--deepspeed_config_file") + 1]
    assert Path(config) == CONFIGS / "zero3.json"
    assert arguments[arguments.index("--num_processes") + 1] == "4"
    assert arguments[-7:] == ["--module", "aacli", *words]
    assert "accelerate launch --use_deepspeed" in typed(arguments)


def test_accelerate_understands_the_words():
    from accelerate.commands.launch import launch_command_parser

    given = Launch("zero2", 3).arguments(["sft", "r.yaml", "--set", "a=1"])
    parsed = launch_command_parser().parse_args(given)
    assert (parsed.num_processes, parsed.training_script) == (3, "aacli")
    assert parsed.training_script_args == ["sft", "r.yaml", "--set", "a=1"]
    assert parsed.use_deepspeed and parsed.module


def test_machines_of_a_hostfile(tmp_path, monkeypatch):
    hosts = tmp_path / "hosts"
    hosts.write_text("# ours\nfirst slots=8\nsecond  slots=8 # the new one\n")
    arguments = Launch("zero3", None, hosts).arguments(["rl", "--set", "a={b,c}", "--set", "d=e f"])
    assert arguments[arguments.index("--num_processes") + 1] == "16"
    assert arguments[arguments.index("--num_machines") + 1] == "2"
    assert arguments[arguments.index("--deepspeed_hostfile") + 1] == str(hosts)
    # What accelerate makes of them, and DeepSpeed of that.
    from accelerate.commands import launch
    from deepspeed.launcher.runner import fetch_hostfile, parse_args

    real, started = subprocess.Popen, []

    def start(command: Any, *more: Any, **options: Any) -> Any:
        if command[0] != "deepspeed":
            return real(command, *more, **options)
        started.append((command, options["env"]))
        return SimpleNamespace(wait=lambda: 0, returncode=0)

    monkeypatch.setattr(launch.subprocess, "Popen", start)
    monkeypatch.chdir(tmp_path)
    engine.run_launcher(arguments, {"OMP_NUM_THREADS": "1"})
    ((command, variables),) = started
    assert command == [
        "deepspeed", "--hostfile", str(hosts), "--no_local_rank", "--launcher", "pdsh",
        "--num_gpus", "8", "--master_port", "29500", "--module", "aacli",
        "rl", "--set", "'a={b,c}'", "--set", "d=e f",
    ]  # fmt: skip
    assert parse_args(command[1:]).user_args == ["rl", "--set", "'a={b,c}'", "--set", "d=e f"]
    assert fetch_hostfile(str(hosts)) == {"first": 8, "second": 8}
    assert variables["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == str(CONFIGS / "zero3.json")
    assert shutil.which("deepspeed", path=variables["PATH"])
    # Where accelerate writes all variables for the other machines; gone by now.
    assert not Path(variables["DS_ENV_FILE"]).exists()


def test_a_hostfile_of_this_machine_alone_needs_no_others(tmp_path):
    hosts = tmp_path / "hosts"
    for name in ("localhost", os.uname().nodename):
        hosts.write_text(f"{name} slots=2\n")
        launch = Launch("zero2", None, hosts)
        assert "--deepspeed_hostfile" not in launch.arguments(["sft"])
        assert launch.arguments(["sft"])[-3:] == ["--module", "aacli", "sft"]
        launch.check_reach()


def test_several_machines_want_pdsh_and_the_line_is_printed_before(
    stages, here, aac, monkeypatch, tmp_path
):
    (here / "hosts").write_text("first slots=8\nsecond slots=8\n")
    words = ["rl", "demo.yaml", "--no-reward", "--launch", "zero3", "--hostfile", "hosts"]
    monkeypatch.setattr("sys.argv", ["aac", *words, "--dry-run"])
    monkeypatch.setenv("PATH", str(tmp_path))
    done = aac(*words, "--dry-run")
    assert done.exit_code == 2 and "pdsh and ssh is not installed here" in done.stderr
    assert "--deepspeed_hostfile hosts --deepspeed_multinode_launcher pdsh" in done.stdout
    assert "--num_processes 16 --num_machines 2" in done.stdout
    assert "--module aacli rl demo.yaml --no-reward --dry-run" in done.stdout
    assert stages.calls == []


@pytest.mark.parametrize(
    ("how", "processes", "hostfile", "sentence"),
    [
        ("zero4", 2, None, "--launch zero4 is not known, expected one of ddp, zero2, zero3"),
        ("ddp", 1, None, "expected 2 or more processes"),
        ("ddp", 2, "a slots=2", "has --hostfile"),
        ("zero3", 3, "a slots=2\nb slots=2", "do not divide evenly among the 2 machines"),
        ("zero3", None, "a slots=8\nb slots=4", "gives b 4 slots, but 12 processes on 2 machines"),
        ("zero3", 2, "a slots=2\na slots=2", "has a twice"),
        ("zero3", 2, "a slots=2", "names one machine, a, and it is not this one"),
        ("zero3", 2, "a slots = 2", "has 'a slots = 2', expected 'host slots=8'"),
        ("zero3", None, "a has 2", "has 'a has 2', expected 'host slots=8'"),
        ("zero3", None, "# nothing", "names no machine"),
    ],
)
def test_what_cannot_work_is_refused(how, processes, hostfile, sentence, tmp_path):
    file = tmp_path / "hosts" if hostfile else None
    if file:
        file.write_text(hostfile)
    with pytest.raises(UsageError) as refused:
        Launch(how, processes, file).arguments(["rl"])
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("not json", "is no DeepSpeed configuration"),
        ("{}", "is no DeepSpeed configuration"),
        ('{"zero_optimization": {"stage": 1}}', "has ZeRO stage 1, expected 2 or 3"),
    ],
)
def test_a_configuration_of_ones_own_is_checked(content, sentence, tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(content)
    with pytest.raises(UsageError, match=sentence):
        Launch(str(file), 2).arguments(["rl"])


def test_without_a_gpu_deepspeed_is_told(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    assert environment()["DS_ACCELERATOR"] == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert "DS_ACCELERATOR" not in environment()
    arguments = Launch("zero3").arguments(["rl"])
    assert arguments[arguments.index("--num_processes") + 1] == "2"


def test_stage_commands_hand_over_to_the_launcher(stages, here, aac, monkeypatch):
    calls: list[Any] = []
    monkeypatch.setattr(engine, "run_launcher", lambda *given: calls.append(given))
    monkeypatch.setattr("sys.argv", ["aac", "sft", "demo.yaml", "--launch", "ddp"])
    done = aac("sft", "demo.yaml", "--launch", "ddp", "--processes", "2")
    assert done.exit_code == 0, done.stderr
    assert stages.calls == []
    ((arguments, _),) = calls
    assert arguments[-3:] == ["aacli", "sft", "demo.yaml"]
    assert "accelerate launch --multi_gpu" in done.stdout


def test_a_failed_process_gives_its_sentence_and_exit_code(stages, here, aac, monkeypatch):
    def fail(*_: Any) -> None:
        error = RunError("process 1 was killed (SIGKILL), so the others were stopped")
        error.exit_code = 1
        raise error

    monkeypatch.setattr(engine, "run_launcher", fail)
    done = aac("sft", "demo.yaml", "--launch", "zero3", "--processes", "2")
    assert (done.exit_code, done.stderr.count("aac: process 1 was killed")) == (1, 1)


def test_processes_without_launch_is_refused(stages, here, aac):
    for command in ("sft", "run"):
        done = aac(command, "demo.yaml", "--processes", "2")
        assert done.exit_code == 2
        assert "give --launch ddp, zero2 or zero3" in done.stderr
