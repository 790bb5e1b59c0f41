"""Is ``aac plan`` right? Real stages of this project against their plan (``make plan-check``).

Random Llamas on a CPU in float32. The plan's few constants were chosen on the sizes in ``TRIED``;
those in ``HELD_OUT`` had no part in it. Two processes share the work by torch's DDP. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stages.memory.architecture import Architecture, architecture_of
from stages.memory.measure import Run, apart, measured
from stages.memory.plan import job_of, make_plan
from stages.recipe.load import load_recipe

BASE = Path(__file__).parents[2] / "recipes" / "base"
"""Its tokenizer is the random models'."""
MIB = 2**20
TOLERANCE = 0.2


@dataclass(frozen=True)
class Trial:
    """One run to measure."""

    model: Architecture
    stage: str
    processes: int = 1
    sft_batch: int = 4
    length: int = 256


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    size: str
    stage: str
    processes: int
    parameters: int
    planned_mib: float
    measured_mib: float

    @property
    def error(self) -> float:
        """Planned over measured, less 1."""
        return self.planned_mib / self.measured_mib - 1


def _llama(name: str, *shape: int) -> Architecture:
    hidden, layers, heads, intermediate, vocabulary = shape
    return Architecture(name, hidden, layers, heads, heads, intermediate, vocabulary)


TRIED = (
    _llama("12M", 256, 8, 8, 1024, 4000),
    _llama("33M", 512, 8, 8, 1408, 8000),
)
HELD_OUT = (
    _llama("22M", 384, 10, 6, 1024, 6000),
    _llama("65M", 640, 10, 10, 1728, 12000),
)


def trials(models: tuple[Architecture, ...]) -> Iterator[Trial]:
    """SFT and RL on one and two processes."""
    for model in models:
        for stage in ("sft", "rl"):
            for processes in (1, 2):
                yield Trial(model, stage, processes)


def recipe_content(trial: Trial, actor: Path, data: Path) -> dict[str, Any]:
    """A recipe whose rows are as long as it allows, so that the plan's bounds are met."""
    return {
        "name": "plan-check",
        "threads": 1,
        "model": {"actor": str(actor), "dtype": "float32"},
        "environment": {"name": "sql", "max_turns": 4},
        "state": {"exchanges": 12, "max_tokens": trial.length, "tool_prompt": "none"},
        "sft": {
            "data": str(data),
            "steps": 2,
            "batch_size": trial.sft_batch,
            "max_length": trial.length,
            "validation_fraction": 0,
        },
        "rl": {
            "iterations": 1,
            "episodes": 16,
            "evaluation_episodes": 1,
            "actor": {"max_new_tokens": 48},
            "critic": {"steps": 2, "batch_size": 2, "warm_up": {"max_iterations": 0}},
            "ppo": {"epochs": 1, "minibatch_episodes": 8, "microbatch_tokens": 4 * trial.length},
            "rewards": {"reward_model": 0},
        },
    }


def write_recipe(trial: Trial, actor: Path, file: Path) -> Path:
    """The recipe and, beside it, dialogues that are longer than its rows may be."""
    words = "orders by status " * trial.length
    history = [[f"{words} {n}", "done"] for n in range(2)]
    rows = [{"instruction": f"say {n}", "history": history, "reply": "done"} for n in range(16)]
    data = file.with_suffix(".jsonl")
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    file.write_text(json.dumps(recipe_content(trial, actor, data)), "utf-8")
    return file


def compare(trial: Trial, folder: Path) -> Row:
    """Measure one trial and plan it."""
    actor = apart(make_model, trial.model, folder / "actor")
    recipe, parents = write_recipe(trial, actor, folder / "recipe.yaml"), {}
    if trial.stage == "rl":
        quick = write_recipe(replace(trial, sft_batch=1, length=64), actor, folder / "quick.yaml")
        measured(Run("sft", quick, folder / "sft", {}))
        parents = {"sft": folder / "sft" / "rank-0"}
    peak = measured(Run(trial.stage, recipe, folder / "out", parents), processes=trial.processes)
    model = architecture_of(str(actor))
    job = job_of(load_recipe(recipe), model, on_gpu=False)
    plan = make_plan(job, processes=trial.processes, gpu_memory=1.0)
    planned = plan.budgets[trial.stage]["ddp"].peak
    name, size = trial.model.name, model.parameters
    return Row(name, trial.stage, trial.processes, size, planned / MIB, peak / MIB)


def make_model(model: Architecture, folder: Path) -> Path:
    """A Llama of this shape with random weights, and the shipped base model's tokenizer."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    config = LlamaConfig(
        vocab_size=model.vocabulary,
        hidden_size=model.hidden,
        intermediate_size=model.intermediate,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        max_position_embeddings=4096,
        tie_word_embeddings=model.tied,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(BASE).save_pretrained(folder)
    return folder


def main() -> int:
    """Print the table; 1 if a held-out size is off by more than ``TOLERANCE``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tried", action="store_true", help="the sizes the plan was made on")
    parser.add_argument("--only", metavar="SIZE", help="one of the sizes, such as 22M")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    given = parser.parse_args()
    if not Path("/proc/self/status").is_file():
        print("the plan check reads Linux's /proc, which is not here; nothing was measured.")
        return 2
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    worst = 0.0
    if not given.json:
        print("| size | weights | stage | processes | planned | measured | off by |")
        print("|---|---|---|---|---|---|---|")
    models = TRIED if given.tried else HELD_OUT
    for trial in trials(tuple(m for m in models if given.only in (None, m.name))):
        with TemporaryDirectory() as folder:
            row = compare(trial, Path(folder))
        worst = max(worst, abs(row.error))
        print(json.dumps(asdict(row)) if given.json else _line(row), flush=True)
    return int(worst > TOLERANCE)


def _line(row: Row) -> str:
    return (
        f"| {row.size} | {row.parameters / 1e6:.1f} M | {row.stage} | {row.processes} | "
        f"{row.planned_mib:.0f} MiB | {row.measured_mib:.0f} MiB | {row.error:+.0%} |"
    )


if __name__ == "__main__":
    raise SystemExit(main())
