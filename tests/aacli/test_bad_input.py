"""The catalogue of errors: each bad input is one sentence and exit code 2, and changes nothing.

Beside it stands what looks bad and works, and what a full disk does. Recipes that a person gets
wrong are in ``tests/recipe/bad_recipes.py``; ``test_errors`` puts them through the command.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from stages.common.run_folder import MANIFEST
from tests.aacli import bad_data, bad_folders, bad_models, bad_pools, bad_worlds
from tests.aacli.bad_input import OUT, PAIRS, REPLIES, Case, Place
from tests.disks import largest_file
from tests.recipe import bad_recipes
from tests.tiny_models import tiny_llama

CASES = (
    *bad_data.CASES,
    *bad_models.CASES,
    *bad_worlds.CASES,
    *bad_folders.CASES,
    *bad_pools.CASES,
)
LINES = "".join(json.dumps(row) + "\n" for row in REPLIES)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture
def place(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path, model)


def refusal(result: Any) -> str:
    """The one sentence of a command that refused."""
    assert result.exit_code == 2, result.output
    (sentence,) = result.stderr.splitlines()
    assert sentence.startswith("aac: ") and sentence.endswith(".")
    assert result.stdout == ""
    return str(sentence)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_bad_input_is_one_sentence_and_changes_nothing(case: Case, place: Place, aac: Any) -> None:
    words = case.make(place)
    before = place.seen()
    sentence = refusal(aac(*words))
    for name in case.names:
        assert name in sentence
    assert place.seen() == before


def test_the_catalogue_is_as_long_as_promised() -> None:
    assert len(CASES) >= 60 and len({case.id for case in CASES}) == len(CASES)
    assert len(bad_recipes.CASES) >= 60


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("BOM.jsonl", b"\xef\xbb\xbf" + LINES.encode()),
        ("CRLF.jsonl", LINES.replace("\n", "\r\n").encode()),
        ("both.jsonl", b"\xef\xbb\xbf" + LINES.replace("\n", "\r\n").encode()),
        ("no-last-newline.jsonl", LINES.rstrip().encode()),
        ("blank-lines.jsonl", ("\n" + LINES.replace("\n", "\n \n")).encode()),
        ("list.json", json.dumps(REPLIES).encode()),
        ("data-key.json", json.dumps({"data": REPLIES}).encode()),
        ("lines.json", LINES.encode()),
        ("separators.jsonl", LINES.replace("one", "o\u2028\u0085e").encode()),
        (
            "mixed.jsonl",
            (json.dumps(REPLIES[0]) + '\n{"instruction": "say two", "reply": "two"}').encode(),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_other_programs_write_is_read(
    name: str, content: bytes, place: Place, aac: Any
) -> None:
    result = aac(*place.sft(place.write(name, content)), "--dry-run", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["dialogues"], found["rows"]) == (2, 1)  # the other one is held out
    assert not (place.root / "out").exists()


def test_rows_of_a_hundred_thousand_tokens_are_cut_and_that_is_said(place: Place, aac: Any) -> None:
    long = "which orders? " * 15_000
    assert len(AutoTokenizer.from_pretrained(place.model)(long)["input_ids"]) >= 100_000
    rows = [REPLIES[0] | {"prompt": long}, REPLIES[1]]
    pairs = [PAIRS[0] | {"prompt": long}, PAIRS[1]]
    for words in (place.sft(place.rows(*rows)), place.reward(place.rows(*pairs, name="p.jsonl"))):
        result = aac(*words, "--dry-run", "--json")
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)["cut"] == 1


@pytest.mark.parametrize("pad", [None, "<|stop|>"], ids=["no pad token", "pad is eos"])
def test_a_tokenizer_may_lack_a_pad_token_of_its_own(
    pad: str | None, place: Place, aac: Any
) -> None:
    def change(folder: Path) -> None:
        file = folder / "tokenizer_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"pad_token": pad}))

    result = aac(*place.copied("mine", change))
    assert result.exit_code == 0, result.stderr
    assert (place.root / OUT / MANIFEST).is_file()


def test_a_world_that_never_ends_is_ended_by_the_limit_of_turns(place: Place, aac: Any) -> None:
    words = [*bad_worlds.world(place, "Room")[-2:], "--policy", "random", "--json"]
    result = aac("eval", "demo.yaml", *words)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["turns"], found["success"]) == (3, 0)


def test_a_disk_that_is_full_at_the_start_is_bad_input(place: Place, aac: Any) -> None:
    words = place.sft(place.rows(*REPLIES))
    before = place.seen()
    with largest_file(4):
        result = aac(*words)
    sentence = refusal(result)
    assert f"{OUT} cannot be written (File too large)" in sentence and "--output-dir" in sentence
    assert place.seen() == before


def test_an_overwritten_run_comes_back_after_bad_input(place: Place, aac: Any) -> None:
    bad_folders.finished(place, OUT, "reward")
    words = [*place.reward(place.rows(*[PAIRS[0]] * 3)), "--overwrite"]
    before = place.seen()
    assert "all 3 pairs have the same prompt" in refusal(aac(*words))
    assert place.seen() == before
