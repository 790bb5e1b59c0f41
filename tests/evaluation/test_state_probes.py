"""The probes through their command: what is recalled, at what cost; and that they can fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stages.evaluation.long_episodes import long_episode
from stages.evaluation.state_probes import AGES, SHUFFLED, WINDOW, main


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    output = tmp_path_factory.mktemp("probes") / "below/states.json"
    main(["--episodes", "1", "--output", str(output)])
    written: dict[str, Any] = json.loads(output.read_text())
    assert written["settings"]["embedder"] == "hashing"
    return written["processors"]


def test_late_turns_cost_the_tokens_of_early_ones(figures: dict[str, Any]) -> None:
    """Turn 40 against turn 10 of 60; times are measured by the command, not tested."""
    for name, row in figures.items():
        assert row["tokens"]["ratio"] <= 1.2, name
        assert row["tokens"]["most"] <= WINDOW["max_tokens"], name
        assert row["seconds"]["40"] > 0


def test_facts_and_memory_recall_what_the_window_has_lost(figures: dict[str, Any]) -> None:
    recall = {name: row["recall"] for name, row in figures.items()}
    for age in map(str, AGES):
        assert recall["window"][age] == 0
        assert recall["memory"][age] >= 0.9
        assert recall["facts"][age] >= 0.9
        assert recall["all"][age] >= 0.9
        assert recall[SHUFFLED][age] <= 0.2, "retrieval is what the memory is worth"
    assert recall["summary"]["6"] > recall["summary"]["40"]


def test_a_summary_is_shorter_and_forgets(figures: dict[str, Any]) -> None:
    summary = figures["summary"]["summary"]
    assert summary["compression"] > 10
    assert summary["newest_5_kept"] > summary["facts_kept"] > 0


def test_long_episodes_tell_each_code_once() -> None:
    one, same = long_episode(60, 3), long_episode(60, 3)
    assert one == same and one != long_episode(60, 4)
    whole = "\n".join(str(m["content"]) for turn in one.turns for m in turn.observation)
    assert all(whole.count(told.code) == 1 for told in one.told)
    assert all(told.code not in told.question for told in one.told)


def test_only_some_and_a_summary_of_a_model(tmp_path: Path) -> None:
    from tests.tiny_models import tiny_llama

    writer = tiny_llama(tmp_path / "writer")
    words = ["--only", "summary", "--writer", str(writer), "--episodes", "1", "--turns", "46"]
    main([*words, "--output", str(tmp_path / "states.json")])
    written = json.loads((tmp_path / "states.json").read_text())
    assert list(written["processors"]) == ["summary"]
    assert written["settings"]["writer"] == str(writer)
