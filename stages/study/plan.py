"""Which runs a study needs: each seed's SFT and reward run once, each variant's RL on top of them.

``<out>/seed-<s>/sft`` and ``reward`` are those of the recipe without variants. Where a variant
changes what they depend on, its own are ``sft-<hash>`` and ``reward-<hash>``, after the hash of all
that they depend on: variants that change it alike share these, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stages.common.errors import HandoffError, UsageError
from stages.common.manifest import Manifest, content_hash, fingerprint, verify_parent
from stages.common.run_folder import is_finished
from stages.pipeline import SECTIONS, check_finished
from stages.recipe.load import load_recipe
from stages.recipe.models import Recipe
from stages.study.study import AFTER, FROM_OTHERS, WARM_START, Study, override_texts

DEPENDS: Mapping[str, tuple[str, ...]] = {
    "sft": SECTIONS["sft"],
    "reward": (
        *SECTIONS["sft"],
        "reward",
        # Its pairs are played as stage 3 plays, and ranked by what stage 3 pays.
        "rl.actor.temperature",
        "rl.actor.max_new_tokens",
        "rl.rewards.weights",
        "rl.rewards.dense_cap",
    ),
    "rl": SECTIONS["rl"],
}
"""Parts of a recipe that decide what comes out of a stage, its parents aside."""
OF_REVIEWS = ("rl.critic", "rl.rewards.weights", "rl.rewards.dense_cap", "rl.ppo.discount")
"""What SFT depends on, too, where its demonstrations show reviews."""

CRITIC = "critic"
"""The parent that lends its critic, and the folder of the critic in it."""


@dataclass(frozen=True)
class Job:
    """One stage to be run in one folder."""

    stage: str
    recipe: Recipe
    """With the seed of this job."""
    folder: Path
    parents: Mapping[str, Path]
    label: str
    """For people: ``seed 0, full``."""

    @property
    def handed(self) -> dict[str, Path]:
        """The parents as the stage takes them: of the run that lends its critic, that alone."""
        return {n: p / CRITIC if n == CRITIC else p for n, p in self.parents.items()}


@dataclass(frozen=True)
class Plan:
    """The jobs in an order in which parents come first, and the RL job of each variant and seed."""

    base: Recipe
    """The recipe without variants."""
    jobs: Sequence[Job]
    runs: Mapping[tuple[str, int], Job]


def recipes(study: Study, overrides: Sequence[str] = ()) -> tuple[Recipe, dict[str, Recipe]]:
    """The recipe without variants, and each variant's.

    Overrides take effect in this order: the study's ``set``, the person's, the variant's. Raises
    UsageError that names the variant, or two variants that are the same.
    """
    common = [*override_texts(study.set), *overrides]
    base = load_recipe(study.recipe, common)
    variants: dict[str, Recipe] = {}
    for name, changes in study.variants.items():
        own = {path: value for path, value in changes.items() if path not in FROM_OTHERS}
        try:
            recipe = load_recipe(study.recipe, [*common, *override_texts(own)])
        except UsageError as error:
            raise UsageError(f"variant {name}: {error}") from None
        same = [
            other
            for other, known in variants.items()
            if known == recipe
            and all(study.variants[other].get(key) == changes.get(key) for key in FROM_OTHERS)
        ]
        if same:
            raise UsageError(
                f"the variants {same[0]} and {name} are the same recipe; change or remove one."
            )
        variants[name] = recipe
    return base, variants


def build_plan(
    study: Study, overrides: Sequence[str], out: Path, sft_roots: Sequence[Path] = ()
) -> Plan:
    """All jobs of a study, whether they are done already or not, seed by seed.

    ``sft_roots``: folders in which ``seed-<s>/sft`` (and ``reward``) of an earlier study or bench
    are looked for and used instead of own ones. Raises UsageError for a bad variant, and where
    nothing in ``sft_roots`` fits.
    """
    base, variants = recipes(study, overrides)
    planner = _Planner(base, out, sft_roots)
    runs: dict[tuple[str, int], Job] = {}
    for seed in study.seeds:
        for name, recipe in variants.items():
            changes, own = study.variants[name], recipe.model_copy(update={"seed": seed})
            named = {AFTER: "start", WARM_START: CRITIC}
            others = {p: runs[changes[k], seed].folder for k, p in named.items() if k in changes}
            runs[name, seed] = planner.add(name, own, others)
    planner.check_roots()
    return Plan(base, tuple(planner.jobs.values()), runs)


def is_done(job: Job) -> bool:
    """Whether the job's folder holds its finished run.

    Raises UsageError when that run was made by another recipe or on other parents: it would be
    shown under a name that it does not deserve.
    """
    if not is_finished(job.folder):
        return False
    whole = {name: folder for name, folder in job.parents.items() if name != CRITIC}
    manifest = check_finished(job.folder, job.stage, whole)
    _check_critic(job, manifest)
    changed = _changed(manifest, job.recipe, job.stage)
    if changed:
        raise UsageError(
            f"{job.folder} was made with another recipe (changed: {', '.join(changed)}); undo the "
            "change, pass --overwrite to do everything anew, or choose another --output-dir."
        )
    return True


def _check_critic(job: Job, manifest: Manifest) -> None:
    """HandoffError where the critic that the run began with is no longer what lies there."""
    if CRITIC in job.parents:
        lent = job.handed[CRITIC]
        if content_hash(lent) not in manifest.data.values():
            raise HandoffError(
                f"{job.folder} began with another critic than {lent} holds now; pass --overwrite "
                "to do everything anew, or another --output-dir."
            )


class _Planner:
    """Collects jobs; a folder that several variants need is planned once."""

    def __init__(self, base: Recipe, out: Path, roots: Sequence[Path]) -> None:
        self.base, self.out, self.roots = base, out, roots
        self.jobs: dict[Path, Job] = {}
        self.used: set[Path] = set()
        """Roots in which something was found."""

    def add(self, variant: str, recipe: Recipe, others: Mapping[str, Path]) -> Job:
        """The RL job of a variant (its recipe has its seed), with the jobs it stands on.

        ``others``: further parents, the RL runs that it goes on from.
        """
        parents = {"sft": self._shared("sft", recipe, {})}
        if recipe.rl.rewards.reward_model > 0:
            parents["reward"] = self._shared("reward", recipe, parents)
        parents |= others
        seed = recipe.seed
        folder = self.out / f"seed-{seed}" / variant / "rl"
        job = Job("rl", recipe, folder, parents, f"seed {seed}, {variant}")
        self.jobs[folder] = job
        return job

    def check_roots(self) -> None:
        """Raise UsageError for a root of which nothing is used."""
        for root in self.roots:
            if root not in self.used:
                raise UsageError(
                    f"--sft-root {root} holds no finished seed-<s>/sft of these seeds and this "
                    "recipe (seed, model, environment, state and sft must be equal); name another "
                    "folder or leave it out."
                )

    def _shared(self, stage: str, recipe: Recipe, parents: Mapping[str, Path]) -> Path:
        """Where a stage lies that several variants may stand on; planned if it is to be run."""
        found = self._found(stage, recipe, parents)
        if found is not None:
            return found
        parts = _parts(recipe, stage)
        plain = _parts(self.base.model_copy(update={"seed": recipe.seed}), stage)
        name = stage if parts == plain else f"{stage}-{fingerprint(parts)[:8]}"
        folder = self.out / f"seed-{recipe.seed}" / name
        job = Job(stage, recipe, folder, dict(parents), f"seed {recipe.seed}, {name}")
        self.jobs.setdefault(folder, job)
        return folder

    def _found(self, stage: str, recipe: Recipe, parents: Mapping[str, Path]) -> Path | None:
        """A finished and fitting run in the first root that has one."""
        for root in self.roots:
            folder = root / f"seed-{recipe.seed}" / stage
            if not is_finished(folder):
                continue
            manifest = verify_parent(folder, stage)
            built_on = manifest.parents.get("sft", {}).get("hash")
            if _changed(manifest, recipe, stage) or any(
                not is_finished(parent) or verify_parent(parent, name).content_hash != built_on
                for name, parent in parents.items()
            ):
                continue
            self.used.add(root)
            return folder
        return None


def _parts(recipe: Recipe, stage: str) -> dict[str, Any]:
    return _of(recipe.model_dump(mode="json"), stage)


def _of(content: Mapping[str, Any], stage: str) -> dict[str, Any]:
    """What ``DEPENDS`` names, by its dotted path; ``OF_REVIEWS`` where they are shown."""
    found = {}
    state = content.get("state")
    reviewed = isinstance(state, Mapping) and state.get("review") == "words"
    for dotted in (*DEPENDS[stage], *(OF_REVIEWS if reviewed else ())):
        value: Any = content
        for part in dotted.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        found[dotted] = value
    return found


def _changed(manifest: Manifest, recipe: Recipe, stage: str) -> list[str]:
    """The keys in which a finished run's recipe differs from this one."""
    return _different(_of(_recorded(manifest), stage), _parts(recipe, stage))


def _different(then: Any, now: Any, prefix: str = "") -> list[str]:
    """Dotted paths of the innermost values that differ."""
    if not (isinstance(then, Mapping) and isinstance(now, Mapping)):
        return [prefix[:-1]] if then != now else []
    names = sorted(then.keys() | now.keys())
    parts = (_different(then.get(n), now.get(n), f"{prefix}{n}.") for n in names)
    return [path for found in parts for path in found]


def _recorded(manifest: Manifest) -> Mapping[str, Any]:
    """The recipe in a manifest; keys that are newer than it have their defaults."""
    try:
        return Recipe.model_validate(manifest.recipe).model_dump(mode="json")
    except ValidationError:
        return manifest.recipe
