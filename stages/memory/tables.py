"""A plan for people (tables) and for programs (plain data)."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from stages.common.titled import TitledTable
from stages.memory.budget import Budget
from stages.memory.plan import GIB, USABLE, Plan, changes
from stages.memory.strategies import STRATEGIES, Strategy
from stages.memory.work import Rates, iteration_work

_HEADS: dict[Strategy, str] = {
    "ddp": "ddp", "zero2": "zero2", "zero3": "zero3", "offload": "zero3, CPU offload",
}  # fmt: skip
_ALONE = "one device"
NO_PROBE = (
    "Time: not measured; --probe runs the recipe's model on this machine for some seconds (its "
    "weights must be here) and tells seconds per iteration."
)


def component_table(plan: Plan, stage: str) -> Table:
    """Every component of a stage on one device, each where it is largest."""
    budgets = plan.budgets[stage]
    table = TitledTable(title=f"{stage}: memory of each device", box=None)
    table.add_column("")
    for strategy in strategies(plan):
        table.add_column(_head(plan, strategy), justify="right")
    shown = [budgets[s] for s in strategies(plan)]
    names = dict.fromkeys(name for budget in shown for name in budget.components)
    for name in names:
        sizes = [budget.components.get(name, 0.0) for budget in shown]
        table.add_row(name, *map(readable, sizes))
    table.add_section()
    table.add_row("peak", *(readable(budget.peak) for budget in shown))
    table.add_row("in phase", *(budget.busiest for budget in shown))
    if any(budget.host for budget in shown):
        table.add_row("CPU memory", *(readable(b.host) for b in shown))
    return table


def peak_table(plan: Plan) -> Table:
    """Peak of every stage under every strategy, and whether all stages fit."""
    memory = plan.gpu_memory / GIB
    title = f"peak of each stage on each device ({memory:g} GiB, {USABLE:.0%} of it usable)"
    table = TitledTable(title=title, box=None)
    table.add_column("")
    for strategy in strategies(plan):
        table.add_column(_head(plan, strategy), justify="right")
    for stage, budgets in plan.budgets.items():
        table.add_row(stage, *(readable(budgets[s].peak) for s in strategies(plan)))
    table.add_row("fits", *("yes" if plan.fits(s) else "no" for s in strategies(plan)))
    return table


def verdict(plan: Plan) -> list[str]:
    """What to type, or what to change."""
    fitting = [s for s in strategies(plan) if plan.fits(s)]
    if fitting:
        how = "on one device" if plan.processes == 1 else f"with {_HEADS[fitting[0]]}"
        return [f"It fits {how}."]
    found = changes(plan)
    if not found:
        return ["It fits in none of these ways, nor on 64 devices; take a smaller model."]
    return ["It does not fit. What would, each change planned anew:", *(f"  {f}" for f in found)]


def time_lines(plan: Plan, rates: Rates | None) -> list[str]:
    """Tokens of an RL iteration, at most, and seconds where they were measured."""
    work = iteration_work(plan.job)
    lines = [
        f"Tokens of an RL iteration, at most: {work.prompts:,} read, {work.sampled:,} sampled, "
        f"{work.scored:,} scored, {work.learned:,} learned from "
        f"({work.flops(plan.job.model.parameters):.2g} floating-point operations)."
    ]
    if rates is None:
        return [*lines, NO_PROBE]
    seconds = rates.seconds(work, plan.processes)
    parts = ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
    measured = (
        f"{rates.forward:.0f} read, {rates.sampling:.0f} sampled, {rates.learning:.0f} learned"
    )
    return [
        *lines,
        f"Time of an RL iteration, at most: {sum(seconds.values()):.1f} s ({parts}), at the rates "
        f"measured on {rates.device}: {measured} tokens/s each.",
    ]


def as_data(plan: Plan, rates: Rates | None) -> dict[str, Any]:
    """The whole plan as plain data; bytes."""
    job, work = plan.job, iteration_work(plan.job)
    seconds = rates.seconds(work, plan.processes) if rates else None
    return {
        "model": job.model.name,
        "parameters": job.model.parameters,
        "learned_parameters": job.weights.learned,
        "processes": plan.processes,
        "gpu_memory": plan.gpu_memory,
        "stages": {
            stage: {strategy: _budget(budget) for strategy, budget in budgets.items()}
            for stage, budgets in plan.budgets.items()
        },
        "fits": {strategy: plan.fits(strategy) for strategy in STRATEGIES},
        "changes": [] if any(map(plan.fits, strategies(plan))) else changes(plan),
        "tokens_per_iteration": vars(work) | {"flops": work.flops(job.model.parameters)},
        "seconds_per_iteration": seconds,
        "probe": vars(rates) if rates else None,
    }


def readable(size: float) -> str:
    """Bytes in GiB, or in MiB below one."""
    if size == 0:
        return "–"
    if size < 2**19:
        return "< 1 MiB"
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.0f} MiB"


def strategies(plan: Plan) -> tuple[Strategy, ...]:
    """Those worth telling apart: one process has nothing to divide, but can offload."""
    if plan.processes > 1:
        return STRATEGIES
    return ("ddp", "offload") if plan.job.on_gpu else ("ddp",)


def _head(plan: Plan, strategy: Strategy) -> str:
    return _ALONE if strategy == "ddp" and plan.processes == 1 else _HEADS[strategy]


def _budget(budget: Budget) -> dict[str, Any]:
    return {
        "peak": budget.peak,
        "phase": budget.busiest,
        "components": budget.components,
        "host": budget.host,
    }
