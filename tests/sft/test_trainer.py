"""TRL's trainer on our rows: its loss, its gradients and its steps against definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trl import SFTTrainer
from trl.trainer import sft_trainer

from stages.common.errors import RunError, UsageError
from stages.common.libraries import quiet_libraries
from stages.common.models import load_actor, load_tokenizer
from stages.common.rows import Row
from stages.sft import chunk
from stages.sft.trainer import make_dataset, make_trainer, sft_config
from tests.tiny_models import tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(Path(tmp_path_factory.mktemp("llama")))


def rows(count: int = 6) -> list[Row]:
    """Rows of different length with gaps; the pad id (eos, 1) also occurs inside them."""
    rng = np.random.default_rng(1)
    made = []
    for k in range(count):
        ids = rng.integers(1, 300, size=9 + 2 * k)
        mask = rng.random(len(ids)) < 0.4
        mask[0], mask[-1], ids[-1] = False, True, 1
        made.append(Row(tuple(ids.tolist()), tuple(mask.tolist())))
    return made


def trainer(folder: Path, out: Path, data: list[Row], **ours: Any) -> Any:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": len(data),
        "max_steps": 1,
        "learning_rate": 0.1,
        "bf16": False,
        "save_strategy": "no",
        "optim": "sgd",
        "max_grad_norm": 1e9,
        "lr_scheduler_type": "constant",
        "loss_type": "chunked_nll",
    }
    config = sft_config(out, extra={}, **(settings | ours))
    model = load_actor(folder, frozen=("embed_tokens",))
    return make_trainer(model, load_tokenizer(folder), config, make_dataset(data))


def cross_entropy(model: torch.nn.Module, data: list[Row]) -> torch.Tensor:
    """Mean of -log p over the learned tokens, row by row, without padding or masks."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for row in data:
        ids = torch.tensor([row.input_ids])
        logp = torch.log_softmax(model(ids).logits[0].double(), -1)
        for t, learned in enumerate(row.action_mask):
            if learned:
                total = total - logp[t - 1, ids[0, t]]
                count += 1
    return total / count


@pytest.mark.parametrize(
    ("loss_type", "multiple"), [("chunked_nll", None), ("chunked_nll", 16), ("nll", None)]
)
def test_trls_loss_and_step_equal_masked_cross_entropy(
    folder: Path, tmp_path: Path, loss_type: str, multiple: int | None
) -> None:
    """One SGD step at rate 0.1 moves every weight by -0.1 times the oracle's gradient."""
    with quiet_libraries(None):
        ours = trainer(folder, tmp_path, rows(), loss_type=loss_type, pad_to_multiple_of=multiple)
        assert isinstance(ours, SFTTrainer)
        longest = max(map(len, rows()))
        width = next(iter(ours.get_train_dataloader()))["input_ids"].shape[1]
        assert width == (-(-longest // multiple) * multiple if multiple else longest)
        oracle = load_actor(folder, frozen=("embed_tokens",)).double()
        loss = cross_entropy(oracle, rows())
        loss.backward()
        result = ours.train()
    assert result.training_loss == pytest.approx(float(loss.detach()), rel=1e-5)
    before = load_actor(folder).state_dict()
    after = ours.model.state_dict()
    for name, parameter in oracle.named_parameters():
        if parameter.grad is None:
            assert torch.equal(after[name], before[name]), name
            continue
        expected = (before[name].double() - 0.1 * parameter.grad).float()
        torch.testing.assert_close(after[name], expected, rtol=1e-5, atol=1e-7)


def test_frozen_and_tied_weights_stay_equal(folder: Path, tmp_path: Path) -> None:
    with quiet_libraries(None):
        ours = trainer(folder, tmp_path, rows(), max_steps=3, optim="adamw_torch")
        before = {n: p.clone() for n, p in ours.model.named_parameters()}
        ours.train()
    for name, parameter in ours.model.named_parameters():
        assert torch.equal(parameter, before[name]) == ("embed_tokens" in name), name
    assert ours.model.lm_head.weight.data_ptr() == ours.model.model.embed_tokens.weight.data_ptr()


def test_tokens_outside_the_mask_are_no_targets(folder: Path, tmp_path: Path) -> None:
    """Gradients of two batches that differ only in labels off the mask would differ if used.

    The last token of a row is never an input to any prediction, so as a pure target it must not
    matter at all when it is off the mask.
    """
    data = [Row((*row.input_ids, 7), (*row.action_mask, False)) for row in rows()]
    other = [Row((*row.input_ids, 250), (*row.action_mask, False)) for row in rows()]
    states = []
    for name, batch in (("a", data), ("b", other), ("c", rows())):
        with quiet_libraries(None):
            ours = trainer(folder, tmp_path / name, batch)
            ours.train()
        states.append(ours.model.state_dict())
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name
        torch.testing.assert_close(tensor, states[2][name], rtol=1e-5, atol=1e-7)


def test_in_bfloat16_the_loss_of_a_step_is_ours(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL's own rounds its softmax."""
    monkeypatch.setattr(chunk, "_theirs", None)  # would fail if it were asked
    monkeypatch.setattr(sft_trainer, "_chunk", None)
    with quiet_libraries(None):
        result = trainer(folder, tmp_path, rows(), bf16=True).train()
    exact = float(cross_entropy(load_actor(folder), rows()).detach())
    assert result.training_loss == pytest.approx(exact, rel=0.01)


def test_labels_are_the_masked_ids() -> None:
    row = Row((5, 6, 1, 7, 1), (False, True, True, False, True))
    assert make_dataset([row])[0] == {"input_ids": [5, 6, 1, 7, 1], "labels": [-100, 6, 1, -100, 1]}


def test_accumulation_equals_one_large_batch(folder: Path, tmp_path: Path) -> None:
    """One divisor per step: short rows do not weigh more than long ones."""
    states = []
    for name, size, steps in (("whole", 6, 1), ("pieces", 1, 6)):
        with quiet_libraries(None):
            ours = trainer(
                folder,
                tmp_path / name,
                rows(),
                per_device_train_batch_size=size,
                gradient_accumulation_steps=steps,
            )
            ours.train()
        states.append(ours.model.state_dict())
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"packing": True}, r"sft\.trainer\.packing is set by the recipe's own keys"),
        ({"lerning_rate": 1}, r"sft\.trainer\.lerning_rate is unknown to TRL"),
        ({"optim": "nothing"}, r"sft\.trainer is not accepted by TRL"),
    ],
)
def test_trainer_arguments(tmp_path: Path, extra: dict[str, Any], message: str) -> None:
    with quiet_libraries(None), pytest.raises(UsageError, match=message):
        sft_config(tmp_path, extra=extra)


def test_further_arguments_reach_trl(tmp_path: Path) -> None:
    with quiet_libraries(None):
        config = sft_config(tmp_path, extra={"adam_beta2": 0.9, "weight_decay": 0.1}, bf16=False)
    assert (config.adam_beta2, config.weight_decay) == (0.9, 0.1)


def test_a_loss_that_is_no_number_ends_the_run(folder: Path, tmp_path: Path) -> None:
    with quiet_libraries(None):
        ours = trainer(folder, tmp_path, rows(), max_steps=3)
        with torch.no_grad():
            ours.model.model.norm.weight.fill_(float("inf"))
        before = {n: p.clone() for n, p in ours.model.named_parameters()}
        with pytest.raises(RunError, match="the loss is nan after step 0"):
            ours.train()
    for name, parameter in ours.model.named_parameters():
        assert torch.equal(parameter, before[name]), name
