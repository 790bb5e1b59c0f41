"""Reviews under demonstrations: whose they are, what they must not know, that SFT shows them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

from aacli.app import app
from stages.common.models import load_tokenizer
from stages.common.run_folder import read_rows
from stages.interaction.arena import Arena
from stages.interaction.environments.sql import SqlOptions
from stages.interaction.trajectory import Trajectory
from stages.recipe.models import RlSection
from stages.rl.critic.demonstrated import AGES, HALVES, review_demonstrations
from stages.rl.critic.reviewer import in_words
from stages.rl.rewarding import build_rewarding
from tests.rl.test_reviewer import RL
from tests.tiny_models import tiny_llama

WORDS = ["review: high", "review: low", "review: normal"]
LEARNS = {"learning_rate": 0.01, "steps": 10, "batch_size": 8, "hidden_size": 16}
SECTION = RlSection.model_validate(RL | {"critic": RL["critic"] | LEARNS})


@pytest.fixture(scope="module")
def episodes() -> list[Trajectory]:
    arena = Arena(SqlOptions(), {})
    return arena.demonstrate(arena.tasks("train", 40, 0), seed=0)


def reviews(episodes: Sequence[Trajectory]) -> list[list[str]]:
    return review_demonstrations(SECTION, episodes, state_tokens=700, seed=3)


@pytest.fixture(scope="module")
def said(episodes: list[Trajectory]) -> list[list[str]]:
    return reviews(episodes)


def test_every_turn_gets_one_of_the_words_and_the_same_again(
    episodes: list[Trajectory], said: list[list[str]]
) -> None:
    before = torch.get_rng_state()
    again = reviews(episodes)
    assert torch.equal(torch.get_rng_state(), before), "SFT's own random numbers are not touched"
    assert [len(words) for words in said] == [len(e.turns) for e in episodes]
    assert sorted(set(itertools.chain(*said))) == WORDS
    assert again == said


def test_a_review_knows_neither_the_facts_nor_how_its_own_episode_ends(
    episodes: list[Trajectory], said: list[list[str]]
) -> None:
    facts = [replace(e, initial_privileged={"gold": str(k)}) for k, e in enumerate(episodes)]
    assert reviews(facts) == said
    for k in (7,):
        last = replace(episodes[k].turns[-1], rewards={"success": -100.0})
        other = episodes[k].with_turns([*episodes[k].turns[:-1], last])
        changed = reviews([*episodes[:k], other, *episodes[k + 1 :]])
        assert changed[k][:-1] == said[k][:-1]
        halves = [[w for n, w in enumerate(x) if n % 2 != k % 2] for x in (changed, said)]
        assert halves[0] != halves[1], "the critic of the other half has learned from it"


def test_reviews_say_what_others_earned_after_such_a_turn(episodes: list[Trajectory]) -> None:
    """Where every episode with an error fails and all others succeed, an error is bad news."""
    told = []
    for episode in episodes:
        failed = any("error" in str(t.observation) for t in episode.turns)
        turns = [replace(t, rewards={}) for t in episode.turns]
        turns[-1] = replace(turns[-1], rewards={"success": float(not failed)})
        told.append(episode.with_turns(turns))
    said = reviews(told * 2)
    after = {True: [], False: []}  # type: ignore[var-annotated]
    for episode, words in zip(told * 2, said, strict=True):
        for turn, word in zip(episode.turns[:-1], words, strict=False):
            after["error" in str(turn.observation)].append(word)
    low = {error: words.count("review: low") / len(words) for error, words in after.items()}
    assert low[True] > low[False] + 0.3, low


def test_critics_of_all_ages_speak(episodes: list[Trajectory], said: list[list[str]]) -> None:
    """The first of each half are judged by a critic that calls nothing notable but rewards."""
    rewards = build_rewarding(SECTION, None).turn_rewards
    for half in (0, 1):
        firsts = range(half, len(episodes), HALVES * AGES)
        assert all(said[k] == [in_words(r) for r in rewards(episodes[k])] for k in firsts)
    later = [w for k in range(len(said)) if k // HALVES % AGES for w in said[k][:-1]]
    assert later.count("review: normal") < len(later)


def test_sft_shows_them_under_finished_turns_and_learns_none(tmp_path: Path) -> None:
    """Through the real command: the same replies as without, after prompts that hold reviews."""
    actor = tiny_llama(tmp_path / "actor")
    shown, replies = {}, {}
    for review in ("none", "words"):
        recipe = tmp_path / f"{review}.yaml"
        content = {
            "name": "reviewed",
            "model": {"actor": str(actor)},
            "environment": {"name": "sql"},
            "state": {"tool_prompt": "none", "max_tokens": 1500, "review": review},
            "sft": {"demonstrations": 16, "steps": 1, "batch_size": 2, "max_length": 1600},
            "rl": RL,
        }
        recipe.write_text(yaml.safe_dump(content))
        out = tmp_path / review
        words = ["sft", str(recipe), "--output-dir", str(out), "--quiet"]
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        shown[review], replies[review] = read(out)
    assert replies["words"] == replies["none"]
    assert not re.search("review:", shown["none"])
    found = re.findall(r"(.*)\n(review: .*?)(?:<|\n)", shown["words"])
    assert len(found) > 16 and {line for _, line in found} <= set(WORDS)
    assert all(above.startswith(("[x]", "[ ]")) for above, _ in found), "under the checklist"


def read(folder: Path) -> tuple[str, list[str]]:
    """All text of the training rows, and what of it is learned."""
    tokenizer = load_tokenizer(folder)
    rows = read_rows(folder)
    learned = [
        tokenizer.decode([i for i, m in zip(r["input_ids"], r["action_mask"], strict=True) if m])
        for r in rows
    ]
    assert not any("review" in text for text in learned)
    return "\n".join(tokenizer.decode(r["input_ids"]) for r in rows), learned
