"""What is collected can be read by the stages it is collected for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from stages.common.errors import UsageError
from stages.common.models import load_tokenizer
from stages.common.shapes import read_dialogue, read_preference
from stages.evaluation import collect
from stages.evaluation.run import arena_of
from stages.interaction import arena as arena_module
from stages.interaction.actions import format_call
from stages.interaction.generation import Generation, Request
from stages.interaction.player import LoadedActor
from stages.recipe.models import Recipe
from stages.sft.data import build_rows, episode_examples, read_examples
from tests.evaluation import worlds
from tests.tiny_models import tiny_qwen3


def recipe_of(**state: object) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "demo",
            "model": {"actor": "base"},
            "environment": {"name": "sql"},
            "state": {"tool_prompt": "none", **state},
            "sft": {"demonstrations": 12},
            "reward": {"tasks": 4, "samples_per_task": 4},
        }
    )


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_demonstrations_are_one_dialogue_an_episode(tmp_path, capsys):
    path = tmp_path / "new" / "rows.jsonl"
    result = collect.collect_command(recipe_of(), "demonstrations", output=path)
    rows = rows_of(path)
    assert result["rows"] == len(rows) == 12
    assert result["success"] == sum(row["success"] for row in rows) / 12
    for number, row in enumerate(rows):
        dialogue = read_dialogue(f"row {number}", row)
        assert not dialogue.last_reply_only
        assert [m["role"] for m in dialogue.messages[:2]] == ["user", "assistant"]
        assert '"answer"' in dialogue.messages[-1]["content"]
        # The checklist the actor is shown stands under its observations.
        assert "[x] tables" in json.dumps(dialogue.messages[2:])
    assert "12 demonstrations from 12 episodes" in capsys.readouterr().out


@pytest.mark.parametrize("exchanges", [8, 1])
def test_what_an_expert_slips_in_is_learned_from_its_file_as_little_as_without(tmp_path, exchanges):
    path = tmp_path / "rows.jsonl"
    recipe = recipe_of(exchanges=exchanges)
    # A table is guessed at first, so that the first action can be a slip.
    habits = {"slip": 0.4, "guessed_table": 0.5}
    expert = recipe.environment.expert.model_copy(update=habits)
    environment = recipe.environment.model_copy(update={"expert": expert})
    recipe = recipe.model_copy(update={"environment": environment})
    collect.collect_command(recipe, "demonstrations", output=path)
    arena = arena_of(recipe)
    played = arena.demonstrate(arena.tasks("train", 12, recipe.seed), seed=recipe.seed)
    tokenizer = load_tokenizer(tiny_qwen3(tmp_path / "model"))
    one, other = (
        build_rows(
            tokenizer,
            examples,
            max_length=4000,
            validation_fraction=0,
            generator=np.random.default_rng(0),
        ).train
        for examples in (read_examples(path), episode_examples(played))
    )
    assert '"weight": 0' in path.read_text("utf-8") or exchanges == 1
    assert sorted(map(repr, one)) == sorted(map(repr, other))


def test_a_short_window_gives_a_row_per_later_turn(tmp_path):
    path = tmp_path / "rows.jsonl"
    collect.collect_command(recipe_of(exchanges=1), "demonstrations", output=path)
    rows = rows_of(path)
    assert len(rows) > 12
    dialogues = [read_dialogue("row", row) for row in rows]
    whole = [d for d in dialogues if not d.last_reply_only]
    assert len(whole) == 12
    # Every reply is learned once: two in the whole rows, one in each of the others.
    assert all(sum(m["role"] == "assistant" for m in d.messages) == 2 for d in whole)
    later = [d for d in dialogues if d.last_reply_only]
    assert all([m["role"] for m in d.messages] == ["user", "assistant", "tool", "assistant"]
               for d in later)  # fmt: skip


def test_only_successful_ones_if_asked(tmp_path):
    recipe = recipe_of()
    chosen = recipe.model_copy(
        update={"sft": recipe.sft.model_copy(update={"only_successful": True})}
    )
    path = tmp_path / "rows.jsonl"
    result = collect.collect_command(chosen, "demonstrations", output=path)
    assert all(row["success"] for row in rows_of(path))
    assert 0 < result["rows"] < result["episodes"] == 12


class Gambler:
    """Answers a door by its episode's number: one in four is right."""

    def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        return [
            Generation(text=format_call("answer", {"door": request.key[2] % 4}))
            for request in requests
        ]


def test_preferences_rank_replies_by_their_outcome(tmp_path, monkeypatch):
    monkeypatch.setattr(arena_module, "make_environment", lambda options: worlds.Doors())
    loaded = LoadedActor(Gambler(), lambda messages: 0, {"tool_prompt": "none"})
    monkeypatch.setattr(collect, "player", lambda *_, **__: loaded)
    path = tmp_path / "pairs.jsonl"
    result = collect.collect_command(recipe_of(), "preferences", actor="x", output=path)
    rows = rows_of(path)
    assert result["episodes"] == 16 and len(rows) >= 4
    gold = {task.id: task.payload["gold"] for task in worlds.Doors().tasks("train", 4, 0)}
    for row in rows:
        pair = read_preference("row", row)
        assert pair.group == row["task_id"]
        right = format_call("answer", {"door": gold[row["task_id"]]})
        assert pair.chosen[-1]["content"] == right != pair.rejected[-1]["content"]


def test_what_cannot_be_collected(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    with pytest.raises(UsageError, match="cannot collect 'wishes'; expected one of demonstrations"):
        collect.collect_command(recipe_of(), "wishes", output=path)
    with pytest.raises(UsageError, match="give --actor"):
        collect.collect_command(recipe_of(), "preferences", output=path)
    monkeypatch.setattr(arena_module, "make_environment", lambda options: worlds.Mute())
    with pytest.raises(UsageError, match="has no scripted expert"):
        collect.collect_command(recipe_of(), "demonstrations", output=path)
    assert not path.exists()
