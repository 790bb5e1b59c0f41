"""The clean check: figures by hand, what it reads, and what the SFT actor could never do."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from stages.common.errors import UsageError
from stages.common.rows import Row
from stages.common.run_folder import HELD_OUT
from stages.evaluation.instructions import INSTRUCTIONS
from stages.rl.forgetting import CleanCheck, clean_exchanges, form_kept
from stages.rl.learner import ActorLearner
from stages.rl.rows import demonstration
from tests.rl.worlds import score, setup

CALL = '{"name": "query", "arguments": {"sql": "select 1"}}'
OTHER = '{"name": "answer", "arguments": {"value": 1}}'
ASKED = [{"role": "user", "content": "how many?"}]


class Pupil:
    """A scripted actor: ``nats`` a token, one answer to dialogues and one to orders."""

    def __init__(self, nats: float, answer: str, obeys: bool) -> None:
        self.nats, self.answer, self.obeys = nats, answer, obeys
        self.asked = 0

    def surprise(self, rows: Sequence[Row]) -> float:
        return self.nats

    def reply(self, dialogues: Sequence[Sequence[dict[str, str]]], version: int) -> list[str]:
        self.asked = len(dialogues)
        orders = [i.prompt for i in INSTRUCTIONS]
        told = [d[0]["content"] in orders for d in dialogues]
        return [("yes" if self.obeys else "no way") if t else self.answer for t in told]


def check(pupil: Pupil) -> CleanCheck:
    exchanges = [(ASKED, CALL), (ASKED, CALL)]
    rows = [Row((1, 2, 3), (False, True, True))]
    return CleanCheck(
        exchanges, rows, surprise=lambda r: pupil.surprise(r), reply=lambda d, v: pupil.reply(d, v)
    )


def test_figures_stand_beside_those_of_the_sft_actor() -> None:
    """Perplexity from 2 to 6 is threefold; the calls are gone, of twelve orders one was obeyed."""
    pupil = Pupil(math.log(2), CALL, obeys=True)
    clean = check(pupil)
    clean.start(0)
    assert clean.first["clean/perplexity"] == pytest.approx(2)
    assert clean.first["clean/format"] == clean.first["clean/agreement"] == 1
    assert clean.first["clean/instructions"] == pytest.approx(1 / 12)
    pupil.nats, pupil.answer = math.log(6), "four, I think"
    now = clean(3)
    assert now["clean/perplexity_ratio"] == pytest.approx(3)
    assert now["clean/format"] == 0 and now["clean/lost"] == 1
    again = check(pupil)
    again.load_state_dict(json.loads(json.dumps(clean.state_dict())))
    assert again(3) == now


def test_orders_that_were_never_obeyed_are_not_asked_again() -> None:
    pupil = Pupil(1.0, CALL, obeys=False)
    clean = check(pupil)
    clean.start(0)
    assert pupil.asked == 2 + len(INSTRUCTIONS)
    assert "clean/instructions" not in clean(1) and pupil.asked == 2


def test_nothing_to_go_by_is_no_loss() -> None:
    """Without dialogues, an actor that obeyed no order and said too little to measure."""
    pupil = Pupil(1.0, CALL, obeys=False)
    clean = CleanCheck([], [], surprise=pupil.surprise, reply=lambda d, v: [""] * len(d))
    clean.start(0)
    assert clean.first == {} and "clean/lost" not in clean(1)


def test_a_perplexity_beyond_floats_is_a_number_all_the_same() -> None:
    pupil = Pupil(1.0, CALL, obeys=False)
    clean = check(pupil)
    clean.start(0)
    pupil.nats = 1e6
    assert math.isfinite(clean(1)["clean/perplexity_ratio"])


@pytest.mark.parametrize(
    ("wanted", "said", "form", "agreement"),
    [
        (CALL, CALL, 1, 1),
        (CALL, OTHER, 1, 0),
        (CALL, "four", 0, 0),
        (CALL, '{"name": "query", "arguments": ', 0, 0),
        ("four", "five", 1, 1),
        ("four", "", 0, 0),
        ("four", CALL, 0, 0),
    ],
)
def test_form_is_kept_or_lost(wanted: str, said: str, form: int, agreement: int) -> None:
    found = form_kept([wanted, CALL], [said, CALL])
    assert found == {"clean/format": (form + 1) / 2, "clean/agreement": (agreement + 1) / 2}


def test_surprise_is_the_mean_nll_of_reply_tokens(tmp_path: Path) -> None:
    trainer = setup(tmp_path)
    learner = ActorLearner(trainer, epochs=1, minibatch_episodes=2, microbatch_tokens=64)
    rows = [
        Row((1, 3, 2, 4, 5), (False, True, False, True, True)),
        Row((1, 2, 5), (False, False, True)),
    ]
    found = [
        score(trainer.actor, [1], [3])[0],
        *score(trainer.actor, [1, 3, 2], [4, 5]),
        score(trainer.actor, [1, 2], [5])[0],
    ]
    with torch.no_grad():
        got = learner.surprise([demonstration(row) for row in rows])
    assert got == pytest.approx(-sum(found) / 4, rel=1e-5)


def test_a_persons_file_is_read_in_the_shapes_of_stage_one(tmp_path: Path) -> None:
    file = tmp_path / "clean.jsonl"
    rows = [
        {"prompt": "say hello", "completion": "hello"},
        {"messages": [*ASKED, {"role": "assistant", "content": "four"}]},
        {"prompt": "say bye", "completion": "bye"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = clean_exchanges(file, tmp_path, 2)
    assert [reply for _, reply in found] == ["hello", "four"]
    assert list(found[1][0]) == ASKED
    file.write_text('{"prompt": "say hello"}\n')
    with pytest.raises(UsageError, match=r"clean\.jsonl line 1"):
        clean_exchanges(file, tmp_path, 2)


@pytest.mark.parametrize("content", [None, ""])
def test_stage_one_without_held_out_dialogues_is_said(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / HELD_OUT).write_text(content)
    assert clean_exchanges(None, tmp_path, 8) == []
    CleanCheck([], [], surprise=lambda rows: 0.0, reply=lambda asked, _: [""] * len(asked)).start(0)
    assert "told by plain orders alone" in capsys.readouterr().err.replace("\n", " ")
