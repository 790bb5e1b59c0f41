"""``aac plan``: memory and time, before a run."""

from __future__ import annotations

from typing import Annotated

import typer

from aacli.command import command, emit
from aacli.options import RecipeOptions, RecipePath
from stages.common.console import say, show
from stages.common.errors import UsageError

Processes = Annotated[int, typer.Option(min=1, help="Devices, one process each.")]
GpuMemory = Annotated[float, typer.Option(min=0.1, metavar="GIB", help="Memory of one device.")]
ModelSize = Annotated[
    str | None,
    typer.Option(
        metavar="0.5B|1.5B|3B|7B|13B|14B|32B|70B",
        help="Plan for a model of this size, from its config alone.",
        show_default="the recipe's model.actor",
    ),
]
Cpu = Annotated[bool, typer.Option("--cpu", help="Plan for training on CPUs, in float32.")]
Probe = Annotated[
    bool, typer.Option("--probe", help="Measure the model's speed here (some seconds).")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "plan", example="aac plan recipes/quickstart.yaml --processes 8 --model-size 7B")(
        plan
    )


def plan(
    recipe: RecipePath,
    options: RecipeOptions,
    processes: Processes = 1,
    gpu_memory: GpuMemory = 80.0,
    model_size: ModelSize = None,
    cpu: Cpu = False,
    probe: Probe = False,
) -> None:
    """What a recipe needs on each device under DDP, ZeRO-2, ZeRO-3 and offload, and what fits.

    No weights are loaded without --probe; GPUs need not be here.
    """
    if probe and model_size:
        raise UsageError("--probe measures the recipe's own model; leave --model-size out.")
    from stages.memory import tables
    from stages.memory.architecture import architecture_of, named
    from stages.memory.plan import GIB, job_of, make_plan

    loaded = options.load(recipe)
    model = named(model_size) if model_size else architecture_of(loaded.model.actor)
    job = job_of(loaded, model, on_gpu=not cpu)
    made = make_plan(job, processes=processes, gpu_memory=gpu_memory * GIB)
    rates = None
    if probe:
        from stages.memory.probe import probe as measure

        rates = measure(loaded.model.actor, job, dtype=loaded.model.dtype)
    if options.json:
        emit(tables.as_data(made, rates))
        return
    say(f"{model.name}: {model.parameters:,} weights, of which {job.weights.learned:,} learn")
    show(tables.component_table(made, "rl"))
    show(tables.peak_table(made))
    for line in tables.verdict(made) + tables.time_lines(made, rates):
        show(line)
