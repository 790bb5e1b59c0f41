"""State processors through the commands a person types: shown, stored, served, within budget."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from aacli.app import app
from stages.common.chat import encode_prompt
from stages.common.manifest import content_hash, read_manifest
from stages.common.models import load_tokenizer
from stages.interaction.player import load_player
from stages.interaction.states import StateOptions, build_state, replay
from stages.interaction.trajectory import Trajectory
from stages.recipe.models import Recipe
from stages.rl.pool import read_trajectories
from tests.tiny_models import tiny_llama

PIECES: dict[str, dict[str, Any]] = {
    "summary": {"writer": "actor", "max_tokens": 60},
    "facts": {"max_tokens": 60},
    "memory": {"max_tokens": 60, "top_k": 1, "embedder": "hashing"},
}
TITLES = {"summary": "summary:", "facts": "facts:", "memory": "memory:"}
BUDGET = 420


def recipe(actor: Path, pieces: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "states",
        "threads": 1,
        "model": {"actor": str(actor)},
        "environment": {"name": "sql", "max_turns": 5},
        "state": {"exchanges": 1, "tool_prompt": "none", "max_tokens": BUDGET, **pieces},
        "sft": {"demonstrations": 4, "steps": 16, "batch_size": 4, "max_length": 600}
        | {"learning_rate": 0.01},  # so that it says something when it is to write a summary
        "rl": {
            "iterations": 1,
            "episodes": 4,
            "evaluate_every": 0,
            "evaluation_episodes": 2,
            "actor": {"max_new_tokens": 8},
            "critic": {"steps": 1, "batch_size": 4, "warm_up": {"max_iterations": 0}},
            "ppo": {"epochs": 1, "minibatch_episodes": 2},
            "rewards": {"reward_model": 0},
        },
        "evaluation": {"episodes": 2},
    }


@dataclass
class Ran:
    """What ``aac sft`` and ``aac rl`` left."""

    root: Path
    file: Path

    @property
    def episodes(self) -> list[Trajectory]:
        """What the actor played."""
        return read_trajectories(self.root / "rl/trajectories/00000.jsonl")


def aac(*words: Any) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def ran(root: Path, pieces: dict[str, Any]) -> Ran:
    file = root / "states.yaml"
    file.write_text(yaml.safe_dump(recipe(tiny_llama(root / "actor"), pieces)))
    for stage, more in (("sft", ()), ("rl", ("--no-reward",))):
        result = aac(stage, file, "--output-dir", root / stage, *more)
        assert result.exit_code == 0, result.stderr
    return Ran(root, file)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return ran(tmp_path_factory.mktemp("all"), PIECES)


def check(run: Ran, pieces: dict[str, Any]) -> None:
    """Every piece stands in the prompts' ids, played and demonstrated; none is too long."""
    tokenizer = load_tokenizer(run.root / "rl")
    seen = dict.fromkeys(pieces, 0)
    for turn in [turn for episode in run.episodes for turn in episode.turns]:
        assert len(turn.prompt_ids) <= BUDGET
        text = tokenizer.decode(turn.prompt_ids)
        for name in pieces:
            assert (TITLES[name] in text) == (name in turn.produced)
            seen[name] += name in turn.produced
        if "left" in turn.produced:
            assert list(turn.prompt_ids) == encode_prompt(tokenizer, turn.messages)
        for item in turn.produced.get("facts", {}).get("items", ()):
            assert item["turn"] < turn.produced["left"]
    assert all(seen.values()), seen
    rows = [json.loads(line) for line in (run.root / "sft/rows.jsonl").read_text().splitlines()]
    shown = "\n".join(tokenizer.decode(row["input_ids"]) for row in rows)
    assert all(TITLES[name] in shown for name in pieces)


def test_each_piece_is_shown_and_no_budget_exceeded(everything: Ran) -> None:
    check(everything, PIECES)


@pytest.mark.full
@pytest.mark.parametrize("name", PIECES)
def test_each_piece_alone(name: str, tmp_path: Path) -> None:
    pieces = {name: PIECES[name] | ({"writer": "rules"} if name == "summary" else {})}
    check(ran(tmp_path, pieces), pieces)


def test_the_frozen_sft_actor_writes_the_summaries(everything: Ran) -> None:
    sft = everything.root / "sft"
    made = [t.produced["summary"] for e in everything.episodes for t in e.turns[2:]]
    itself = f"{sft}@{content_hash(sft)[:12]}"
    assert itself in {row["writer"] for row in made} <= {itself, "rules"}
    assert all(row["text"] for row in made)


def test_episodes_on_disk_hold_the_whole_state(everything: Ran) -> None:
    """Rebuilt from a file's turns, the processors go on with the very prompts that were shown."""
    options = StateOptions.of(read_manifest(everything.root / "rl").state)
    options = options.written_by(everything.root / "sft")
    tokenizer = load_tokenizer(everything.root / "rl")
    state = build_state(options, lambda messages: len(encode_prompt(tokenizer, messages)))
    for episode in everything.episodes:
        for upto in (2, len(episode.turns) - 1):
            shown = replay(state, episode.with_turns(episode.turns[:upto])).render()
            assert shown == list(episode.turns[upto].messages)


def test_the_actor_is_served_with_the_processors_it_was_trained_with(everything: Ran) -> None:
    """Whatever the recipe at hand says; the writer is the SFT actor named in the manifest."""
    plain = Recipe.model_validate(recipe(everything.root / "actor", {}))
    sections = {"model": plain.model, "sampling": plain.rl.actor, "state": plain.state}
    for folder in ("rl", "sft"):
        served = load_player(everything.root / folder, **sections).state
        assert read_manifest(everything.root / folder).state["facts"] == PIECES["facts"] | {
            "model": None,
            "questions": [],
        }
        assert served.summary.writer == str(everything.root / "sft")
        assert (served.max_tokens, served.memory.top_k) == (BUDGET, 1)
    result = aac("eval", everything.file, "--actor", everything.root / "rl", "--json")
    assert result.exit_code == 0, result.stderr


def test_summaries_without_their_writer_are_refused(everything: Ran, tmp_path: Path) -> None:
    folder = tmp_path / "moved/rl"
    shutil.copytree(everything.root / "rl", folder)
    row = json.loads((folder / "manifest.json").read_text())
    row["parents"]["sft"]["path"] = str(tmp_path / "gone")
    (folder / "manifest.json").write_text(json.dumps(row))
    result = aac("eval", everything.file, "--actor", folder)
    assert result.exit_code == 2
    assert "are written by the SFT actor it was trained from" in result.stderr
    shutil.copytree(everything.root / "sft", folder.parent / "sft")
    assert aac("eval", everything.file, "--actor", folder).exit_code == 0, (
        "beside it is near enough"
    )


def test_a_memory_without_its_encoder_is_one_sentence(everything: Ran, tmp_path: Path) -> None:
    words = ["--dry-run", "--output-dir", tmp_path, "--set", "state.memory.embedder=no/such"]
    result = aac("sft", everything.file, *words)
    assert result.exit_code == 2 and "Traceback" not in result.stderr
    last = result.stderr.splitlines()[-1]  # before it, that the learning rate is unusual
    assert last.startswith("aac: state.memory.embedder = no/such could not be loaded")
