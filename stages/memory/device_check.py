"""What has not been run on a GPU yet, run on the first one there is (``make device-check``).

One GPU, at most eight minutes: bf16 and nccl, a random actor of about 1B through one update of
every stage, the plan against the measured peak, and vLLM where it is installed. Prints a table to
paste. Without CUDA it says so in one sentence.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stages.common.errors import AacError
from stages.memory.architecture import Architecture
from stages.memory.check import make_model
from stages.memory.measure import Run, apart, measured
from stages.memory.plan import GIB, job_of, make_plan
from stages.recipe.load import load_recipe

ACTOR = Architecture("1B", 2048, 18, 16, 16, 5632, 32000)
SKIPPED = "device check skipped: torch sees no CUDA GPU here; run it again on a machine with one."
_BUDGET_S = 480.0


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    what: str
    result: str
    seconds: float


def lines(actor: Architecture, folder: Path) -> Iterator[Line]:
    """All checks in turn; one that fails says why and the next goes on."""
    started = time.perf_counter()
    yield timed("bf16 and nccl", partial(apart, bf16_and_nccl))
    made = apart(make_model, actor, folder / "actor")
    recipe = write_recipe(made, folder)
    parents: dict[str, Path] = {}
    for stage in ("sft", "reward", "rl"):
        if time.perf_counter() - started > _BUDGET_S:
            yield Line(stage, f"left out: {_BUDGET_S:.0f} s are over", 0.0)
            continue
        run = Run(stage, recipe, folder / stage, dict(parents))
        yield timed(f"{stage}, one update", partial(against_plan, run, actor))
        parents[stage] = folder / stage / "rank-0"
    yield timed("vLLM", partial(apart, sampled_by_vllm, made))
    again = Run("rl", recipe, folder / "vllm", dict(parents))
    yield timed("rl, played by vLLM", partial(played_by_vllm, again))


def timed(what: str, check: Callable[[], str]) -> Line:
    """A check's own words, or its error's."""
    started = time.perf_counter()
    try:
        result = check()
    except AacError as error:
        result = f"FAILED: {error}"
    except Exception as error:  # whatever a first run on a device brings to light belongs here
        result = f"FAILED: {type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}"
    return Line(what, result, time.perf_counter() - started)


def against_plan(run: Run, actor: Architecture) -> str:
    """Run a stage; its peak beside the plan's."""
    import torch

    job = job_of(load_recipe(run.recipe), actor, on_gpu=torch.cuda.is_available())
    planned = make_plan(job, processes=1, gpu_memory=GIB).budgets[run.stage]["ddp"].peak
    peak = measured(run)
    off = planned / peak - 1
    return f"peak {peak / GIB:.2f} GiB, planned {planned / GIB:.2f} GiB ({off:+.0%})"


def bf16_and_nccl() -> str:
    """A matrix product in bf16 near the float32 one, and a sum over a group of one process."""
    import torch
    from torch import distributed

    a, b = torch.randn(2, 512, 512, device="cuda")
    difference = ((a.bfloat16() @ b.bfloat16()).float() - a @ b).abs().max() / (a @ b).abs().max()
    store = distributed.HashStore()
    distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    total = torch.ones(4, device="cuda")
    distributed.all_reduce(total)
    distributed.destroy_process_group()
    if float(difference) > 0.02 or float(total.sum()) != 4.0:
        raise AacError(f"bf16 is off by {float(difference):.1%}, nccl sums to {float(total.sum())}")
    return f"{torch.cuda.get_device_name()}: bf16 within {float(difference):.2%}, nccl sums"


def sampled_by_vllm(folder: Path) -> str:
    """A few tokens from the folder that ``save_pretrained`` wrote."""
    if find_spec("vllm") is None:
        return "not installed"
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found, unused-ignore]

    engine = LLM(str(folder), gpu_memory_utilization=0.3, max_model_len=512, enforce_eager=True)
    (reply,) = engine.generate(["orders by status"], SamplingParams(max_tokens=16))
    return f"loads the actor and samples {len(reply.outputs[0].token_ids)} tokens"


def played_by_vllm(run: Run) -> str:
    """The rl stage with vLLM as its engine: how far what it samples by is from the actor."""
    if find_spec("vllm") is None:
        return "not installed"
    content = json.loads(run.recipe.read_text("utf-8"))
    content["rl"]["generation"] = {"engine": "vllm", "vllm": {"max_model_length": 1024}}
    recipe = run.recipe.with_name("vllm.yaml")
    recipe.write_text(json.dumps(content), "utf-8")
    measured(replace(run, recipe=recipe))
    metrics = run.output / "rank-0" / "metrics.jsonl"
    row = json.loads(metrics.read_text("utf-8").splitlines()[0])
    gap, size = row["sampling/logprob_gap"], row["sampling/effective_size"]
    return f"log-probs {gap:.4f} apart, effective size {size:.1%}"


def write_recipe(actor: Path, folder: Path) -> Path:
    """One update of every stage, rows of 1024 tokens."""
    file = folder / "recipe.yaml"
    file.write_text(json.dumps(recipe_content(actor, *_data(folder))), "utf-8")
    return file


def _data(folder: Path) -> tuple[Path, Path]:
    """Dialogues and preferences longer than the rows."""
    words = "orders by status " * 512
    dialogues, pairs = folder / "dialogues.jsonl", folder / "pairs.jsonl"
    history = [[f"{words} {n}", "done"] for n in range(2)]
    rows = [{"instruction": f"say {n}", "history": history, "reply": "done"} for n in range(16)]
    dialogues.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    better = [
        {"prompt": f"{words} {n}?", "chosen": "there are 12", "rejected": "no orders"}
        for n in range(16)
    ]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in better), "utf-8")
    return dialogues, pairs


def recipe_content(actor: Path, dialogues: Path, pairs: Path) -> dict[str, Any]:
    """As plain data."""
    return {
        "name": "device-check",
        "model": {"actor": str(actor)},
        "environment": {"name": "sql", "max_turns": 4},
        "state": {"max_tokens": 512, "tool_prompt": "none"},
        "sft": {"data": str(dialogues), "steps": 2, "batch_size": 4, "validation_fraction": 0},
        "reward": {"data": str(pairs), "batch_size": 2, "held_out_fraction": 0.3},
        "rl": {
            "iterations": 1,
            "episodes": 16,
            "evaluation_episodes": 2,
            "actor": {"max_new_tokens": 64},
            "critic": {"steps": 4, "batch_size": 8, "warm_up": {"max_iterations": 0}},
            "ppo": {"epochs": 1, "minibatch_episodes": 8, "microbatch_tokens": 4096},
        },
    }


def main() -> int:
    """Print the table; 1 if a check failed."""
    import torch

    if not torch.cuda.is_available():
        print(SKIPPED)
        return 0
    print("| check | result | seconds |\n|---|---|---|")
    failed = False
    with TemporaryDirectory() as folder:
        for line in lines(ACTOR, Path(folder)):
            failed |= line.result.startswith("FAILED")
            print(f"| {line.what} | {line.result} | {line.seconds:.0f} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
