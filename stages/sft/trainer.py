"""TRL's SFTTrainer on rows that are tokenised and masked already."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from stages.common.models import padding_id
from stages.common.rows import Row
from stages.common.trl_trainer import StageTrainer, training_arguments, without_printing
from stages.sft import chunk
from stages.sft.chunk import NOT_LEARNED

METRICS = {
    "loss": "sft/loss",
    "learning_rate": "sft/learning_rate",
    "grad_norm": "sft/grad_norm",
    "entropy": "sft/entropy",
    "mean_token_accuracy": "sft/token_accuracy",
    "eval_loss": "sft/validation_loss",
    "eval_mean_token_accuracy": "sft/validation_token_accuracy",
}
"""TRL's names of what we log, and ours."""


class AssistantSftTrainer(StageTrainer, SFTTrainer):
    """``SFTTrainer`` with the loss on action tokens only, in the order of its dataset."""


def sft_config(output_dir: Path, *, extra: dict[str, Any], **ours: Any) -> SFTConfig:
    """TRL's config. The rows are ready, so nothing is prepared, packed or cut again."""
    fixed = {
        "output_dir": str(output_dir),
        "max_length": None,
        "packing": False,
        "dataset_kwargs": {"skip_prepare_dataset": True},
    }
    return training_arguments(SFTConfig, "sft", ours=fixed | ours, extra=extra)


def make_trainer(
    model: Any,
    tokenizer: Any,
    config: SFTConfig,
    train: datasets.Dataset,
    callbacks: Sequence[Any] = (),
) -> Any:
    """An ``AssistantSftTrainer``; any id will do as padding: labels and masks are explicit."""
    collator = DataCollatorForLanguageModeling(
        pad_token_id=padding_id(tokenizer), pad_to_multiple_of=config.pad_to_multiple_of
    )
    chunk.install()
    trainer = AssistantSftTrainer(
        model=model,
        args=config,
        data_collator=collator,
        train_dataset=train,
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )
    return without_printing(trainer)


def make_dataset(rows: Sequence[Row]) -> datasets.Dataset:
    """``input_ids`` and ``labels``: the id where the row is learned, -100 elsewhere."""
    labels = [_labels(row) for row in rows]
    ids = [list(row.input_ids) for row in rows]
    return datasets.Dataset.from_dict({"input_ids": ids, "labels": labels})


def _labels(row: Row) -> list[int]:
    pairs = zip(row.input_ids, row.action_mask, strict=True)
    return [token if learned else NOT_LEARNED for token, learned in pairs]
