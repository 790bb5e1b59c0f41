"""Scores against one plain Hugging Face forward per reply, without padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stages.common import scores
from stages.common.libraries import quiet_libraries
from stages.common.models import load_tokenizer, new_reward_model, score_padding
from stages.common.scores import reply_scores, scores_every_token, sequence_scores
from tests.tiny_models import tiny_llama, tiny_qwen3


@pytest.fixture(scope="module", params=[tiny_llama, tiny_qwen3])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = request.param(Path(tmp_path_factory.mktemp("model")))
    tokenizer = load_tokenizer(folder)
    torch.manual_seed(0)
    with quiet_libraries(None):
        made = new_reward_model(folder)
    made.config.pad_token_id = tokenizer.convert_tokens_to_ids(score_padding(tokenizer))
    return made


def sequences() -> list[tuple[int, ...]]:
    """Replies end with the stop token (1 or 2), which also stands inside."""
    rng = np.random.default_rng(2)
    return [(*rng.integers(1, 300, size=n).tolist(), 1) for n in (5, 17, 9, 30, 2)]


def plain(model: Any, ids: tuple[int, ...]) -> float:
    with torch.no_grad():
        return float(model(torch.tensor([ids])).logits[0, 0])


def test_padding_and_order_change_nothing(model: Any) -> None:
    rows = sequences()
    expected = [plain(model, row) for row in rows]
    assert sequence_scores(model, rows) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert sequence_scores(model, rows[::-1], max_tokens=40) == pytest.approx(
        expected[::-1], rel=1e-5, abs=1e-6
    )
    assert sequence_scores(model, []) == []


def test_all_replies_of_a_row_in_one_forward(model: Any) -> None:
    assert scores_every_token(model)
    rows, ends = sequences(), [[3, 6], [18], [1, 4, 10], [31], [2]]
    expected = [
        [plain(model, row[:e]) for e in found] for row, found in zip(rows, ends, strict=True)
    ]
    for got, wanted in zip(reply_scores(model, rows, ends), expected, strict=True):
        assert got == pytest.approx(wanted, rel=1e-5, abs=1e-6)


def test_the_score_is_read_at_the_stop_token(model: Any) -> None:
    row = sequences()[1]
    one, other = sequence_scores(model, [row, (*row[:-1], 9)])
    assert abs(one - other) > 1e-6


def test_where_a_foreign_head_pads_with_its_stop_token(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a model reads before the stop token; both ways of scoring follow it."""
    monkeypatch.setattr(model.config, "pad_token_id", 1)
    rows = sequences()
    ends = [[len(row)] for row in rows]
    expected = [plain(model, row) for row in rows]
    assert sequence_scores(model, rows) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    found = [score for (score,) in reply_scores(model, rows, ends)]
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_mode_and_gradients_are_left_alone(model: Any) -> None:
    model.train()
    sequence_scores(model, sequences())
    assert model.training
    model.eval()
    assert all(p.grad is None for p in model.parameters())
    assert not scores_every_token(torch.nn.Linear(1, 1)) and scores.MAX_TOKENS > 0
