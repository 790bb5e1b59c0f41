"""``aac chat`` by the words a person types: with a model folder, outside of a world."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aacli.app import app
from tests.tiny_models import tiny_qwen3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_qwen3(Path(tmp_path_factory.mktemp("talk")) / "my model")


def talk(*words: object, typed: str = "") -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a chat with ``typed`` as its input."""
    result = CliRunner().invoke(app, ["chat", *map(str, words)], input=typed)
    return result.exit_code, result.stdout, result.stderr


def test_a_model_folder_is_talked_with_freely(model):
    words = ("--set", "rl.actor.max_new_tokens=4")
    code, out, err = talk(model, *words, "--json", typed="hello there\nand now?\nexit\nmore\n")
    assert code == 0, err
    (row,) = json.loads(out)
    assert (row["question"], row["turns"]) == ("hello there", 2)
    assert err.count("agent: ") == 2


def test_a_recipe_with_its_world_left_out(model, tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"name: r\nmodel: {{actor: {json.dumps(str(model))}}}\n"
                      "environment: {name: sql}\nrl: {actor: {max_new_tokens: 4}}\n")  # fmt: skip
    code, out, err = talk(recipe, "--free", "--actor", model, typed="hello\n")
    assert code == 0, err
    assert out.startswith("agent: ") and "answer:" not in out


def test_calls_are_shown_in_full_when_asked(model, tmp_path):
    """The tiny model only babbles, so what counts is that the flag is taken."""
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"name: r\nmodel: {{actor: {json.dumps(str(model))}}}\n"
                      "environment: {name: sql, max_turns: 1}\n"
                      "rl: {actor: {max_new_tokens: 4}}\n")  # fmt: skip
    code, out, err = talk(recipe, "--actor", model, "--open", "--question", "how many orders?")
    assert code == 0, err
    assert "The agent works in sql" in out and "no answer within 1 turns" in out


def test_what_cannot_be_done_is_one_sentence(model):
    for words, told in [
        ((model, "--actor", model), "is the model to talk with; leave out --actor"),
        ((model, "--question", "?"), "a free conversation takes no --question"),
        ((model.parent,), "has no config.json, so it is no Hugging Face model folder"),
    ]:
        code, out, err = talk(*words)
        assert (code, out) == (2, "") and told in err and len(err.splitlines()) == 1


def test_an_interrupt_is_no_matter_of_checkpoints(model, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stages.evaluation.chat.player", interrupted)
    assert talk(model) == (130, "", "stopped.\n")
