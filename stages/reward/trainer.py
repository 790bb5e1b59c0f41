"""TRL's RewardTrainer (Bradley-Terry) on pairs that are tokenised already, and their figures."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from trl import RewardConfig, RewardTrainer

from stages.common.models import score_padding
from stages.common.scores import sequence_scores
from stages.common.trl_trainer import StageTrainer, training_arguments, without_printing
from stages.reward.data import Pair

METRICS = {
    "loss": "reward/loss",
    "learning_rate": "reward/learning_rate",
    "grad_norm": "reward/grad_norm",
    "accuracy": "reward/accuracy",
    "margin": "reward/margin",
    "mean_reward": "reward/mean_score",
}
"""TRL's names of what we log, and ours."""


class PairwiseRewardTrainer(StageTrainer, RewardTrainer):
    """``RewardTrainer`` in the order of its dataset."""


def reward_config(output_dir: Path, *, extra: dict[str, Any], **ours: Any) -> RewardConfig:
    """TRL's config. Without a length limit, which would drop longer pairs unsaid."""
    fixed = {"output_dir": str(output_dir), "max_length": None}
    return training_arguments(RewardConfig, "reward", ours=fixed | ours, extra=extra)


def make_trainer(
    model: Any,
    tokenizer: Any,
    config: RewardConfig,
    train: datasets.Dataset,
    callbacks: Sequence[Any] = (),
) -> Any:
    """A ``PairwiseRewardTrainer``; ``model.config.pad_token_id`` becomes a token that never ends
    a reply, so that the score is read at the reply's last token."""
    padder = copy.deepcopy(tokenizer)
    padder.pad_token = score_padding(tokenizer)
    trainer = PairwiseRewardTrainer(
        model=model,
        args=config,
        train_dataset=train,
        processing_class=padder,
        callbacks=list(callbacks),
    )
    return without_printing(trainer)


def make_dataset(pairs: Sequence[Pair]) -> datasets.Dataset:
    """``chosen_ids`` and ``rejected_ids``."""
    return datasets.Dataset.from_dict(
        {
            "chosen_ids": [list(pair.chosen_ids) for pair in pairs],
            "rejected_ids": [list(pair.rejected_ids) for pair in pairs],
        }
    )


def pair_scores(model: Any, pairs: Sequence[Pair]) -> tuple[np.ndarray, np.ndarray]:
    """(chosen, rejected) scores of the pairs, each (N,)."""
    rows = [pair.chosen_ids for pair in pairs] + [pair.rejected_ids for pair in pairs]
    scores = np.asarray(sequence_scores(model, rows))
    return scores[: len(pairs)], scores[len(pairs) :]


def pair_figures(
    chosen: np.ndarray, rejected: np.ndarray, length_difference: np.ndarray
) -> dict[str, Any]:
    """Accuracy (ties count half), margin and loss; accuracy where the better reply is longer,
    as long, or shorter, so that a model that only measures length is seen."""
    margin = chosen.astype(np.float64) - rejected
    right = (margin > 0) + 0.5 * (margin == 0)
    kinds = {"longer": 1, "equal": 0, "shorter": -1}
    by_length = {}
    for name, sign in kinds.items():
        chosen_here = np.sign(length_difference) == sign
        if chosen_here.any():
            by_length[name] = {
                "accuracy": float(right[chosen_here].mean()),
                "pairs": int(chosen_here.sum()),
            }
    return {
        "accuracy": float(right.mean()),
        "margin": float(margin.mean()),
        "held_out_loss": float(np.logaddexp(0, -margin).mean()),
        "accuracy_by_length": by_length,
    }
