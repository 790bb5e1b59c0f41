"""Running the jobs of a study, here or in several processes; a failure stops only what needs it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol, TypeVar

from stages.common.console import hushed
from stages.common.errors import AacError, RunError, UsageError
from stages.common.libraries import quiet_libraries
from stages.common.run_folder import RunRequest, is_finished
from stages.common.seeding import set_threads
from stages.evaluation.run import held_out, measure_actor
from stages.evaluation.store import Figures, FigureStore, identity
from stages.pipeline import measured_under, stage_function, trained_player
from stages.study.plan import Job
from stages.study.watching import Watched, watch


class Task(Protocol):
    """What ``execute`` knows of a job: its folder, and those of the jobs it waits for."""

    @property
    def folder(self) -> Path:
        """Names the job."""
        ...

    @property
    def parents(self) -> Mapping[str, Path]:
        """Folders that must be done before; those that no job makes are there already."""
        ...


AnyTask = TypeVar("AnyTask", bound=Task)


@dataclass(frozen=True)
class Performer:
    """Runs one job; it can be sent to another process."""

    overwrite: bool = False
    resume: str = "auto"
    workers: int = 1

    def __call__(self, job: Job) -> float:
        """Run the stage unless it is finished, measure an RL actor, or play one that is watched;
        returns the seconds it took."""
        start = time.perf_counter()
        threads = threads_each(job.recipe.threads, self.workers, os.cpu_count() or 1)
        recipe = job.recipe.model_copy(update={"threads": threads})
        with hushed(), quiet_libraries(None):
            if isinstance(job, Watched):
                set_threads(threads)
                watch(job, anew=self.overwrite)
                return time.perf_counter() - start
            if self.overwrite or not is_finished(job.folder):
                request = RunRequest(
                    job.folder, self.overwrite, self.resume, quiet=True, parents=job.handed
                )
                stage_function(job.stage)(recipe, request)
            if job.stage == "rl":
                set_threads(threads)
                evaluation(job, measure=True, anew=self.overwrite)
        return time.perf_counter() - start


def evaluation(job: Job, *, measure: bool = False, anew: bool = False) -> Figures | None:
    """Sampled held-out figures of an RL job's actor, kept beside its folder; None where they have
    not been measured and are not to be.
    """
    store = FigureStore(job.folder.parent / "evaluations", anew=anew)
    folder = str(job.folder)
    under = measured_under(job.recipe, [identity(folder), "sampled"])

    def figures() -> Figures:
        actor = trained_player(job.recipe, folder)
        return measure_actor(held_out(job.recipe), actor, greedy=False)

    return store.get("rl-sampled", under, figures) if measure else store.known("rl-sampled", under)


def all_finished(job: Job) -> bool:
    """Whether all that a job stands on is there."""
    return all(map(is_finished, job.parents.values()))


def rehearse(job: Job) -> None:
    """Let a job's stage check its input; nothing is trained or written. Raises UsageError."""
    request = RunRequest(job.folder, dry_run=True, overwrite=True, parents=job.handed)
    try:
        with hushed(), quiet_libraries(None):
            stage_function(job.stage)(job.recipe, request)
    except UsageError as error:
        raise UsageError(f"{job.label}: {error}") from None


def threads_each(asked: int | None, workers: int, cores: int) -> int | None:
    """CPU threads of each of several processes: together no more than there are cores."""
    if workers == 1:
        return asked
    share = max(1, cores // workers)
    return min(asked or share, share)


def time_left(took: Sequence[tuple[str, float]], left: Sequence[str], workers: int) -> float | None:
    """Seconds until all jobs are done, from the stages and seconds of those that are.

    A stage that has not been seen counts as the mean of all. None while nothing is known.
    """
    if not took:
        return None
    overall = fmean(seconds for _, seconds in took)
    seen = {stage: [s for name, s in took if name == stage] for stage in {n for n, _ in took}}
    expected = [fmean(seen[stage]) if stage in seen else overall for stage in left]
    # However many processes there are, the longest job has to be waited for.
    return max(sum(expected) / workers, max(expected, default=0.0))


def execute(
    tasks: Sequence[AnyTask],
    perform: Callable[[AnyTask], float],
    *,
    workers: int,
    tell: Callable[[AnyTask, float], None],
) -> dict[Path, str]:
    """Perform all tasks, each after those it needs, as many at once as there are ``workers``.

    ``tell`` hears of each that is done, with the seconds it took. Returns why tasks failed, by
    their folders; what needs a failed one is not tried and says so. An interrupt ends all.
    """
    waiting, failed = list(tasks), dict[Path, str]()
    with _executor(workers) as executor:
        running: dict[Future[float], AnyTask] = {}
        while waiting or running:
            unfinished = {task.folder for task in (*waiting, *running.values())}
            for task in list(waiting):
                needs = set(task.parents.values())
                if lost := needs & failed.keys():
                    failed[task.folder] = f"needs {min(lost)}, which failed"
                    waiting.remove(task)
                elif not needs & unfinished and len(running) < workers:
                    running[executor.submit(perform, task)] = task
                    waiting.remove(task)
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task = running.pop(future)
                try:
                    tell(task, future.result())
                except Exception as error:
                    failed[task.folder] = _reason(error)
    return failed


def _reason(error: Exception) -> str:
    if isinstance(error, BrokenExecutor):
        raise RunError(
            "a worker process died (out of memory?); run the same command again, it goes on where "
            "it stopped, with fewer --jobs if need be."
        ) from None
    first_line = (str(error).strip() or "no message").splitlines()[0]
    return first_line if isinstance(error, AacError) else f"{type(error).__name__}: {first_line}"


@contextmanager
def _executor(workers: int) -> Iterator[Executor]:
    """This process for one worker, else as many others, which an error or interrupt ends."""
    if workers == 1:
        yield _Here()
        return
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_leave_interrupts) as pool:
        try:
            yield pool
        except BaseException:
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
            pool.shutdown(cancel_futures=True)
            raise


class _Here(Executor):
    """Performs what is submitted at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future that is done already. An interrupt is raised here."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def _leave_interrupts() -> None:
    """An interrupt is for the process that a person started; it ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
