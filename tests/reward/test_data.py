"""Pairs: identical contexts, replies never cut, counts, groups, and refusals by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.common.chat import encode_action, encode_prompt
from stages.common.errors import UsageError
from stages.common.models import load_tokenizer
from stages.interaction.actions import tool_prompt
from stages.reward.data import Pairs, build_pairs, read_preferences
from tests.tiny_models import tiny_llama, tiny_qwen3

ASK = {"role": "user", "content": "How many orders?"}
CALL = {"role": "assistant", "content": '{"name": "list_tables", "arguments": {}}'}
SEEN = {"role": "tool", "content": "orders, customers"}


@pytest.fixture(scope="module", params=[tiny_llama, tiny_qwen3])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(request.param(Path(tmp_path_factory.mktemp("model"))))


def build(
    tokenizer: Any, rows: list[dict[str, Any]], length: int = 500, held: float = 0.2
) -> Pairs:
    return build_pairs(
        tokenizer,
        [(f"row {k}", row) for k, row in enumerate(rows, start=1)],
        max_length=length,
        held_out_fraction=held,
        generator=np.random.default_rng(0),
    )


def row(task: int = 0, **changes: Any) -> dict[str, Any]:
    prompt = [ASK, CALL, SEEN]
    return {
        "prompt": prompt,
        "chosen": "12",
        "rejected": "no idea at all",
        "task_id": task,
    } | changes


def both(pairs: Pairs) -> list[Any]:
    return [*pairs.train, *pairs.held_out]


def test_sides_are_the_prompts_of_rl_and_the_replies_with_stop(tokenizer: Any) -> None:
    pairs = build(tokenizer, [row(0), row(1)])
    prompt = encode_prompt(tokenizer, [ASK, CALL, SEEN])
    for pair in both(pairs):
        for ids, text in ((pair.chosen_ids, "12"), (pair.rejected_ids, "no idea at all")):
            assert list(ids) == prompt + encode_action(tokenizer, [ASK, CALL, SEEN], text)
            assert ids[-1] == tokenizer.eos_token_id
        assert pair.length_difference == len(pair.chosen_ids) - len(pair.rejected_ids) < 0
    assert (pairs.counts.pairs, pairs.counts.cut, pairs.counts.dropped) == (2, 0, 0)


def test_the_middle_of_the_context_goes_alike_on_both_sides(tokenizer: Any) -> None:
    long = row(prompt=[ASK, CALL, SEEN, CALL, {"role": "tool", "content": "12 rows"}])
    whole = both(build(tokenizer, [long, row(1)]))
    longest = max(pair.longest for pair in whole)
    pairs = build(tokenizer, [long, row(1)], longest - 1)
    assert (pairs.counts.pairs, pairs.counts.cut) == (2, 1)
    (cut,) = (p for p in both(pairs) if p.group == "0")
    assert cut.longest <= longest - 1
    chosen, rejected = tokenizer.decode(cut.chosen_ids), tokenizer.decode(cut.rejected_ids)
    stop = tokenizer.eos_token
    assert chosen.endswith("12" + stop) and rejected.endswith("no idea at all" + stop)
    assert chosen.removesuffix("12" + stop) == rejected.removesuffix("no idea at all" + stop)
    assert "How many orders?" in chosen and "12 rows" in chosen and "customers" not in chosen


def test_a_reply_that_cannot_fit_drops_its_pair(tokenizer: Any) -> None:
    long = row(2, chosen="a very long reply " * 10)
    pairs = build(tokenizer, [row(0), row(1), long], 60)
    assert (pairs.counts.pairs, pairs.counts.dropped) == (2, 1)
    with pytest.raises(UsageError, match=r"All 1 pairs were dropped.*raise it"):
        build(tokenizer, [long], 60)


def test_equal_sides_name_their_row(tokenizer: Any) -> None:
    with pytest.raises(UsageError, match="row 2: chosen and rejected are the same; leave"):
        build(tokenizer, [row(0), row(1, rejected="12")])
    # Two dialogues that part only in the middle, which is cut.
    parted = {
        "chosen": [ASK, CALL, SEEN, CALL, SEEN, {"role": "assistant", "content": "12"}],
        "rejected": [
            *(ASK, CALL, {"role": "tool", "content": "nothing here"}, CALL, SEEN),
            {"role": "assistant", "content": "12"},
        ],
        "task_id": 5,
    }
    assert build(tokenizer, [parted, row(1)]).counts.pairs == 2
    room = len(encode_prompt(tokenizer, [ASK, CALL, SEEN])) + 5
    with pytest.raises(UsageError, match="row 1: chosen and rejected are the same after cutting"):
        build(tokenizer, [parted, row(1)], room)


def test_groups_fall_on_one_side(tokenizer: Any) -> None:
    rows = [row(task, chosen=f"{n}") for task in range(10) for n in range(3)]
    pairs = build(tokenizer, rows, held=0.2)
    held, trained = {p.group for p in pairs.held_out}, {p.group for p in pairs.train}
    assert not held & trained and len(held | trained) == 10 and len(pairs.held_out) == 6
    assert len({p.group for p in build(tokenizer, rows, held=0.99).train}) == 1
    with pytest.raises(UsageError, match="at least two prompts"):
        build(tokenizer, [row(1), row(1, chosen="13")])


def test_tools_are_described_as_an_environment_does(tokenizer: Any) -> None:
    tools = [{"name": "look", "description": "Look.", "parameters": {}}]
    pairs = build(tokenizer, [row(0, tools=tools), row(1)])
    (pair,) = (p for p in both(pairs) if p.group == "0")
    shown = [{"role": "system", "content": tool_prompt(tools)}, ASK, CALL, SEEN]
    prompt = encode_prompt(tokenizer, shown)
    assert list(pair.chosen_ids[: len(prompt)]) == prompt


def test_files_are_checked_row_by_row(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps(row(0)) + "\n" + json.dumps({"prompt": "x", "chosen": "y"}) + "\n")
    with pytest.raises(UsageError, match=r"p\.jsonl line 2 has no rejected"):
        read_preferences(file)
    file.write_text(json.dumps(row(0)) + "\n")
    assert read_preferences(file) == [(f"{file} line 1", row(0))]
