"""TRL's Bradley-Terry on our pairs against -log sigmoid in float64; figures by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trl import RewardTrainer

from stages.common.errors import UsageError
from stages.common.libraries import quiet_libraries
from stages.common.models import (
    load_reward_model,
    load_tokenizer,
    new_reward_model,
    save_folder,
)
from stages.common.scores import sequence_scores
from stages.reward.data import Pair
from stages.reward.trainer import (
    make_dataset,
    make_trainer,
    pair_figures,
    pair_scores,
    reward_config,
)
from tests.tiny_models import tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(Path(tmp_path_factory.mktemp("llama")))


def pairs(count: int = 5) -> list[Pair]:
    """Sides of different length; both end with the stop token, which is the tokenizer's pad."""
    rng = np.random.default_rng(3)
    made = []
    for k in range(count):
        sides = [(*rng.integers(4, 300, size=5 + k + extra).tolist(), 1) for extra in (0, 3)]
        made.append(Pair(sides[k % 2], sides[1 - k % 2], str(k), 0))
    return made


def fresh(folder: Path) -> Any:
    torch.manual_seed(4)
    model = new_reward_model(folder, frozen=("embed_tokens", "lm_head"))
    with torch.no_grad():
        model.score.weight.mul_(10)
    return model


def trainer(folder: Path, out: Path, **ours: Any) -> Any:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": len(pairs()),
        "max_steps": 1,
        "learning_rate": 0.1,
        "bf16": False,
        "save_strategy": "no",
        "optim": "sgd",
        "max_grad_norm": 1e9,
        "lr_scheduler_type": "constant",
    }
    config = reward_config(out, extra={}, **(settings | ours))
    return make_trainer(fresh(folder), load_tokenizer(folder), config, make_dataset(pairs()))


def test_trls_loss_and_step_equal_bradley_terry(folder: Path, tmp_path: Path) -> None:
    with quiet_libraries(None):
        ours = trainer(folder, tmp_path)
        assert isinstance(ours, RewardTrainer)
        before = {n: p.clone() for n, p in ours.model.named_parameters()}
        oracle = fresh(folder).double()
        oracle.config.pad_token_id = ours.model.config.pad_token_id
        total = torch.zeros((), dtype=torch.float64)
        for pair in pairs():
            chosen, rejected = (
                oracle(torch.tensor([ids])).logits[0, 0]
                for ids in (pair.chosen_ids, pair.rejected_ids)
            )
            total = total + torch.log(1 + torch.exp(-(chosen - rejected)))
        loss = total / len(pairs())
        loss.backward()
        result = ours.train()
    assert result.training_loss == pytest.approx(float(loss.detach()), rel=1e-5)
    for name, parameter in oracle.named_parameters():
        now = dict(ours.model.named_parameters())[name]
        if parameter.grad is None:
            assert "embed_tokens" in name and torch.equal(now, before[name])
            continue
        expected = (before[name].double() - 0.1 * parameter.grad).float()
        torch.testing.assert_close(now.data, expected.data, rtol=1e-5, atol=1e-7)


def test_rows_are_padded_with_a_token_that_ends_no_reply(folder: Path, tmp_path: Path) -> None:
    """The tokenizer's pad is its stop token; left so, the score would be read before it."""
    tokenizer = load_tokenizer(folder)
    with quiet_libraries(None):
        ours = trainer(folder, tmp_path)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 1
    assert ours.model.config.pad_token_id == 0 and tokenizer.pad_token_id == 1
    changed = [Pair((*p.chosen_ids[:-1], 9), p.rejected_ids, p.group, 0) for p in pairs()]
    one, other = pair_scores(ours.model, pairs())[0], pair_scores(ours.model, changed)[0]
    assert (np.abs(one - other) > 1e-5).all()


def test_long_pairs_are_never_dropped(folder: Path, tmp_path: Path) -> None:
    """TRL drops pairs above its default limit of 1024 tokens without a word."""
    long = [Pair((5,) * 1100 + (1,), (6,) * 1100 + (1,), "0", 0)]
    with quiet_libraries(None):
        config = reward_config(tmp_path, extra={}, bf16=False)
        made = make_trainer(fresh(folder), load_tokenizer(folder), config, make_dataset(long))
    assert len(made.train_dataset) == 1


def test_saved_head_reloads_equal(folder: Path, tmp_path: Path) -> None:
    with quiet_libraries(None):
        ours = trainer(folder, tmp_path / "checkpoints")
        ours.train()
        save_folder(ours.model, load_tokenizer(folder), tmp_path / "saved")
        again = load_reward_model(tmp_path / "saved")
    assert torch.equal(again.score.weight, ours.model.score.weight)
    rows = [pair.chosen_ids for pair in pairs()]
    assert sequence_scores(again, rows) == sequence_scores(ours.model, rows)
    assert load_tokenizer(tmp_path / "saved").pad_token_id == 1


def test_figures_by_hand() -> None:
    chosen = np.array([2.0, 0.0, 1.0, 1.0])
    rejected = np.array([1.0, 1.0, 1.0, 0.0])
    figures = pair_figures(chosen, rejected, np.array([3, -2, 0, 5]))
    assert figures["accuracy"] == (1 + 0 + 0.5 + 1) / 4
    assert figures["margin"] == 0.25
    terms = [math.log(1 + math.exp(-m)) for m in (1.0, -1.0, 0.0, 1.0)]
    assert figures["held_out_loss"] == pytest.approx(sum(terms) / 4, rel=1e-12)
    assert figures["accuracy_by_length"] == {
        "longer": {"accuracy": 1.0, "pairs": 2},
        "equal": {"accuracy": 0.5, "pairs": 1},
        "shorter": {"accuracy": 0.0, "pairs": 1},
    }


def test_unknown_arguments_are_named(tmp_path: Path) -> None:
    with quiet_libraries(None), pytest.raises(UsageError, match=r"reward\.trainer\.max_length is"):
        reward_config(tmp_path, extra={"max_length": 5})
