"""Reviews in words: what they say, what they must not know, and the run that shows them."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stages.common.errors import UsageError
from stages.common.models import load_tokenizer
from stages.evaluation.run import evaluate, player
from stages.interaction.arena import Arena
from stages.interaction.environments.base import Task
from stages.interaction.environments.sql import SessionOptions
from stages.interaction.generation import Generation, Request
from stages.interaction.rewards.mix import GOLD_DEPENDENT, RewardMix
from stages.interaction.rollout import Reviewer
from stages.interaction.trajectory import REVIEW, Trajectory
from stages.recipe.models import Recipe
from stages.rl.critic.learner import CriticLearner, FitPlan
from stages.rl.critic.light import LightTrunk
from stages.rl.critic.network import CriticNetwork
from stages.rl.critic.reviewer import in_words, reviewer_of
from stages.rl.critic.views import ViewParts
from stages.rl.pool import read_trajectories
from stages.rl.run import load_reviewer, run
from stages.study.jobs import evaluation
from stages.study.plan import Job
from tests.rl.test_run import Lab
from tests.tiny_models import tiny_llama

BLIND = dict.fromkeys(GOLD_DEPENDENT, 0.0)
WORDS = {"exchanges": 3, "checklist": True, "tool_prompt": "none", "review": "words"}
RL = {
    "iterations": 1,
    "critic": {"view": {"privileged": False}, "warm_up": {"max_iterations": 0}},
    "rewards": {"weights": BLIND},
}


@pytest.mark.parametrize(
    ("review", "word"),
    [(0.5, "high"), (0.05, "high"), (0.049, "normal"), (0.0, "normal"), (-0.049, "normal"),
     (-0.05, "low"), (-1.0, "low")],
)  # fmt: skip
def test_words_follow_sign_and_size(review: float, word: str) -> None:
    assert in_words(review) == f"review: {word}"


def test_the_review_is_reward_plus_discounted_next_value_less_value() -> None:
    """By hand: γ = 0.5, values 0.4 then 0.6 (0.2 then 0.6), reward of the newest turn 0.2 (0)."""
    [episode] = Arena(SessionOptions(), {}).demonstrate(tasks(1), seed=0)
    two = [replace(episode, turns=episode.turns[:n], key=(1, 2, 3)) for n in (1, 2)]
    keys: list[Any] = []

    def values(episodes: Sequence[Trajectory]) -> list[Tensor]:
        keys.extend(e.key for e in episodes)
        return [torch.tensor([0.4, 0.6]), torch.tensor([9.0, 0.2, 0.6])]

    def rewards(episode: Trajectory) -> list[float]:
        return [0.2] if len(episode.turns) == 1 else [9.0, 0.0]

    reviews = reviewer_of(values, rewards, discount=0.5)(two)
    assert reviews == [in_words(0.2 + 0.3 - 0.4), in_words(0.0 + 0.3 - 0.2)]
    assert reviews == ["review: high", "review: high"]
    assert keys == [(), ()], "a critic that remembers by key would give the values of before"


# ---- no secret passes


def tasks(count: int) -> list[Task]:
    return Arena(SessionOptions(), {}).tasks("test", count, 3)


class Saying:
    """Says given texts; keeps the states it was shown."""

    def __init__(self, texts: Sequence[Sequence[str]]) -> None:
        self.texts, self.shown = texts, []  # type: ignore[var-annotated]

    def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        self.shown += [(request.key, list(request.messages)) for request in requests]
        return [Generation(text=self.texts[r.key[-2]][r.key[-1]]) for r in requests]


def critic(*, privileged: bool) -> CriticLearner:
    """A critic with opinions: random weights in the last layer, too."""
    torch.manual_seed(0)
    network = CriticNetwork(LightTrunk(16))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    mix = RewardMix(weights=BLIND)
    parts = ViewParts(privileged=privileged)
    return CriticLearner(network, plan=FitPlan(), parts=parts, turn_rewards=mix.totals)


def shown_under_gold(make: Any) -> list[Any]:
    """States of the same replies under the right and under an altered gold, with a reviewer."""
    drawn = tasks(6)
    world = Arena(SessionOptions(), {})
    altered = [world.make_environment().alter_gold(task) for task in drawn]  # type: ignore[attr-defined]
    texts = [[turn.action.text for turn in e.turns] for e in world.demonstrate(drawn, seed=0)]
    seen = []
    for version in (drawn, altered):
        policy = Saying(texts)
        world.served(WORDS, make()).play(version, policy, label="")
        seen.append(policy.shown)
    return seen


def test_altering_the_gold_changes_no_review() -> None:
    def make() -> Reviewer:
        learner = critic(privileged=False)
        return reviewer_of(learner.values, RewardMix(weights=BLIND).totals, discount=1.0)

    first, second = shown_under_gold(make)
    assert first == second
    said = {line for _, state in first for m in state for line in str(m["content"]).split("\n")
            if line.startswith("review: ")}  # fmt: skip
    assert said == {"review: high", "review: normal", "review: low"}


def test_a_critic_asked_for_facts_is_not_given_any() -> None:
    """Even one whose view has a place for them: the rollout strips what is privileged."""

    def make() -> Reviewer:
        learner = critic(privileged=True)
        return reviewer_of(learner.values, RewardMix(weights=BLIND).totals, discount=1.0)

    first, second = shown_under_gold(make)
    assert first == second


def test_rewards_that_depend_on_gold_would_tell_and_are_refused() -> None:
    """Why the recipe must weigh them 0: with their default weights the words do change."""

    def make() -> Reviewer:
        telling = RewardMix(weights=dict.fromkeys(GOLD_DEPENDENT, 3.0), dense_cap=0.9)
        return reviewer_of(critic(privileged=False).values, telling.totals, discount=1.0)

    first, second = shown_under_gold(make)
    assert first != second


# ---- through the real stages


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("reviewed"), tiny_llama)


def reviewed(lab: Lab, **over: Any) -> Recipe:
    state = {"tool_prompt": "none", "max_tokens": 700, "review": "words"}
    return lab.recipe(**({"state": state, "rl": RL} | over))


@pytest.fixture(scope="module")
def finished(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "rl"
    run(reviewed(lab, rl=RL | {"iterations": 2}), lab.request(folder))
    return folder


def test_a_run_shows_each_review_and_trains_on_what_it_showed(finished: Path) -> None:
    tokenizer = load_tokenizer(finished)
    shown = 0
    for number in ("00000", "00001"):
        for episode in read_trajectories(finished / f"trajectories/{number}.jsonl"):
            assert REVIEW not in episode.turns[-1].produced, "nobody is shown the last one"
            for before, after in itertools.pairwise(episode.turns):
                review = before.produced[REVIEW]
                assert str(after.messages[-1]["content"]).endswith(f"\n{review}")
                assert after.messages[: len(before.messages)] == before.messages
                assert review in tokenizer.decode(after.prompt_ids)
                shown += 1
    assert shown > 4


def test_evaluation_asks_the_saved_critic(lab: Lab, finished: Path) -> None:
    recipe = reviewed(lab)
    loaded = player(recipe, finished, load_reviewer)
    assert loaded.reviewer is not None
    arena = Arena(recipe.environment, None).served(loaded.state, loaded.reviewer)
    drawn = arena.tasks("test", 3, 0)
    again = arena.play(drawn, loaded.policy, count_tokens=loaded.count_tokens, label="")
    assert all(turn.produced[REVIEW] for e in again for turn in e.turns[:-1])
    figures = evaluate(recipe, finished, reviewers=load_reviewer, episodes=3)
    assert figures["episodes"] == 3


def test_a_study_measures_a_reviewed_actor_with_its_critic(
    lab: Lab, finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "words" / "rl"
    shutil.copytree(finished, folder)
    recipe = reviewed(lab, evaluation={"episodes": 3})
    figures = evaluation(Job("rl", recipe, folder, {}, "seed 0, words"), measure=True)
    assert figures is not None and figures["episodes"] == 3


def test_an_actor_from_before_rl_is_shown_none(lab: Lab) -> None:
    assert player(reviewed(lab), lab.sft, load_reviewer).reviewer is None
    assert player(reviewed(lab), lab.actor, load_reviewer).reviewer is None


def test_an_actor_without_its_critic_is_told_what_is_missing(
    lab: Lab, finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "rl"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "critic")
    with pytest.raises(UsageError, match="critic/ folder"):
        player(reviewed(lab), folder, load_reviewer)
    with pytest.raises(UsageError, match="shown reviews"):
        player(reviewed(lab), folder)
