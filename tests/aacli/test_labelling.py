"""A person labels preferences at the terminal (B11), and their file trains the reward model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from aacli.app import app
from stages.evaluation import labelling
from stages.interaction.actions import format_call
from tests.tiny_models import tiny_llama

RECIPE = """
name: tiny
threads: 1
model: {{actor: {actor}}}
environment: {{name: sql, max_turns: 3}}
state: {{tool_prompt: none, max_tokens: 512}}
reward: {{base: actor, tasks: 4, batch_size: 2, held_out_fraction: 0.25, max_length: 512}}
rl: {{actor: {{max_new_tokens: 6}}}}
"""
OUT = Path("runs/tiny/human-preferences.jsonl")


@pytest.fixture(scope="module")
def actor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "actor")


@pytest.fixture
def place(tmp_path: Path, actor: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with tiny.yaml in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(RECIPE.format(actor=actor))
    return tmp_path


def label(actor: Path, typed: str, *words: Any) -> Any:
    """``aac collect preferences --human`` with these lines on the keyboard."""
    line = ["collect", "preferences", "tiny.yaml", "--human", "--actor", actor, *words]
    return CliRunner().invoke(app, [str(word) for word in line], input=typed)


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in OUT.read_text("utf-8").splitlines()]


def session() -> list[dict[str, Any]]:
    return json.loads(labelling.session_path(OUT).read_text("utf-8"))["pairs"]


def test_what_a_person_says_is_kept_resumed_and_trained_on(place, actor):
    begun = label(actor, "1\nboth?\nSKIP\n2\nquit\n")
    assert begun.exit_code == 0, begun.stderr
    first, second = rows()
    pairs = session()
    assert [p["label"] for p in pairs[:4]] == ["1", "skip", "2", None]
    for row, pair, better in ((first, pairs[0], 0), (second, pairs[2], 1)):
        assert row["prompt"] == pair["prompt"] and row["task_id"] == pair["task_id"]
        assert row["chosen"] == [{"role": "assistant", "content": pair["replies"][better]}]
        assert row["rejected"] == [{"role": "assistant", "content": pair["replies"][1 - better]}]
    assert f"pair 4 of {len(pairs)}" in begun.stdout
    assert "'both?' is no answer; type 1, 2, skip or quit." in begun.stdout
    assert f"2 of {len(pairs)} pairs labelled, 1 skipped" in begun.stdout
    assert {cell_len(x) for x in begun.stdout.splitlines() if "│" in x} == {80}
    # The same command goes on behind the third pair; an end of input leaves, too.
    on = label(actor, "1\n" * 6, "--json")
    result = json.loads(on.stdout)
    assert (result["rows"], result["skipped"], result["left"]) == (8, 1, len(pairs) - 9)
    assert f"going on after 3 of {len(pairs)} pairs" in on.stderr
    assert "pair 4 of" in on.stderr and "pair 3 of" not in on.stderr
    assert rows()[:2] == [first, second]
    assert [p | {"label": None} for p in session()] == [p | {"label": None} for p in pairs]
    words = ["train-reward", "tiny.yaml", "--set", f"reward.data={OUT}", "--output-dir", "reward"]
    trained = CliRunner().invoke(app, words)
    assert trained.exit_code == 0, trained.stderr
    manifest = json.loads((place / "reward" / "manifest.json").read_text())
    assert manifest["data"] == {str(OUT): result["fingerprint"]}
    assert manifest["metrics"]["pairs"] == 8


def test_nobody_elses_file_is_written_over(place, actor):
    assert label(actor, "1\n").exit_code == 0
    kept = OUT.read_text()
    other = label(actor, "1\n", "--seed", 9)
    assert other.exit_code == 2 and "begun with another recipe or actor" in other.stderr
    OUT.write_text(json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}) + "\n")
    strange = label(actor, "1\n")
    assert strange.exit_code == 2 and "not of its labelling session" in strange.stderr
    labelling.session_path(OUT).unlink()
    alone = label(actor, "1\n")
    assert alone.exit_code == 2 and "is no labelling session" in alone.stderr
    assert label(actor, "1\n", "--overwrite").exit_code == 0 and OUT.read_text() == kept


def test_an_answer_is_on_disk_before_the_next_question(place, actor, monkeypatch):
    """What was said survives whatever happens while the next answer is awaited."""
    said = iter(["2"])

    def gone(self: Any, prompt: str) -> str:
        try:
            return next(said)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(labelling.Terminal, "ask", gone)
    assert label(actor, "").exit_code == 130
    assert len(rows()) == 1 and session()[0]["label"] == "2"
    OUT.unlink()  # as if it had ended between the two files
    monkeypatch.undo()
    monkeypatch.chdir(place)
    assert label(actor, "quit\n").exit_code == 0 and len(rows()) == 1


def test_only_preferences_are_labelled(place):
    line = ["collect", "demonstrations", "tiny.yaml", "--human"]
    refused = CliRunner().invoke(app, line)
    assert refused.exit_code == 2 and "--human chooses between replies" in refused.stderr


def test_long_states_are_shown_by_their_ends():
    prompt = [{"role": "user", "content": f"message {n}"} for n in range(9)]
    assert labelling.state_lines(prompt) == [
        "user: message 0",
        "(3 messages between)",
        *[f"user: message {n}" for n in range(4, 9)],
    ]
    assert labelling.state_lines(prompt[:6]) == [f"user: message {n}" for n in range(6)]


def test_replies_with_brackets_are_shown_as_they_are(capsys):
    call = format_call("query", {"sql": "SELECT [red]x[/red] FROM t"})
    labelling.show(labelling.pair_table({"replies": [call, "[/] plain"]}))
    shown = capsys.readouterr().out
    assert "[/] plain" in shown and "[red]" in shown.replace("\n", "")
