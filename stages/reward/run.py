"""Stage 2: the reward model. Gather preferences, make pairs, train, measure, save."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stages.common.checkpoints import Origin
from stages.common.console import warn, watch
from stages.common.errors import HandoffError, RunError, UsageError
from stages.common.libraries import quiet_libraries
from stages.common.live import Board, Curve
from stages.common.manifest import build_manifest, fingerprint, verify_parent
from stages.common.model_folder import check_model_folder
from stages.common.ranks import ALONE, Ranks, world_size
from stages.common.records import Record
from stages.common.run_folder import RunFolder, RunRequest, write_rows
from stages.common.seeding import derived_seed, keyed_generator, seed_everything, set_threads
from stages.common.trackers import check_trackers, tracked
from stages.interaction.arena import Arena, kept
from stages.interaction.player import load_player
from stages.interaction.preferences import collect_preferences
from stages.interaction.trajectory import Trajectory
from stages.recipe.model import LoraSection
from stages.recipe.models import Recipe
from stages.recipe.ranges import advice, default_learning_rate
from stages.recipe.section import deciding
from stages.reward.data import Pairs, build_pairs, read_preferences, told_apart

PREFERENCE_TASKS, HELD_OUT, ORDER, HEAD = 20, 21, 22, 23
"""Places in random keys, so that no two uses share numbers."""
SCORED_EPISODES = 256
"""Episodes of the SFT actor whose turns give the scores' mean and spread."""

CURVES = (Curve("loss", "reward/loss"), Curve("accuracy", "reward/accuracy"))


@dataclass(frozen=True)
class Gathered:
    """Preference rows, where they came from, and the SFT actor's episodes if it played."""

    records: list[Record]
    source: str
    episodes: Sequence[Trajectory] = ()


@dataclass(frozen=True)
class Prepared:
    """All that training needs."""

    base: str | Path
    tokenizer: Any
    gathered: Gathered
    pairs: Pairs

    def summary(self) -> dict[str, Any]:
        """What became of the rows."""
        return asdict(self.pairs.counts) | {"held_out": len(self.pairs.held_out)}


def run(recipe: Recipe, request: RunRequest) -> dict[str, Any]:
    """Train a reward model and save it as a plain folder; returns the summary.

    Raises HandoffError for a missing or altered SFT folder, UsageError for a recipe or data that
    cannot work, RunError when the actor's play gives no preferences or training fails. A dry run
    checks what needs no play, and writes nothing.
    """
    started = time.perf_counter()
    check_trackers(recipe.tracking.report_to)
    sft, parents = _sft_parent(recipe, request)
    # Before torch is loaded, and before anything is written.
    given = None if recipe.reward.data is None else read_preferences(Path(recipe.reward.data))
    check_model_folder(_base(recipe, sft))
    from stages.common.engine import join

    ranks = join(recipe.distributed.timeout_s)
    folder = RunFolder.open(request, "reward", ranks)
    set_threads(recipe.threads)
    log = None if request.dry_run else folder.log_path
    with quiet_libraries(log), folder.undone_on_bad_input():
        if request.dry_run and recipe.reward.data is None:
            _load_tokenizer(recipe, sft)
            return {}
        prepared = prepare(recipe, sft, given, ranks)
        if request.dry_run:
            return prepared.summary()
        origin = _origin(recipe, prepared, parents)
        model, figures = train(recipe, folder, prepared, origin)
        score = score_statistics(recipe, model, prepared)
        _save(recipe, folder, model, prepared)
    if not ranks.main:
        return {}
    summary = prepared.summary() | figures
    summary |= {f"score_{name}": value for name, value in score.items()}
    summary["seconds"] = round(time.perf_counter() - started, 2)
    manifest = build_manifest(
        folder.path,
        "reward",
        recipe=recipe.model_dump(mode="json"),
        parents={"sft": sft} if sft else {},
        used=origin.parents,
        data={prepared.gathered.source: origin.data},
        metrics=summary,
    )
    folder.finish(manifest.with_score(**score), summary)
    return summary


def _origin(recipe: Recipe, prepared: Prepared, parents: dict[str, str]) -> Origin:
    """What checkpoints are made from; the data by its rows, wherever they came from."""
    parts = recipe.model_dump(mode="json", include={"seed", "model", "environment", "state"})
    section, every = recipe.reward, 0
    if section.keep == "best":
        every = section.checkpoint_every  # decides what the best is chosen from
    data = fingerprint([row for _, row in prepared.gathered.records])
    return Origin(fingerprint([parts, deciding(section), every]), data, parents)


def prepare(
    recipe: Recipe, sft: Path | None, given: list[Record] | None, ranks: Ranks = ALONE
) -> Prepared:
    """Preference rows, ``given`` or played, as token pairs, in the tokens of the trunk."""
    base, tokenizer = _load_tokenizer(recipe, sft)
    _check_length(base, recipe.reward.max_length)
    if given is None:
        gathered = _readable(gather(recipe, sft, ranks), tokenizer, base)
    else:
        gathered = Gathered(given, str(recipe.reward.data))
    pairs = build_pairs(
        tokenizer,
        gathered.records,
        max_length=recipe.reward.max_length,
        held_out_fraction=recipe.reward.held_out_fraction,
        generator=keyed_generator(recipe.seed, HELD_OUT),
    )
    if pairs.counts.dropped:
        length = recipe.reward.max_length
        warn(f"{pairs.counts.dropped} pairs dropped: a reply alone is longer than {length} tokens.")
    return Prepared(base, tokenizer, gathered, pairs)


def gather(recipe: Recipe, sft: Path | None, ranks: Ranks = ALONE) -> Gathered:
    """The preference rows of the SFT actor's play."""
    section = recipe.reward
    assert sft is not None
    arena = Arena.of(recipe.environment, recipe.state, recipe.rl.rewards, writer=sft)
    episodes = play(recipe, arena, sft, ranks)
    rows = collect_preferences(
        episodes, min_margin=section.min_margin, discount=section.discount, mix=arena.mix
    )
    if not rows:
        raise RunError(
            f"{len(episodes)} episodes of the SFT actor gave no preferences: no state had replies "
            f"whose outcomes differ by reward.min_margin ({section.min_margin:g}); sample more "
            "tasks or lower it."
        )
    records = [(f"preference {k}", row) for k, row in enumerate(rows, start=1)]
    return Gathered(records, "preferences", episodes)


def _readable(gathered: Gathered, tokenizer: Any, base: str | Path) -> Gathered:
    """What was played, less the pairs that the trunk cannot tell apart. RunError if none is left.

    In a person's file such a pair is an error with its row; a sampling actor makes them.
    """
    records = told_apart(tokenizer, gathered.records)
    if left_out := len(gathered.records) - len(records):
        warn(f"{left_out} pairs are left out: {base} reads their two replies alike.")
    if not records:
        raise RunError(f"{base} reads the two replies of every pair alike; take another trunk.")
    return replace(gathered, records=records)


def play(recipe: Recipe, arena: Arena, sft: Path, ranks: Ranks = ALONE) -> list[Trajectory]:
    """Each training task played several times by the SFT actor, at the temperature of stage 3."""
    section, seed = recipe.reward, derived_seed(recipe.seed, PREFERENCE_TASKS)
    actor = load_player(sft, model=recipe.model, sampling=recipe.rl.actor, state=recipe.state)
    tasks = arena.draw("train", section.tasks, seed)
    repeated = [task for task in tasks for _ in range(section.samples_per_task)]
    played = arena.play(
        repeated,
        actor.policy,
        key=(seed, 0),
        count_tokens=actor.count_tokens,
        label="preferences",
        ranks=ranks,
    )
    return kept(ranks.gather(played), blame=UsageError)


def train(
    recipe: Recipe, folder: RunFolder, prepared: Prepared, origin: Origin
) -> tuple[Any, dict[str, Any]]:
    """The trained model and its figures on the held-out pairs."""
    from stages.common.precision import precision
    from stages.common.trl_trainer import RunLog, run_training
    from stages.reward.trainer import METRICS, make_dataset, make_trainer

    pairs, best = prepared.pairs, recipe.reward.keep == "best"
    weights, autocast = precision(recipe.model.dtype, adapters=adapters_of(recipe) is not None)
    model = _new_model(recipe, prepared, weights)
    config = _config(recipe, folder, model, len(pairs.train), autocast)
    dataset = make_dataset(pairs.train).select(_order(recipe, pairs, config))
    board = Board("reward", config.max_steps, curves=CURVES)
    with watch(board) as shown:
        log = RunLog(folder.metrics, METRICS, board, shown)
        trainer = make_trainer(model, prepared.tokenizer, config, dataset, [log])

        def measured() -> dict[str, Any]:
            found = _held_out(model, pairs)
            numbers = {name: value for name, value in found.items() if isinstance(value, float)}
            folder.metrics.write(trainer.state.global_step, _named(numbers))
            return found

        with tracked(recipe.tracking.report_to, trainer, folder):
            done = run_training(
                trainer,
                folder,
                origin,
                every=recipe.reward.checkpoint_every or max(config.max_steps // 4, 1),
                minutes=recipe.reward.checkpoint_minutes,
                keep=recipe.reward.checkpoints_kept,
                loss=(lambda: float(measured()["held_out_loss"])) if best else None,
            )
            return model, done | measured()


def _held_out(model: Any, pairs: Pairs) -> dict[str, Any]:
    """Figures on the held-out pairs."""
    from stages.reward.trainer import pair_figures, pair_scores

    difference = np.array([pair.length_difference for pair in pairs.held_out])
    return pair_figures(*pair_scores(model, pairs.held_out), difference)


def _named(figures: Mapping[str, float]) -> dict[str, float]:
    """Under the names of metrics.jsonl."""
    return {
        f"reward/held_out_{name.removeprefix('held_out_')}": value
        for name, value in figures.items()
    }


def adapters_of(recipe: Recipe) -> LoraSection | None:
    """model.lora is about the actor: a trunk from elsewhere is trained whole."""
    return recipe.model.lora if recipe.reward.base in ("sft", "actor") else None


def score_statistics(recipe: Recipe, model: Any, prepared: Prepared) -> dict[str, float]:
    """Mean and spread over the SFT actor's turns, else over the held-out replies."""
    from stages.interaction.rewards.scorer import score_turns
    from stages.reward.trainer import pair_scores

    episodes = prepared.gathered.episodes
    if episodes:
        # Evenly over the tasks: the samples of one task stand side by side.
        some = episodes[:: max(len(episodes) // SCORED_EPISODES, 1)]
        length = recipe.reward.max_length
        rows = score_turns(model, prepared.tokenizer, some, max_length=length)
        scores = np.array([score for row in rows for score in row])
    else:
        scores = np.concatenate(pair_scores(model, prepared.pairs.held_out))
    if not np.isfinite(scores).all():
        raise RunError("the trained model's scores are not finite; lower reward.learning_rate.")
    return {"mean": float(scores.mean()), "std": float(scores.std())}


def _new_model(recipe: Recipe, prepared: Prepared, weights: str) -> Any:
    from stages.common.models import check_vocabulary, count_parameters, new_reward_model

    seed_everything(derived_seed(recipe.seed, HEAD))
    model = new_reward_model(
        prepared.base, dtype=weights, frozen=recipe.model.frozen, lora=adapters_of(recipe)
    )
    check_vocabulary(model, prepared.tokenizer, prepared.base)
    for line in advice(recipe, count_parameters(model), "reward"):
        warn(line)
    return model


def _save(recipe: Recipe, folder: RunFolder, model: Any, prepared: Prepared) -> None:
    from stages.common.precision import precision
    from stages.common.trl_trainer import save_trained

    card = f"Reward model of the aac recipe {recipe.name}: one score per dialogue."
    _, autocast = precision(recipe.model.dtype, adapters=adapters_of(recipe) is not None)
    save_trained(model, prepared.tokenizer, folder, card=card, autocast=autocast)
    if folder.ranks.main:
        write_rows(folder.path, [row for _, row in prepared.gathered.records])


def _sft_parent(recipe: Recipe, request: RunRequest) -> tuple[Path | None, dict[str, str]]:
    """The verified SFT folder, and its hash; None where neither trunk nor data come from it."""
    if recipe.reward.base != "sft" and recipe.reward.data is not None:
        return None, {}
    sft = request.parents.get("sft")
    if sft is None:
        raise HandoffError(
            "the reward model grows from the SFT actor, but there is no SFT folder; "
            "run aac sft first, or name one with --sft."
        )
    return sft, {"sft": verify_parent(sft, "sft").content_hash}


def _load_tokenizer(recipe: Recipe, sft: Path | None) -> tuple[str | Path, Any]:
    """The trunk's folder or id, and its tokenizer."""
    from stages.common.models import load_tokenizer

    base = _base(recipe, sft)
    grown = recipe.reward.base in ("sft", "actor")
    own = recipe.model.chat_template if grown else None
    return base, load_tokenizer(base, own, plain=not grown)


def _check_length(base: str | Path, max_length: int) -> None:
    """UsageError for rows that the trunk has no positions for."""
    from stages.common.models import longest_row

    most = longest_row(base)
    if most is not None and max_length > most:
        raise UsageError(
            f"reward.max_length is {max_length}, but {base} reads at most {most} tokens; lower it."
        )


def _base(recipe: Recipe, sft: Path | None) -> str | Path:
    known = {"sft": sft, "actor": recipe.model.actor}
    base = known.get(recipe.reward.base, recipe.reward.base)
    assert base is not None
    return base


def _config(recipe: Recipe, folder: RunFolder, model: Any, pairs: int, autocast: bool) -> Any:
    from stages.common.models import count_parameters
    from stages.common.trl_trainer import LOG_EVERY
    from stages.reward.trainer import reward_config

    section = recipe.reward
    rate = section.learning_rate or default_learning_rate(
        "reward", count_parameters(model), adapters=adapters_of(recipe) is not None
    )
    per_step = section.batch_size * section.gradient_accumulation * world_size()
    steps = max(math.ceil(section.epochs * pairs / per_step), 1)
    return reward_config(
        folder.checkpoints,
        extra=section.trainer,
        max_steps=steps,
        per_device_train_batch_size=section.batch_size,
        gradient_accumulation_steps=section.gradient_accumulation,
        learning_rate=rate,
        lr_scheduler_type="linear",
        logging_steps=min(LOG_EVERY, steps),
        bf16=autocast,
        activation_checkpointing=recipe.model.activation_checkpointing,
        seed=recipe.seed,
        run_name=f"{recipe.name}-reward",
        project=recipe.tracking.project,
    )


def _order(recipe: Recipe, pairs: Pairs, config: Any) -> list[int]:
    """By whole optimizer steps, so that accumulation changes no step's pairs."""
    from stages.common.batches import length_grouped_order

    section = recipe.reward
    return length_grouped_order(
        [pair.longest for pair in pairs.train],
        batch_size=section.batch_size * section.gradient_accumulation * config.world_size,
        batches=config.max_steps,
        generator=keyed_generator(recipe.seed, ORDER),
    )
