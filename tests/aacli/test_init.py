"""``aac init``: what it recognises, what it asks, and that its recipes are valid and can be run."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from aacli import init as command
from aacli.app import app
from tests.tiny_models import tiny_llama

DIALOGUE = {"prompt": "say 1", "completion": "one"}
PAIR = {"prompt": "how many?", "chosen": "two", "rejected": "none"}
WORLDS = """
class Doors:
    def reset(self, **_): return "which door?"
    def open(self, door: int) -> str:
        "Open a door."
        return "nothing"
    def get_reward(self): return 0.0

class Lever:
    def reset(self, seed=None): return "pull", {}
    def step(self, action): return "", 1.0, True, False, {}

def play(base_url, api_key, task): return 1.0
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's folder: a model, files, a database, a module."""
    folder = tmp_path / "my work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    tiny_llama(folder / "model")
    (folder / "talks.jsonl").write_text(json.dumps(DIALOGUE) + "\n")
    (folder / "pairs.jsonl").write_text(json.dumps(PAIR) + "\n")
    (folder / "starter_worlds.py").write_text(WORLDS)
    connection = sqlite3.connect(folder / "shop.db")
    connection.executescript('CREATE TABLE "tea s" (name TEXT); CREATE TABLE cups (size INT);')
    connection.close()
    return folder


def read(path: str) -> Any:
    return yaml.safe_load(Path(path).read_text())


def test_files_are_recognised_and_the_recipe_is_valid(place, aac):
    made = aac("init", "talks.jsonl", "pairs.jsonl", "model")
    assert made.exit_code == 0, made.stderr
    assert "wrote my-work.yaml" in made.stdout
    assert "next: aac run my-work.yaml --dry-run\n      aac run my-work.yaml\n" in made.stdout
    recipe = read("my-work.yaml")
    assert recipe["model"]["actor"] == "model" and recipe["environment"] == {"name": "sql"}
    assert recipe["sft"]["data"] == "talks.jsonl" and recipe["reward"]["data"] == "pairs.jsonl"
    assert aac("recipes", "validate", "my-work.yaml").stdout == "my-work.yaml is valid.\n"
    text = Path("my-work.yaml").read_text()
    assert text.count("#") > 20 and max(map(len, text.splitlines())) <= 100
    assert aac("recipes", "list", ".").stdout.count("a first recipe from talks.jsonl") == 1


def test_the_next_command_works(place, aac):
    aac("init", "talks.jsonl", "model", "--name", "mine")
    words = ("--set", "sft.max_length=64")
    done = aac("sft", "mine.yaml", "--dry-run", *words)
    assert done.exit_code == 0, done.stderr
    assert "everything is in order" in done.stdout


def test_a_folder_is_looked_into(place, aac):
    (place / "notes.txt").write_text("nothing of use")
    made = aac("init", place, "--name", "all", "--json")
    assert made.exit_code == 0, made.stderr
    assert json.loads(made.stdout) == {"recipe": "all.yaml", "name": "all"}
    recipe = read("all.yaml")
    assert recipe["environment"]["database"] == "shop.db"
    assert recipe["sft"]["data"] == "talks.jsonl" and recipe["model"]["actor"] == "model"


def test_a_database_gets_example_questions_that_hold(place, aac):
    made = aac("init", "shop.db", "model", "--output", "deep/er/shop.yaml")
    assert made.exit_code == 0, made.stderr
    questions = Path("deep/er/shop-questions.jsonl")
    assert [json.loads(line)["question"] for line in questions.read_text().splitlines()] == [
        "how many rows has tea s?", "how many rows has cups?",
    ]  # fmt: skip
    recipe = read("deep/er/shop.yaml")
    assert recipe["environment"]["questions"] == "shop-questions.jsonl"
    assert Path(recipe["environment"]["database"]) == place / "shop.db"
    checked = aac("env", "check", "deep/er/shop.yaml")
    assert checked.exit_code == 0, checked.stderr
    questions.write_text('{"question": "mine?", "sql": "SELECT 1"}\n')
    again = aac("init", "shop.db", "model", "--output", "deep/er/shop.yaml", "--overwrite")
    assert again.exit_code == 0 and "mine?" in questions.read_text()


@pytest.mark.parametrize(("name", "kind"), [("Doors", "trl"), ("Lever", "gymnasium"),
                                            ("play", "program")])  # fmt: skip
def test_a_world_of_ones_own(place, aac, name, kind):
    entry = f"starter_worlds:{name}"
    made = aac("init", entry, "model", "--name", "w")
    assert made.exit_code == 0, made.stderr
    assert read("w.yaml")["environment"] == {kind: entry, "max_turns": 10}
    assert "NEEDED: your world has no expert" in Path("w.yaml").read_text()
    assert aac("recipes", "validate", "w.yaml").exit_code == 0


def test_flags_go_before_what_is_recognised(place, aac):
    made = aac("init", "model", "--model", "some/hub-id", "--environment", "service", "-y")
    assert made.exit_code == 0, made.stderr
    recipe = read("my-work.yaml")
    assert recipe["model"]["actor"] == "some/hub-id"
    assert recipe["environment"] == {"name": "service"}


def test_a_world_of_ones_own_may_be_given_as_the_environment(place, aac):
    made = aac("init", "model", "--environment", "starter_worlds:Lever", "--name", "w")
    assert made.exit_code == 0, made.stderr
    assert read("w.yaml")["environment"]["gymnasium"] == "starter_worlds:Lever"


def test_in_a_terminal_it_asks_for_what_is_missing(place, monkeypatch):
    monkeypatch.setattr(command, "_asks", lambda yes: not yes)
    answers = ["chosen name", "model", "sqll", "starter_worlds:Doors", "no.jsonl", "talks.jsonl"]
    made = CliRunner().invoke(app, ["init"], input="\n".join([*answers, "talks.jsonl", "", ""]))
    assert made.exit_code == 0, made.stderr
    assert "Name of the recipe [my-work]" in made.stderr
    # What is of no use is said and asked again.
    assert "environment 'sqll' is not known" in made.stderr
    assert "no.jsonl does not exist" in made.stderr
    assert "talks.jsonl holds no preferences" in made.stderr
    recipe = read("chosen-name.yaml")
    assert recipe["environment"]["trl"] == "starter_worlds:Doors"
    assert recipe["sft"]["data"] == "talks.jsonl" and "data" not in recipe["reward"]


def test_what_cannot_be_done_is_one_sentence_and_nothing_is_written(place, aac):
    (place / "odd.jsonl").write_text('{"colour": "red"}\n')
    before = sorted(place.iterdir())
    for words, told in [
        (("nothing.jsonl",), "nothing.jsonl does not exist; give data files"),
        (("odd.jsonl",), "odd.jsonl line 1 has colour; expected one of"),
        (("talks.jsonl", "talks.jsonl"), "are both demonstrations; give one of them"),
        (("talks.jsonl",), "no model is named; give --model"),
        (("model", "--environment", "sqll"), "environment 'sqll' is not known; expected one"),
        (("shop.db", "model", "--environment", "service"), "but service is named, too; leave out"),
        (("starter_worlds:Nothing", "model"), "starter_worlds has no Nothing"),
    ]:
        result = aac("init", *words)
        assert result.exit_code == 2, words
        assert told in result.stderr and len(result.stderr.splitlines()) == 1
    assert [p for p in sorted(place.iterdir()) if p.name != "__pycache__"] == before
    aac("init", "model", "--name", "mine")
    again = aac("init", "model", "--name", "mine")
    assert again.exit_code == 2 and "mine.yaml exists; pass --overwrite" in again.stderr


def test_the_tiny_base_is_no_model_for_words_of_ones_own(aac, tmp_path, monkeypatch):
    base = Path(__file__).parents[2] / "recipes/base"
    rows = tmp_path / "said.jsonl"
    rows.write_text('{"instruction": "Hi", "reply": "Hello, what do you need?"}\n' * 4)
    monkeypatch.setattr("stages.evaluation.starter.BASE", base)
    for given, warned in ((("--yes",), False), ((rows, "--yes"), True)):
        out = tmp_path / f"{len(given)}.yaml"
        result = aac("init", *given, "--model", base, "--output", out)
        assert result.exit_code == 0, result.output
        assert ("knows few words" in result.stderr) is warned
