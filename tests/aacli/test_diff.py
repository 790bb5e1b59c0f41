"""``aac diff`` as a person types it, for real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stages.interaction.actions import format_call
from stages.interaction.generation import Generation
from stages.interaction.player import LoadedActor
from stages.interaction.states import StateOptions
from tests.tiny_models import tiny_llama

RECIPE = """
name: tiny
threads: 1
model: {{actor: {actor}}}
environment: {{name: sql, max_turns: 3}}
state: {{tool_prompt: none, max_tokens: 512}}
rl: {{actor: {{max_new_tokens: 4}}}}
evaluation: {{episodes: 6}}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two actors and tiny.yaml in it."""
    monkeypatch.chdir(tmp_path)
    tiny_llama(tmp_path / "one")
    tiny_llama(tmp_path / "other", hidden_size=16)
    (tmp_path / "tiny.yaml").write_text(RECIPE.format(actor=tmp_path / "one"))
    return tmp_path


def test_an_actor_against_itself_never_differs(place, aac):
    result = aac("diff", "tiny.yaml", "one", "one", "--json")
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)
    assert (row["won"], row["lost"], row["tasks"]) == (0, 0, 6)
    assert row["both"] + row["neither"] == 6
    assert (row["diverging"], row["divergences"], row["p"]) == (0, [], 1.0)
    assert row["difference"]["mean"] == 0 and row["difference"]["low"] < 0


def test_two_actors_are_shown_side_by_side_where_they_part(place, aac):
    words = ("diff", "tiny.yaml", "one", "other", "--episodes", 4, "--seed", 3, "--show", 2)
    row = json.loads(aac(*words, "--json").stdout)
    assert (row["tasks"], row["seed"], row["a"], row["b"]) == (4, 3, "one", "other")
    assert row["diverging"] == 4 and len(row["divergences"]) == 2
    for part in row["divergences"]:
        assert part["a"]["action"] != part["b"]["action"]
    shown = aac(*words).stdout
    assert shown.count("A: wrong after") == 2 and "4 of 4 episodes diverge" in shown
    assert "Newcombe" in shown and "exact McNemar p = 1" in shown
    assert "A: wrong after" not in aac(*words, "--show", 0).stdout
    greedy = json.loads(aac(*words, "--greedy", "--json").stdout)
    assert greedy["greedy"] and greedy["divergences"] != row["divergences"]


class Knowing:
    """Answers with the gold answer of the task it was told, or with nonsense."""

    def __init__(self, answers: list[str]) -> None:
        self.answers = answers

    def generate(self, requests, *, greedy=False):
        return [
            Generation(text=format_call("answer", {"value": self.answers[request.key[2]]}))
            for request in requests
        ]


def test_won_and_lost_are_counted_and_decisive_episodes_shown(place, aac, monkeypatch):
    from stages.evaluation.run import held_out
    from stages.recipe.load import load_recipe

    tasks = held_out(load_recipe(place / "tiny.yaml"))
    episodes = tasks.arena.demonstrate(tasks.tasks, seed=0)
    gold = [str(episode.initial_privileged["gold_answer"]) for episode in episodes]
    wrong = ["no such value"] * len(gold)
    answers = {"one": gold[:4] + wrong[4:], "other": wrong[:3] + gold[3:5] + wrong[5:]}

    def load(recipe, folder, reviewers):
        return LoadedActor(Knowing(answers[folder]), len, StateOptions())

    monkeypatch.setattr("stages.evaluation.diff.player", load)
    row = json.loads(aac("diff", "tiny.yaml", "one", "other", "--json").stdout)
    counts = {name: row[name] for name in ("won", "lost", "both", "neither")}
    assert counts == {"won": 3, "lost": 1, "both": 1, "neither": 1}
    assert row["p"] == pytest.approx(10 / 16)
    assert row["difference"]["mean"] == pytest.approx(2 / 6)
    assert sum(kind["won"] for kind in row["kinds"].values()) == 3
    assert [part["a"]["success"] for part in row["divergences"]] == [True, True, True]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("one", "nowhere"), "nowhere"),
        (("one", "other", "--episodes", "0"), "evaluation.episodes"),
    ],
)
def test_bad_input_is_one_sentence(place, aac, words, sentence):
    result = aac("diff", "tiny.yaml", *words)
    assert result.exit_code == 2 and result.stdout == ""
    assert sentence in result.stderr and len(result.stderr.strip().splitlines()) == 1
