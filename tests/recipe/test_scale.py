"""Recipes for real use: they fit the hardware their header names, and a dry run passes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aacli.app import app
from stages.memory.architecture import architecture_of
from stages.memory.plan import GIB, job_of, make_plan
from stages.recipe.load import load_recipe
from tests.tiny_models import tiny_qwen3

ROOT = Path(__file__).parents[2]
SCALE = sorted((ROOT / "recipes/scale").glob("*.yaml"))


def header(path: Path, word: str) -> str:
    """What the header says under a word, its further lines included."""
    text = re.sub(r"\n# {6,}", " ", path.read_text())
    found = re.search(rf"^# {word}: +(.+)$", text, re.MULTILINE)
    assert found
    return found.group(1)


@pytest.mark.parametrize("path", SCALE, ids=lambda p: p.stem)
def test_it_fits_the_hardware_of_its_header(path: Path):
    hardware, launch = header(path, "Hardware"), shlex.split(header(path, "Launch"))
    assert "Not yet run on a GPU." in hardware
    said = float(re.search(r"aac plan: (\d+) GiB", hardware).group(1))
    memory = float(re.search(r"of (\d+) GiB", hardware).group(1))
    processes = int(launch[launch.index("--processes") + 1]) if "--processes" in launch else 1
    strategy = launch[launch.index("--launch") + 1] if "--launch" in launch else "ddp"
    recipe = load_recipe(path)
    job = job_of(recipe, architecture_of(recipe.model.actor), on_gpu=True)
    plan = make_plan(job, processes=processes, gpu_memory=memory * GIB)
    assert plan.fits(strategy)
    assert round(plan.peak(strategy) / GIB) == said


@pytest.mark.parametrize("path", SCALE, ids=lambda p: p.stem)
def test_a_dry_run_passes_on_a_small_model(path: Path, tmp_path: Path):
    actor = tiny_qwen3(tmp_path / "actor", max_position_embeddings=4096)
    changes = [f"model.actor={actor}", "sft.demonstrations=8", "rl.critic.trunk=light"]
    changes += ["reward.base=sft", "state.max_tokens=2048"]
    words: list[Any] = ["run", path, "--dry-run", "--output-dir", tmp_path / "run"]
    result = CliRunner().invoke(
        app, [str(w) for w in [*words, *(w for c in changes for w in ("--set", c))]]
    )
    assert result.exit_code == 0, result.stderr
    assert "sft: in order" in result.stdout and not (tmp_path / "run").exists()
