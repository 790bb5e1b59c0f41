"""The scorer's raw scores against one plain forward per turn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from stages.common.chat import dialogue_turns, encode_action, encode_prompt
from stages.common.errors import HandoffError
from stages.common.files import write_json
from stages.common.libraries import quiet_libraries
from stages.common.manifest import build_manifest
from stages.common.models import load_tokenizer, new_reward_model, save_folder, score_padding
from stages.interaction.rewards import scorer as module
from stages.interaction.rewards.scorer import RewardModelScorer
from stages.interaction.trajectory import Action, Trajectory, Turn
from tests.tiny_models import tiny_llama, tiny_qwen3

ASK = {"role": "user", "content": "How many orders?"}
CALL = '{"name": "list_tables", "arguments": {}}'
SEEN = {"role": "tool", "content": "orders, customers"}


def reward_folder(build: Any, root: Path, max_length: int = 400) -> Path:
    base, folder = build(root / "base"), root / f"reward{max_length}"
    tokenizer = load_tokenizer(base)
    torch.manual_seed(0)
    with quiet_libraries(None):
        model = new_reward_model(base)
    model.config.pad_token_id = tokenizer.convert_tokens_to_ids(score_padding(tokenizer))
    save_folder(model, tokenizer, folder)
    recipe = {"reward": {"max_length": max_length}}
    manifest = build_manifest(folder, "reward", recipe=recipe).with_score(0.25, 2.0)
    write_json(folder / "manifest.json", manifest.to_json())
    return folder


@pytest.fixture(scope="module", params=[tiny_llama, tiny_qwen3])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reward_folder(request.param, Path(tmp_path_factory.mktemp("scorer")))


@pytest.fixture(scope="module")
def scorer(folder: Path) -> RewardModelScorer:
    with quiet_libraries(None):
        return RewardModelScorer(folder)


def episodes() -> list[Trajectory]:
    """A growing transcript, a window that loses its beginning, and an empty reply."""
    reply = {"role": "assistant", "content": CALL}
    first = Turn(0, (ASK,), Action(CALL), rewards={"format": 0.0})
    second = Turn(1, (ASK, reply, SEEN), Action("12"))
    lost = Turn(2, (ASK, SEEN), Action(""))
    base = Trajectory("t", "count", "shop", "goal")
    return [
        replace(base, turns=(first, second)),
        replace(base, turns=(first, second, lost)),
        replace(base, turns=()),
    ]


def plain(folder: Path, turn: Turn, limit: int | None = None) -> float:
    """Rendered afresh, encoded afresh, one row, no padding, plain transformers."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    shown = list(turn.messages)
    prompt = encode_prompt(tokenizer, shown)
    action = encode_action(tokenizer, shown, turn.action.text)
    if limit and len(prompt) + len(action) > limit:
        room = limit - len(action)
        prompt = prompt[: room // 2] + prompt[len(prompt) - (room - room // 2) :]
    with torch.no_grad():
        return float(model(torch.tensor([prompt + action])).logits[0, 0])


def test_scores_equal_a_plain_forward_per_turn(folder: Path, scorer: RewardModelScorer) -> None:
    scored = scorer.score(episodes())
    assert [len(e.turns) for e in scored] == [2, 3, 0]
    for episode in scored:
        for turn in episode.turns:
            expected = plain(folder, turn)
            assert turn.rewards["reward_model"] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert scored[0].turns[0].rewards["format"] == 0.0
    assert (scorer.mean, scorer.std) == (0.25, 2.0)


def test_turn_by_turn_gives_the_same(
    scorer: RewardModelScorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What encoders, which cannot be read in the middle, go through."""
    from stages.common import scores

    together = module.score_turns(scorer.model, scorer.tokenizer, episodes(), max_length=400)
    monkeypatch.setattr(scores, "scores_every_token", lambda model: False)
    apart = module.score_turns(scorer.model, scorer.tokenizer, episodes(), max_length=400)
    for one, other in zip(together, apart, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("same", [True, False])
def test_recorded_tokens_are_taken_over_where_the_actor_has_this_tokenizer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    with quiet_libraries(None):
        scorer = RewardModelScorer(folder)
    actors = load_tokenizer(folder)
    if not same:
        actors.add_tokens(["another_word"])
    played = []
    for episode in episodes():
        exchanges = [(turn.messages, turn.action.text) for turn in episode.turns]
        ids = dialogue_turns(actors, exchanges)
        recorded = zip(episode.turns, ids, strict=True)
        turns = [
            replace(t, prompt_ids=tuple(prompt), action=replace(t.action), action_ids=tuple(action))
            for t, (prompt, action) in recorded
        ]
        played.append(episode.with_turns(turns))
    expected = [[t.rewards["reward_model"] for t in e.turns] for e in scorer.score(played)]
    tokenised = []

    def counted(*given: Any) -> Any:
        tokenised.append(given)
        return dialogue_turns(*given)

    monkeypatch.setattr(module, "dialogue_turns", counted)
    scorer.listen_to(actors)
    found = [[t.rewards["reward_model"] for t in e.turns] for e in scorer.score(played)]
    assert found == expected
    assert len(tokenised) == (0 if same else 3)


def test_the_result_of_an_action_does_not_change_its_score(scorer: RewardModelScorer) -> None:
    later = episodes()[0]
    other = {"role": "tool", "content": "error: nothing"}
    turns = list(later.turns)
    turns[1] = replace(turns[1], messages=(*turns[1].messages[:2], other))
    changed = scorer.score([later.with_turns(turns)])[0]
    kept = scorer.score([later])[0]
    one, two = ([t.rewards["reward_model"] for t in e.turns] for e in (kept, changed))
    assert one[0] == pytest.approx(two[0], rel=1e-4, abs=1e-6) and abs(one[1] - two[1]) > 1e-6


def test_long_contexts_lose_their_middle_as_in_training(tmp_path: Path) -> None:
    folder = reward_folder(tiny_qwen3, tmp_path, max_length=40)
    with quiet_libraries(None):
        scored = RewardModelScorer(folder).score(episodes())
    for turn in scored[0].turns:
        expected = plain(folder, turn, limit=40)
        assert turn.rewards["reward_model"] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_no_gradient_and_no_training_mode(scorer: RewardModelScorer) -> None:
    assert not scorer.model.training
    assert not any(p.requires_grad for p in scorer.model.parameters())


def test_folders_that_are_no_reward_run(folder: Path, tmp_path: Path) -> None:
    import shutil

    with pytest.raises(HandoffError, match="does not exist"):
        RewardModelScorer(tmp_path / "none")
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    row = json.loads((bare / "manifest.json").read_text())
    (bare / "manifest.json").write_text(json.dumps(row | {"score": None}))
    with pytest.raises(HandoffError, match="no score mean and spread"):
        RewardModelScorer(bare)
