"""``aac plan`` by the real command: what the numbers depend on, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_models import tiny_llama

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "recipes/quickstart.yaml"


@pytest.fixture
def plan(aac: Any) -> Any:
    def call(*words: Any) -> Any:
        result = aac("plan", QUICKSTART, "--json", *words)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    return call


def test_json_names_every_component_of_every_stage(plan: Any):
    made = plan("--model-size", "7B", "--processes", 8)
    assert made["parameters"] == 7_615_616_512 and made["processes"] == 8
    assert list(made["stages"]) == ["sft", "reward", "rl"]
    rl = made["stages"]["rl"]
    assert list(rl) == ["ddp", "zero2", "zero3", "offload"]
    wanted = "weights gradients optimizer activations reference critic"
    assert {*wanted.split(), "KV cache", "reward model"} <= set(rl["zero3"]["components"])
    peaks = [rl[name]["peak"] for name in rl]
    assert peaks == sorted(peaks, reverse=True)
    assert rl["offload"]["host"] > 0 and rl["zero3"]["host"] == 0


def test_memory_decides_what_fits_and_what_to_change(plan: Any):
    roomy, tight = (plan("--model-size", "7B", "--gpu-memory", g) for g in (640, 80))
    assert roomy["fits"]["ddp"] and roomy["changes"] == []
    assert not any(tight["fits"].values()) and tight["changes"]


def test_overrides_move_the_plan(plan: Any):
    one, two = (plan("--set", f"rl.episodes={n}")["tokens_per_iteration"] for n in (32, 64))
    assert two == {name: 2 * value for name, value in one.items()}
    small, large = (plan("--set", f"sft.batch_size={n}") for n in (1, 64))
    assert small["stages"]["sft"]["ddp"]["peak"] < large["stages"]["sft"]["ddp"]["peak"]


def test_vllm_takes_its_share_of_each_device(plan: Any):
    words = ("--model-size", "7B", "--gpu-memory", 100, "--set", "rl.generation.engine=vllm")
    share = ("--set", "rl.generation.vllm.gpu_memory_utilization=0.25")
    made = plan(*words, *share)["stages"]
    rl = made["rl"]["ddp"]["components"]
    assert rl["vLLM"] == 25 * 2**30 and "copy to sample from" not in rl
    assert "vLLM" not in made["sft"]["ddp"]["components"]
    server = plan(*words, "--set", "rl.generation.vllm.mode=server")["stages"]["rl"]["ddp"]
    assert server["peak"] == made["rl"]["ddp"]["peak"] - 25 * 2**30


def test_the_table_reads_without_a_probe(aac: Any):
    result = aac("plan", QUICKSTART, "--cpu")
    assert result.exit_code == 0
    for words in ("reward model", "peak", "It fits on one device.", "Time: not measured; --probe"):
        assert words in result.stdout
    assert "zero3" not in result.stdout
    several = aac("plan", QUICKSTART, "--processes", 2, "--model-size", "70B")
    assert "It does not fit." in several.stdout or "It fits in none" in several.stdout


def test_the_probe_measures_this_machine(plan: Any, tmp_path: Path):
    actor = tiny_llama(tmp_path / "actor")
    made = plan("--probe", "--cpu", "--set", f"model.actor={actor}", "--processes", 2)
    work, probe = made["tokens_per_iteration"], made["probe"]
    assert probe["device"] == "this CPU"
    assert all(probe[rate] > 0 for rate in ("forward", "sampling", "learning"))
    assert made["seconds_per_iteration"]["update"] == pytest.approx(
        work["learned"] / probe["learning"] / 2
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--model-size", "9T"], "--model-size 9T is not known; expected one of 135M"),
        (["--model-size", "7B", "--probe"], "--probe measures the recipe's own model"),
        (["--set", "model.actor=nobody/nothing"], "config of nobody/nothing is not on this"),
        (["--processes", "0"], "--processes"),
    ],
)
def test_bad_input_is_one_sentence(aac: Any, words: list[str], sentence: str):
    result = aac("plan", QUICKSTART, *words)
    assert result.exit_code == 2 and sentence in result.stderr
    assert "Traceback" not in result.stderr
