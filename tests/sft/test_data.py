"""From dialogues and episodes to rows: what is learned, what is held out, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.common.chat import encode_prompt
from stages.common.errors import UsageError
from stages.common.models import load_tokenizer
from stages.common.rows import Row, action_spans
from stages.interaction.actions import tool_prompt
from stages.interaction.trajectory import SLIP, Action, Trajectory, Turn
from stages.sft.data import (
    Example,
    SftRows,
    build_rows,
    episode_examples,
    only_successful,
    read_examples,
)
from tests.tiny_models import tiny_llama, tiny_qwen3

ASK = {"role": "user", "content": "How many orders?"}
CALL = '{"name": "list_tables", "arguments": {}}'
SEEN = {"role": "tool", "content": "orders"}


@pytest.fixture(scope="module", params=[tiny_llama, tiny_qwen3])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(request.param(Path(tmp_path_factory.mktemp("model"))))


def build(tokenizer: Any, examples: list[Example], length: int = 500, held: float = 0) -> SftRows:
    return build_rows(
        tokenizer,
        examples,
        max_length=length,
        validation_fraction=held,
        generator=np.random.default_rng(0),
    )


def learned(tokenizer: Any, row: Row) -> list[str]:
    stop = tokenizer.eos_token
    texts = [tokenizer.decode(row.input_ids[a:b]) for a, b in action_spans(row.action_mask)]
    assert all(text.endswith(stop) for text in texts)
    return [text.removesuffix(stop) for text in texts]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def episode(success: bool = True, **changes: Any) -> Trajectory:
    """Two turns over a growing transcript, as the window state shows it."""
    again = (ASK, {"role": "assistant", "content": CALL}, SEEN)
    turns = (
        Turn(0, (ASK,), Action(CALL), (SEEN,)),
        Turn(1, again, Action("12"), ()),
    )
    whole = Trajectory("t1", "count", "shop", "goal", turns=turns, success=success)
    return replace(whole, **changes)


def test_an_episode_is_one_row_with_the_prompts_of_rl(tokenizer: Any) -> None:
    (row,) = build(tokenizer, episode_examples([episode()])).train
    assert learned(tokenizer, row) == [CALL, "12"]
    (first, _), (second, _) = action_spans(row.action_mask)
    for place, turn in ((first, 0), (second, 1)):
        shown = encode_prompt(tokenizer, list(episode().turns[turn].messages))
        assert list(row.input_ids[:place]) == shown


def test_a_slip_is_shown_and_not_learned(tokenizer: Any) -> None:
    plain, turns = episode(), list(episode().turns)
    turns[0] = replace(turns[0], info={SLIP: True})
    slipping = episode(turns=tuple(turns))
    (whole,) = build(tokenizer, episode_examples([plain])).train
    (row,) = build(tokenizer, episode_examples([slipping])).train
    assert row.input_ids == whole.input_ids and learned(tokenizer, row) == ["12"]
    # Where a state is compressed nothing of it is left.
    turns[1] = replace(turns[1], messages=(ASK, SEEN))
    rows = build(tokenizer, episode_examples([episode(turns=tuple(turns))])).train
    assert [learned(tokenizer, row) for row in rows] == [["12"]]
    # Nor is stage 3 told that to reproduce it is to remember.
    rows = build(tokenizer, episode_examples([slipping] * 2), held=0.5)
    assert [reply for _, reply in rows.clean] == ["12"]


def test_a_reply_of_weight_0_is_a_slip(tokenizer: Any, tmp_path: Path) -> None:
    call = {"role": "assistant", "content": CALL}
    said = {"role": "assistant", "content": "12"}
    rows = [{"messages": [ASK, call | {"weight": weight}, SEEN, said]} for weight in (0, 1)]
    slip, plain = build(tokenizer, read_examples(write(tmp_path / "w.jsonl", rows))).train
    assert slip.input_ids == plain.input_ids
    assert learned(tokenizer, slip) == ["12"] and learned(tokenizer, plain) == [CALL, "12"]


def test_a_compressed_state_makes_a_row_a_turn(tokenizer: Any) -> None:
    turns = list(episode().turns)
    turns[1] = replace(turns[1], messages=(ASK, SEEN))
    rows = build(tokenizer, episode_examples([episode(turns=tuple(turns))])).train
    assert [learned(tokenizer, row) for row in rows] == [[CALL], ["12"]]


def test_dropped_and_empty_episodes_teach_nothing() -> None:
    silent = (Turn(0, (ASK,), Action("")),)
    episodes = [episode(error="boom"), episode(turns=()), episode(turns=silent)]
    assert episode_examples(episodes) == []


def test_a_file_of_trajectories_equals_the_episodes(tokenizer: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", [episode().to_json(), episode(False).to_json()])
    examples = read_examples(file)
    assert [e.success for e in examples] == [True, False]
    expected = build(tokenizer, episode_examples([episode(), episode(False)]))
    assert build(tokenizer, examples).train == expected.train
    assert len(only_successful(examples, "t")) == 1


def test_whole_dialogues_learn_every_reply_and_instructions_the_last(
    tokenizer: Any, tmp_path: Path
) -> None:
    messages = [ASK, {"role": "assistant", "content": CALL}, SEEN]
    whole = {"messages": [*messages, {"role": "assistant", "content": "12"}]}
    last = {"instruction": "And now?", "history": [["How many orders?", CALL]], "reply": "12"}
    rows = build(tokenizer, read_examples(write(tmp_path / "d.jsonl", [whole, last]))).train
    assert [learned(tokenizer, row) for row in rows] == [[CALL, "12"], ["12"]]
    assert CALL in tokenizer.decode(rows[1].input_ids)


def test_tools_are_described_as_an_environment_does(tokenizer: Any, tmp_path: Path) -> None:
    tools = [{"name": "look", "description": "Look.", "parameters": {}}]
    system = {"role": "system", "content": "Be brief."}
    row = {"messages": [system, ASK, {"role": "assistant", "content": "12"}], "tools": tools}
    (example,) = read_examples(write(tmp_path / "d.jsonl", [row]))
    shown = example.exchanges[0][0]
    assert shown[0] == {"role": "system", "content": "Be brief.\n\n" + tool_prompt(tools)}
    assert list(shown[1:]) == [ASK]


def test_held_out_dialogues_are_whole_and_disjoint(tokenizer: Any) -> None:
    examples = [Example((([ASK], f"reply {k}"),)) for k in range(20)]
    rows = build(tokenizer, examples, held=0.1)
    texts = [learned(tokenizer, row)[0] for row in rows.train + rows.validation]
    assert len(rows.validation) == 2 and sorted(texts) == sorted(
        e.exchanges[0][1] for e in examples
    )
    # One is always left to train on, and a positive share holds out at least one of two.
    assert len(build(tokenizer, examples[:1], held=0.5).train) == 1
    assert len(build(tokenizer, examples[:2], held=0.01).validation) == 1


def test_long_rows_are_cut_and_counted(tokenizer: Any) -> None:
    whole = build(tokenizer, episode_examples([episode()]))
    length = len(whole.train[0])
    cut = build(tokenizer, episode_examples([episode()]), length - 1)
    assert (whole.cut, cut.cut) == (0, 1)
    assert learned(tokenizer, cut.train[0]) == ["12"] and len(cut.train[0]) == length - 1


def test_a_reply_that_cannot_fit_drops_its_row(tokenizer: Any) -> None:
    examples = [Example((([ASK], text),)) for text in ("12", "a long reply " * 20)]
    rows = build(tokenizer, examples, 40)
    assert rows.dropped == 1 and [learned(tokenizer, row) for row in rows.train] == [["12"]]
    with pytest.raises(UsageError, match="No row is left to train on: in all 1 that were dropped"):
        build(tokenizer, examples[1:], 40)


@pytest.mark.parametrize("success", [None, False])
def test_keeping_only_successes_of_none_is_refused(success: bool | None) -> None:
    with pytest.raises(UsageError, match="keeps nothing of the 1 dialogues of d.jsonl"):
        only_successful([Example((), success)], "d.jsonl")


def test_a_foreign_trajectory_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", [{"task_id": "1", "turns": [{"x": 1}]}])
    with pytest.raises(UsageError, match=r"t\.jsonl line 1 .* is no trajectory"):
        read_examples(file)
