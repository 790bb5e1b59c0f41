"""Peak memory of one real stage, measured in fresh processes.

A server process imports the libraries once and forks a process for every rank of every measurement,
so that neither imports nor what ran before is counted. On a CPU (Linux) it is resident memory above
that of the fresh process, on a GPU what torch allocated.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from stages.common.errors import RunError
from stages.common.run_folder import RunRequest

T = TypeVar("T")
_LIBRARIES = [
    "datasets", "deepspeed", "trl", "stages.sft.trainer", "stages.reward.trainer",
    "stages.rl.session", "stages.pipeline",
]  # fmt: skip
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
# glibc keeps freed blocks below its threshold, and raises that to 32 MiB as it goes: what is
# measured then is its habits, not what the run needs. Read when the server starts.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "262144"}


@dataclass(frozen=True)
class Run:
    """A stage to run."""

    stage: str
    recipe: Path
    output: Path
    parents: Mapping[str, Path]

    @property
    def together(self) -> Run:
        """All ranks in one folder, which the first one fills."""
        return Run(self.stage, self.recipe, self.output / "rank-0", self.parents)


def measured(run: Run, *, processes: int = 1) -> float:
    """Peak bytes of the largest rank; its folder is ``output/rank-0``. RunError if it fails."""
    port = _free_port()
    with _fresh(processes) as pool:
        ranks = [
            pool.submit(_measure, run.together, _variables(rank, processes, port))
            for rank in range(processes)
        ]
        return max(_result(rank, run.stage) for rank in ranks)


def apart(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a fresh process."""
    with _fresh(1) as pool:
        return pool.submit(function, *arguments).result()


@dataclass(frozen=True)
class Resident:
    """Bytes of this process, as Linux counts them."""

    now: float
    most: float
    """Since the start, or since ``count_anew``."""
    files: float
    """Of ``now``: pages of files, such as the libraries' code."""

    @classmethod
    def read(cls) -> Resident:
        """As it is now."""
        lines = (line.split() for line in _STATUS.read_text().splitlines())
        found = {words[0]: int(words[1]) * 1024.0 for words in lines if words[-1] == "kB"}
        return cls(found["VmRSS:"], found["VmHWM:"], found["RssFile:"])

    @classmethod
    def count_anew(cls) -> Resident:
        """As it is now; from here on ``most`` starts anew."""
        _RESET.write_text("5")
        return cls.read()

    def peak_until(self, later: Resident) -> float:
        """What was taken at most since then; code that was read in meanwhile is not counted."""
        return later.most - self.now - max(later.files - self.files, 0.0)


def _fresh(processes: int) -> ProcessPoolExecutor:
    context = get_context("forkserver")
    context.set_forkserver_preload(_LIBRARIES)
    os.environ.update(_MALLOC)
    return ProcessPoolExecutor(processes, context, max_tasks_per_child=1)


def _variables(rank: int, processes: int, port: int) -> dict[str, str]:
    """What torch tells its processes by."""
    if processes == 1:
        return {}
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_PORT": port}
    return {name: str(n) for name, n in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}


def _measure(run: Run, variables: Mapping[str, str]) -> float:
    """Runs in the fresh process."""
    os.environ.update(variables)
    import torch

    from stages.common import console
    from stages.pipeline import stage_function
    from stages.recipe.load import load_recipe

    console.configure(quiet=True)
    recipe, request = load_recipe(run.recipe), RunRequest(run.output, parents=run.parents)
    stage = stage_function(run.stage)
    if torch.cuda.is_available():
        stage(recipe, request)
        return float(torch.cuda.max_memory_allocated())
    before = Resident.count_anew()
    stage(recipe, request)
    return before.peak_until(Resident.read())


def _result(rank: Future[float], stage: str) -> float:
    try:
        return rank.result()
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RunError(f"the measured {stage} run failed: {first}") from error


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
