"""``aac run``: the three stages and their evaluations in order, each done once.

The root folder holds ``sft/``, ``reward/``, ``rl/``, ``evaluations/`` (figures by the hash of what
was measured), ``readiness.json`` and ``summary.json``. What is there already is not done again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from stages.common.console import say, show, warn, within
from stages.common.errors import HandoffError, UsageError
from stages.common.files import read_json, write_json
from stages.common.lock import locked
from stages.common.manifest import Manifest, read_manifest, verify_parent
from stages.common.run_folder import RunRequest, check_place, is_finished, replaced
from stages.common.seeding import set_threads
from stages.common.trackers import check_trackers
from stages.evaluation.held_out import HeldOut
from stages.evaluation.run import (
    held_out,
    measure_actor,
    measure_policy,
    player,
    readiness_check,
)
from stages.evaluation.store import Figures, FigureStore, identity
from stages.evaluation.supervise import Supervision, supervised
from stages.evaluation.tables import BASELINES, groups_table, percent, pipeline_table
from stages.interaction.player import LoadedActor
from stages.recipe.models import ActorSection, Recipe
from stages.rl.run import load_reviewer, load_supervisor, review_demonstrations

PARENTS: Mapping[str, tuple[str, ...]] = {"sft": (), "reward": ("sft",), "rl": ("sft", "reward")}
"""Stages in their order, and the stages each is built on."""
FOOLS = ("null", "random", "most_frequent")
ANEW = ".overwrite.json"
"""Stages that ``--overwrite`` has still to do anew."""
SECTIONS = {
    "sft": ("seed", "model", "environment", "state", "sft"),
    "reward": ("seed", "model", "environment", "state", "reward"),
    "rl": ("seed", "model", "environment", "state", "rl"),
}
"""Parts of a recipe that a finished stage depends on."""


def stage_function(name: str) -> Callable[[Recipe, RunRequest], Figures]:
    """``run`` of a stage, imported when it is first needed.

    Stages do not know each other: here SFT is handed what RL's kind of critic says of turns.
    """
    stage = import_module(f"stages.{name}.run").run
    return partial(stage, reviews=review_demonstrations) if name == "sft" else stage


def trained_player(
    recipe: Recipe, folder: str, sampling: ActorSection | None = None
) -> LoadedActor:
    """The actor of a run's folder as it is to be played: with its critic, where it is reviewed.

    ``sampling``: how it samples, by default as in evaluations.
    """
    return player(recipe, folder, load_reviewer, sampling=sampling)


def supervised_player(recipe: Recipe, folder: str, wish: Supervision | None) -> LoadedActor:
    """The same under supervision; None: alone. UsageError for a supervisor that cannot do it."""
    actor = trained_player(recipe, folder)
    return actor if wish is None else supervised(actor, wish, load_supervisor)


StageRunner = Callable[[str, Recipe, RunRequest], Figures]
"""(stage, recipe, request) -> the stage's summary."""


def run_here(name: str, recipe: Recipe, request: RunRequest) -> Figures:
    """A stage in this process."""
    return stage_function(name)(recipe, request)


def run(recipe: Recipe, request: RunRequest, run_stage: StageRunner = run_here) -> Figures:
    """SFT, reward model and RL with evaluations between them; returns the content of
    ``summary.json``. With ``overwrite`` everything is done anew. ``run_stage`` may start a stage
    in other processes; evaluations are made in this one.

    Raises HandoffError where a finished stage was built on something else than lies there now.
    """
    _check_root(request)
    check_trackers(recipe.tracking.report_to)
    pipeline = Pipeline(recipe, request, run_stage)
    if request.dry_run:
        return pipeline.dry_run()
    request.output_dir.mkdir(parents=True, exist_ok=True)
    with locked(request.output_dir):
        set_threads(recipe.threads)
        pipeline.begin()
        pipeline.baselines()
        pipeline.stage("sft")
        pipeline.evaluate("sft")
        if "reward" in pipeline.stages:
            pipeline.stage("reward")
        if recipe.evaluation.readiness:
            pipeline.readiness()
        pipeline.stage("rl")
        pipeline.evaluate("rl")
        return pipeline.finish()


class Pipeline:
    """One run of all stages: knows what is done, does what is not, and keeps the summary."""

    def __init__(
        self, recipe: Recipe, request: RunRequest, run_stage: StageRunner = run_here
    ) -> None:
        self.recipe, self.request, self.root = recipe, request, request.output_dir
        self._run_stage = run_stage
        reward_used = recipe.rl.rewards.reward_model > 0
        self.stages = [name for name in PARENTS if name != "reward" or reward_used]
        self.summary: Figures = {"recipe": recipe.name, "seed": recipe.seed, "seconds": 0.0}
        self.summary |= {"stages": {}, "baselines": {}}
        self._before: Figures = self._summary_before()
        self._store = FigureStore(self.root / "evaluations", anew=request.overwrite)
        self._start = time.perf_counter()
        self._seconds_saved = 0.0
        """What the stages that are not run again took when they ran."""
        self._loaded: tuple[tuple[str, ActorSection], LoadedActor] | None = None
        self._anew = self._to_be_done_anew()

    @cached_property
    def tasks(self) -> HeldOut:
        """The held-out tasks, the same for everyone."""
        return held_out(self.recipe)

    def dry_run(self) -> Figures:
        """Let every stage whose parents exist check its input; nothing is trained or written."""
        for name in self.stages:
            parents = self._parents(name)
            if self._is_done(name):
                self._check_finished(name)
            elif all(map(is_finished, parents.values())):
                stage_function(name)(self.recipe, self._stage_request(name))
            else:
                verb = "is" if len(parents) == 1 else "are"
                show(f"{name}: to be checked once {' and '.join(parents)} {verb} finished")
                continue
            show(f"{name}: in order")
        return {}

    def begin(self) -> None:
        """Note which stages are to be done anew, so that an interrupted run knows it, too."""
        self._save_anew()

    def stage(self, name: str) -> None:
        """Run a stage, unless it is finished and still fits what it was built on."""
        if self._is_done(name):
            self._check_finished(name)
            say(f"{name}: finished before")
            figures = dict(read_json(self.root / name / "summary.json"))
            figures["seconds"] = self._seconds_before(name, figures)
            self._seconds_saved += figures["seconds"]
        else:
            where = f"stage {self.stages.index(name) + 1} of {len(self.stages)}"
            say(f"{name}: starts ({where})")
            start = time.perf_counter()
            with within(where):
                figures = self._run_stage(name, self.recipe, self._stage_request(name))
            figures = dict(figures) | {"seconds": round(time.perf_counter() - start, 1)}
            self._anew.discard(name)
            self._save_anew()
        self.summary["stages"][name] = figures
        self._save()

    def baselines(self) -> None:
        """The untrained actor and scripted policies, so that the figures can be judged."""
        self.summary["baselines"]["base"] = self._both("base", self.recipe.model.actor)
        say(f"base, zero-shot: {_told(self.summary['baselines']['base'])}")
        for name in FOOLS:
            try:
                row = self._stored(name, [name], partial(self._fool, name))
                self.summary["baselines"][name] = _short({"sampled": row})
            except UsageError as error:
                warn(f"the {name} policy was not played: {error}")
        self._save()

    def evaluate(self, name: str) -> None:
        """Measure a stage's actor, sampled and greedy."""
        self.summary["stages"][name] |= self._both(name, str(self.root / name))
        say(f"{name}: {_told(self.summary['stages'][name])}")
        self._save()

    def readiness(self) -> None:
        """What RL can learn from this SFT actor (B9), in figures and one sentence."""
        folder = str(self.root / "sft")
        report = self._stored(
            "readiness",
            [identity(folder)],
            lambda: readiness_check(self.recipe, self._player(folder, self.recipe.rl.actor)),
        )
        self.summary["readiness"] = report
        write_json(self.root / "readiness.json", report)
        show(report["advice"])
        self._save()

    def finish(self) -> Figures:
        """Write the summary and show it as tables."""
        self._save()
        show(pipeline_table(self.summary))
        stages = {n: self.summary["stages"][n]["sampled"] for n in ("sft", "rl")}
        base = self.summary["baselines"]["base"]["sampled"]
        show(groups_table({"base": base, **stages}))
        return self.summary

    def _both(self, name: str, folder: str) -> Figures:
        """Sampled and greedy figures of an actor."""
        measured = {}
        for how in ("sampled", "greedy"):
            measured[how] = self._stored(
                f"{name}-{how}",
                [identity(folder), how],
                partial(self._actor, folder, f"{name}, {how}", greedy=how == "greedy"),
            )
        return _short(measured)

    def _actor(self, folder: str, label: str, *, greedy: bool) -> Figures:
        loaded = self._player(folder, self.recipe.evaluation_sampling)
        return measure_actor(replace(self.tasks, label=label), loaded, greedy=greedy)

    def _fool(self, name: str) -> Figures:
        return measure_policy(replace(self.tasks, label=BASELINES[name]), name)

    def _player(self, folder: str, sampling: ActorSection) -> LoadedActor:
        """The actor of a folder, sampling so; the last one stays loaded."""
        if self._loaded is None or self._loaded[0] != (folder, sampling):
            self._loaded = None  # not two models at once
            actor = trained_player(self.recipe, folder, sampling)
            self._loaded = ((folder, sampling), actor)
        return self._loaded[1]

    def _stored(self, name: str, who: list[Any], measure: Callable[[], Figures]) -> Figures:
        """Figures under this recipe, from an earlier run if nothing they depend on has changed."""
        return self._store.get(name, measured_under(self.recipe, who), measure)

    def _save(self) -> None:
        saved = self._seconds_saved + self._store.seconds_saved
        self.summary["seconds"] = round(saved + time.perf_counter() - self._start, 1)
        write_json(self.root / "summary.json", self.summary)

    def _is_done(self, name: str) -> bool:
        return is_finished(self.root / name) and name not in self._anew

    def _to_be_done_anew(self) -> set[str]:
        """All stages under ``overwrite``; else those that an interrupted run left to be redone.

        A stage whose old folder waits aside has begun anew: it goes on like any other.
        """
        if self.request.overwrite:
            return set(self.stages)
        if not (self.root / ANEW).is_file():
            return set()
        left = set(read_json(self.root / ANEW))
        return {name for name in left if not replaced(self.root / name).exists()}

    def _save_anew(self) -> None:
        """Stages that have no folder yet cannot be mistaken for new ones."""
        left = sorted(name for name in self._anew if (self.root / name).exists())
        if left:
            write_json(self.root / ANEW, left)
        else:
            (self.root / ANEW).unlink(missing_ok=True)

    def _parents(self, name: str) -> dict[str, Path]:
        return {p: self.root / p for p in PARENTS[name] if p in self.stages}

    def _stage_request(self, name: str) -> RunRequest:
        return replace(
            self.request,
            output_dir=self.root / name,
            parents=self._parents(name),
            overwrite=name in self._anew,
        )

    def _check_finished(self, name: str) -> None:
        manifest = check_finished(self.root / name, name, self._parents(name))
        _warn_of_changes(self.root / name, manifest.recipe, self.recipe, SECTIONS[name])

    def _seconds_before(self, name: str, figures: Mapping[str, Any]) -> float:
        """What the stage took when it ran, by the last summary or else by its own."""
        before = self._before.get("stages", {}).get(name, {})
        return float(before.get("seconds", figures.get("seconds", 0.0)))

    def _summary_before(self) -> Figures:
        path = self.root / "summary.json"
        return read_json(path) if path.is_file() else {}


def measured_under(recipe: Recipe, who: list[Any]) -> list[Any]:
    """All that the held-out figures of ``who`` depend on, for a ``FigureStore``."""
    content = recipe.model_dump(mode="json")
    how = [content[section] for section in ("environment", "state", "evaluation", "model")]
    return [who, how, content["rl"]["rewards"], content["rl"]["actor"]]


def check_finished(folder: Path, stage: str, parents: Mapping[str, Path]) -> Manifest:
    """The manifest of a finished stage that nobody altered, built on what ``parents`` hold now.

    Raises HandoffError otherwise.
    """
    manifest = verify_parent(folder, stage)
    for parent, place in parents.items():
        built_on = manifest.parents.get(parent, {}).get("hash")
        if read_manifest(place).content_hash != built_on:
            raise HandoffError(
                f"{folder} was built on another {parent} than {place} holds now; pass --overwrite "
                "to do everything anew, or another --output-dir."
            )
    return manifest


def _check_root(request: RunRequest) -> None:
    check_place(request.output_dir)
    if is_finished(request.output_dir):
        raise UsageError(
            f"{request.output_dir} is the folder of a single stage; --output-dir of aac run is the "
            "root that holds sft/, reward/ and rl/."
        )
    if request.resume not in ("auto", "never"):
        raise UsageError(
            f"--resume {request.resume} names one stage's checkpoint; aac run takes auto or never."
        )


def _short(measured: Mapping[str, Figures]) -> Figures:
    """The figures most asked for by flat names, and all of them below."""
    sampled = measured["sampled"]
    names = ("episodes", "return", "turns", "repeated_calls", "loops", "seen", "unseen")
    flat = {f"success_{how}": figures["success"] for how, figures in measured.items()}
    return {**flat, **{name: sampled[name] for name in names}, **measured}


def _told(row: Figures) -> str:
    sampled, greedy = percent(row["success_sampled"]), percent(row["success_greedy"])
    return f"{sampled} of {row['episodes']} held-out tasks sampled, {greedy} greedy"


def _warn_of_changes(
    folder: Path, then: Mapping[str, Any], recipe: Recipe, sections: tuple[str, ...]
) -> None:
    """Say so when a finished stage that is kept was made by a recipe that reads otherwise."""
    now = recipe.model_dump(mode="json")
    changed = [name for name in sections if then.get(name) != now[name]]
    if changed:
        warn(
            f"{folder} was made with another recipe (changed: {', '.join(changed)}); it is kept, "
            "--overwrite does everything anew."
        )
