"""Stage 1: supervised fine-tuning. Gather dialogues, make rows, train, save."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from stages.common.checkpoints import Origin
from stages.common.console import warn, watch
from stages.common.errors import UsageError
from stages.common.libraries import quiet_libraries
from stages.common.live import Board, Curve
from stages.common.manifest import build_manifest, fingerprint
from stages.common.model_folder import check_model_folder
from stages.common.run_folder import HELD_OUT as CLEAN
from stages.common.run_folder import RunFolder, RunRequest, write_rows
from stages.common.seeding import derived_seed, keyed_generator, seed_everything, set_threads
from stages.common.trackers import check_trackers, tracked
from stages.interaction.arena import Arena, kept
from stages.interaction.demonstrations import saying
from stages.interaction.trajectory import Message, Trajectory
from stages.recipe.models import Recipe, SftSection
from stages.recipe.ranges import advice, default_learning_rate
from stages.recipe.section import deciding
from stages.sft.data import (
    Example,
    Exchange,
    SftRows,
    build_rows,
    episode_examples,
    only_successful,
    read_examples,
)

DEMONSTRATION_TASKS, HELD_OUT, ORDER = 10, 11, 12
"""Places in random keys, so that no two uses share numbers."""
CURVES = (Curve("loss", "sft/loss"), Curve("accuracy", "sft/token_accuracy"))
KEPT_ROWS, KEPT_CLEAN = 5000, 256
"""Training rows kept in the folder for mixing the SFT loss into stage 3, and held-out exchanges
kept to check there that nothing is forgotten."""
Reviews = Callable[[Recipe, Sequence[Trajectory]], Sequence[Sequence[str]]]
"""The review in words of each turn of each demonstration."""


def run(recipe: Recipe, request: RunRequest, *, reviews: Reviews | None = None) -> dict[str, Any]:
    """Train the first actor and save it as a plain folder; returns the summary.

    ``reviews`` writes what demonstrations show under finished turns where the state shows reviews.

    Raises HandoffError for a finished folder, UsageError for a recipe or data that cannot work,
    RunError when training itself fails. A dry run checks all of it and writes nothing.
    """
    started = time.perf_counter()
    check_trackers(recipe.tracking.report_to)
    given = read_given(recipe)  # before torch is loaded, and before anything is written
    check_model_folder(recipe.model.actor, writes=True)
    from stages.common.engine import join

    ranks = join(recipe.distributed.timeout_s)
    folder = RunFolder.open(request, "sft", ranks)
    set_threads(recipe.threads)
    seed_everything(recipe.seed)
    log = None if request.dry_run else folder.log_path
    with quiet_libraries(log), folder.undone_on_bad_input():
        model, tokenizer, autocast = _load(recipe)
        examples, source = gather(recipe, tokenizer, given, reviews)
        rows = _rows(recipe, tokenizer, model, examples)
        summary = _counts(examples, rows)
        if request.dry_run:
            return summary
        origin = _origin(recipe, rows)
        summary |= train(recipe, folder, model, tokenizer, rows, origin, autocast=autocast)
        _save(recipe, folder, model, tokenizer, autocast=autocast)
    if not ranks.main:
        return summary
    write_rows(folder.path, map(asdict, islice(rows.train, KEPT_ROWS)))
    write_rows(folder.path, map(_row, rows.clean[:KEPT_CLEAN]), CLEAN)
    summary["seconds"] = round(time.perf_counter() - started, 2)
    manifest = build_manifest(
        folder.path,
        "sft",
        recipe=recipe.model_dump(mode="json"),
        data={source: origin.data},
        metrics=summary,
    )
    folder.finish(manifest, summary)
    return summary


def _row(exchange: Exchange) -> dict[str, Any]:
    """In TRL's prompt-completion shape, as a person's file of clean dialogues may have it too."""
    messages, reply = exchange
    return {
        "prompt": [dict(message) for message in messages],
        "completion": [{"role": "assistant", "content": reply}],
    }


def read_given(recipe: Recipe) -> list[Example] | None:
    """The dialogues of a person's file; None where the expert is to demonstrate."""
    section = recipe.sft
    if section.data is None:
        return None
    examples = read_examples(Path(section.data))
    return only_successful(examples, str(section.data)) if section.only_successful else examples


def gather(
    recipe: Recipe,
    tokenizer: Any,
    given: list[Example] | None,
    reviews: Reviews | None = None,
) -> tuple[list[Example], str]:
    """The dialogues to learn, ``given`` or demonstrated, and what they came from."""
    if given is not None:
        return given, str(recipe.sft.data)
    source = "demonstrations"
    examples = episode_examples(demonstrated(recipe, tokenizer, reviews))
    return only_successful(examples, source) if recipe.sft.only_successful else examples, source


def _origin(recipe: Recipe, rows: SftRows) -> Origin:
    """What checkpoints are made from; the data by what is learned, wherever it came from."""
    parts = recipe.model_dump(mode="json", include={"seed", "model", "environment", "state"})
    section, every = recipe.sft, 0
    if section.keep == "best":
        every = section.checkpoint_every  # decides what the best is chosen from
    data = fingerprint([row.input_ids for row in rows.train])
    return Origin(fingerprint([parts, deciding(section), every]), data)


def train(
    recipe: Recipe,
    folder: RunFolder,
    model: Any,
    tokenizer: Any,
    rows: SftRows,
    origin: Origin,
    *,
    autocast: bool,
) -> dict[str, float]:
    """Optimizer steps from the newest checkpoint on; the final figures."""
    from stages.common.trl_trainer import RunLog, run_training
    from stages.sft.trainer import METRICS, make_dataset, make_trainer

    config = _config(recipe, folder, model, autocast)
    dataset = make_dataset(rows.train).select(_order(recipe.sft, rows, recipe.seed, config))
    board = Board("sft", recipe.sft.steps, curves=CURVES)
    with watch(board) as shown:
        log = RunLog(folder.metrics, METRICS, board, shown)
        trainer = make_trainer(model, tokenizer, config, dataset, [log])
        section, held_out = recipe.sft, make_dataset(sorted(rows.validation, key=len))

        def loss() -> float:
            return float(trainer.evaluate(held_out)["eval_loss"])

        with tracked(recipe.tracking.report_to, trainer, folder):
            figures = run_training(
                trainer,
                folder,
                origin,
                every=section.checkpoint_every or max(section.steps // 4, 1),
                minutes=section.checkpoint_minutes,
                keep=section.checkpoints_kept,
                loss=loss if section.keep == "best" else None,
            )
            found = trainer.evaluate(held_out) if len(held_out) else {}
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    figures |= {"loss": losses[-1]} if losses else {}
    return figures | {
        ours.removeprefix("sft/"): found[name] for name, ours in METRICS.items() if name in found
    }


def demonstrated(
    recipe: Recipe, tokenizer: Any, reviews: Reviews | None = None
) -> list[Trajectory]:
    """The expert's episodes; with reviews, played once more with these under finished turns."""
    from stages.common.chat import encode_prompt

    def count(messages: list[Message]) -> int:
        return len(encode_prompt(tokenizer, messages))

    seed = derived_seed(recipe.seed, DEMONSTRATION_TASKS)
    world, writer = (recipe.environment, recipe.state, recipe.rl.rewards), recipe.model.actor
    arena = Arena.of(*world, writer=writer)
    tasks = arena.draw("train", recipe.sft.demonstrations, seed)
    episodes = arena.demonstrate(tasks, seed=seed, count_tokens=count)
    if recipe.state.review == "words" and reviews is not None:
        arena = arena.served(recipe.state, saying(reviews(recipe, episodes)))
        episodes = arena.demonstrate(tasks, seed=seed, count_tokens=count)
    return kept(episodes, blame=UsageError)


def _rows(recipe: Recipe, tokenizer: Any, model: Any, examples: list[Example]) -> SftRows:
    context = getattr(model.config, "max_position_embeddings", None) or recipe.sft.max_length
    length = min(recipe.sft.max_length, context)
    rows = build_rows(
        tokenizer,
        examples,
        max_length=length,
        validation_fraction=recipe.sft.validation_fraction,
        generator=keyed_generator(recipe.seed, HELD_OUT),
    )
    if recipe.sft.keep == "best" and not rows.validation:
        raise UsageError(
            "sft.keep is best, but none of the dialogues is held out; raise "
            "sft.validation_fraction, or keep the last."
        )
    if rows.dropped:
        warn(f"{rows.dropped} rows dropped: a reply alone is longer than {length} tokens.")
    return rows


def _config(recipe: Recipe, folder: RunFolder, model: Any, autocast: bool) -> Any:
    from stages.common.models import count_parameters
    from stages.common.trl_trainer import LOG_EVERY
    from stages.sft.trainer import sft_config

    section = recipe.sft
    rate = section.learning_rate or default_learning_rate(
        "sft", count_parameters(model), adapters=recipe.model.lora is not None
    )
    return sft_config(
        folder.checkpoints,
        extra=section.trainer,
        max_steps=section.steps,
        per_device_train_batch_size=section.batch_size,
        per_device_eval_batch_size=section.batch_size,
        gradient_accumulation_steps=section.gradient_accumulation,
        learning_rate=rate,
        warmup_steps=round(section.warmup_fraction * section.steps),
        lr_scheduler_type="linear",
        logging_steps=min(LOG_EVERY, section.steps),
        bf16=autocast,
        activation_checkpointing=recipe.model.activation_checkpointing,
        seed=recipe.seed,
        run_name=f"{recipe.name}-sft",
        project=recipe.tracking.project,
    )


def _order(section: SftSection, rows: SftRows, seed: int, config: Any) -> list[int]:
    """By whole optimizer steps, so that accumulation changes no step's rows."""
    from stages.common.batches import length_grouped_order

    return length_grouped_order(
        [len(row) for row in rows.train],
        batch_size=section.batch_size * section.gradient_accumulation * config.world_size,
        batches=section.steps,
        generator=keyed_generator(seed, ORDER),
    )


def _counts(examples: list[Example], rows: SftRows) -> dict[str, Any]:
    marks = [example.success for example in examples if example.success is not None]
    success = {"data_success": sum(marks) / len(marks)} if marks else {}
    counts = {"dialogues": len(examples), "rows": len(rows.train), "cut": rows.cut}
    return counts | {"dropped": rows.dropped, "tokens": rows.tokens} | success


def _load(recipe: Recipe) -> tuple[Any, Any, bool]:
    """(model, tokenizer, train in bf16 autocast?)"""
    from stages.common.models import count_parameters, load_tokenizer, load_trained_actor
    from stages.common.precision import precision

    section = recipe.model
    tokenizer = load_tokenizer(section.actor, section.chat_template)
    weights, autocast = precision(section.dtype, adapters=section.lora is not None)
    model = load_trained_actor(section.actor, section, dtype=weights, tokenizer=tokenizer)
    for line in advice(recipe, count_parameters(model), "sft"):
        warn(line)
    return model, tokenizer, autocast


def _save(recipe: Recipe, folder: RunFolder, model: Any, tokenizer: Any, *, autocast: bool) -> None:
    from stages.common.trl_trainer import save_trained

    card = f"Actor of the aac recipe {recipe.name} after supervised fine-tuning."
    save_trained(model, tokenizer, folder, card=card, autocast=autocast)
