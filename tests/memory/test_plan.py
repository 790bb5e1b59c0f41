"""Budgets against the ZeRO paper's own figures, and identities between plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stages.memory.architecture import named
from stages.memory.job import Job
from stages.memory.plan import GIB, Plan, changes, job_of, make_plan
from stages.memory.strategies import STRATEGIES, Weights, model_states, precision_of
from stages.recipe.models import Recipe


def recipe(**over: Any) -> Recipe:
    base = {"name": "x", "model": {"actor": "a"}, "environment": {"name": "sql"}}
    return Recipe.model_validate(base | over)


def plan(job: Job, processes: int = 1, memory: float = 80.0) -> Plan:
    return make_plan(job, processes=processes, gpu_memory=memory * GIB)


SEVEN = job_of(recipe(), named("7B"), on_gpu=True)


@pytest.mark.parametrize(
    ("strategy", "gigabytes"), [("ddp", 120.0), ("zero2", 16.6), ("zero3", 1.9)]
)
def test_model_states_are_those_of_figure_1_of_the_zero_paper(strategy: Any, gigabytes: float):
    """7.5 B weights on 64 GPUs, mixed-precision Adam (arXiv:1910.02054)."""
    precision = precision_of(strategy, bf16=True)
    states = model_states(Weights(7_500_000_000), strategy, 64, precision)
    held = sum(states[name] for name in ("weights", "gradients", "optimizer"))
    assert held / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_more_processes_never_need_more_under_zero3():
    peaks = [plan(SEVEN, n).peak("zero3") for n in (2, 4, 8, 16)]
    assert peaks == sorted(peaks, reverse=True)
    ddp = [plan(SEVEN, n).budgets["sft"]["ddp"].peak for n in (2, 4, 8)]
    assert len(set(ddp)) == 1


def test_adapters_have_no_reference_and_few_states():
    whole, adapted = plan(SEVEN), plan(replace(SEVEN, rank=16))
    assert "reference" in whole.budgets["rl"]["ddp"].held
    held = adapted.budgets["rl"]["ddp"].held
    assert "reference" not in held and held["weights"] > 2 * SEVEN.model.parameters
    assert held["optimizer"] == 8 * SEVEN.model.adapter_parameters(16)
    four_bits = plan(replace(SEVEN, rank=16, quantized=True)).budgets["sft"]["ddp"].held
    assert four_bits["weights"] < 0.35 * held["weights"]


def test_every_recipe_key_that_costs_memory_costs_it():
    def peak(stage: str, **over: Any) -> float:
        return plan(job_of(recipe(**over), named("0.5B"), on_gpu=True)).budgets[stage]["ddp"].peak

    assert peak("sft", sft={"batch_size": 32}) > peak("sft")
    assert peak("sft", sft={"max_length": 512}) < peak("sft")
    again = {"trainer": {"gradient_checkpointing": True}}
    assert peak("sft", sft=again) < peak("sft")
    assert peak("sft", sft={"trainer": {"optim": "adamw_8bit"}}) < peak("sft")
    assert peak("reward", reward={"batch_size": 32}) > peak("reward")
    tiny = {"iterations": 1, "ppo": {"microbatch_tokens": 64}}
    assert peak("rl", rl=tiny) < peak("rl")
    full = {"ppo": {"kl_loss": "full"}}
    assert peak("rl", rl=full) > peak("rl")
    assert (
        "reward"
        not in plan(
            job_of(recipe(rl={"rewards": {"reward_model": 0}}), named("0.5B"), on_gpu=True)
        ).budgets
    )
    small = {"base": "Qwen/Qwen2.5-0.5B"}
    big = plan(SEVEN).budgets["rl"]["ddp"].held["reward model"]
    other = plan(job_of(recipe(reward=small), named("7B"), on_gpu=True))
    assert other.budgets["rl"]["ddp"].held["reward model"] < 0.1 * big


def test_shared_and_absent_critics_cost_nothing_and_copies_of_large_trunks_much():
    def critic(**section: Any) -> float:
        job = job_of(recipe(rl={"critic": section}), named("7B"), on_gpu=True)
        return plan(job).budgets["rl"]["ddp"].held.get("critic", 0.0)

    assert critic(kind="none") == critic(trunk="shared", view="symmetric") == 0.0
    assert 0 < critic() < critic(ensemble=3) < 0.1 * GIB < critic(trunk="reward-model")


def test_what_would_fit_does_fit():
    short = plan(SEVEN, 1, 80.0)
    assert not any(short.fits(strategy) for strategy in STRATEGIES)
    found = changes(short)
    assert found and all("GiB under" in line for line in found)
    assert any("model.lora" in line for line in found)
    peaks = [float(line.split(": ")[-1].split(" GiB")[0]) for line in found]
    assert all(peak <= 72.0 for peak in peaks)
    assert changes(plan(job_of(recipe(), named("70B"), on_gpu=True), 1, 8.0)) == []


def test_a_cpu_computes_in_float32_and_keeps_no_cache():
    gpu, cpu = (job_of(recipe(), named("0.5B"), on_gpu=g) for g in (True, False))
    assert gpu.bf16 and not cpu.bf16
    one, other = (plan(j).budgets["rl"]["ddp"] for j in (gpu, cpu))
    cache = one.phases["rollout"]["KV cache"]
    assert other.phases["rollout"]["KV cache"] == 2 * cache
    assert not [name for name in other.held if "cache" in name]
