"""Held-out evaluation of a real (random) model and of scripted policies."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from stages.common.errors import UsageError
from stages.common.files import write_json
from stages.common.manifest import build_manifest
from stages.evaluation import run
from stages.evaluation.held_out import HeldOut
from stages.evaluation.policies import ScriptedPolicy, null_policy
from stages.interaction import arena as arena_module
from stages.interaction.arena import Arena
from stages.interaction.player import served_state
from stages.interaction.states import StateOptions
from stages.recipe.models import Recipe
from tests.evaluation import worlds
from tests.tiny_models import tiny_qwen3

PROMISED = {
    "success", "return", "turns", "episodes", "components", "out_of_budget", "invalid_actions",
    "repeated_calls", "loops", "same_error_again", "recovery_after_error", "success_by_turns",
    "kinds", "groups", "seen", "unseen", "greedy",
}  # fmt: skip


@pytest.fixture(scope="module")
def actor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random actor's folder."""
    return tiny_qwen3(tmp_path_factory.mktemp("models") / "actor")


class Spy:
    """A policy that writes down what the one behind it says."""

    def __init__(self, policy, told: list[str]) -> None:
        self.policy, self.told = policy, told

    def generate(self, requests, *, greedy=False):
        replies = self.policy.generate(requests, greedy=greedy)
        self.told += [reply.text for reply in replies]
        return replies


def recipe_of(actor: Path, **evaluation: object) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "demo",
            "threads": 1,
            "model": {"actor": str(actor)},
            "environment": {"name": "sql", "max_turns": 3},
            "state": {"tool_prompt": "none", "max_tokens": 512},
            "rl": {"actor": {"max_new_tokens": 6}},
            "evaluation": {"episodes": 6, **evaluation},
        }
    )


def test_the_promised_figures_equal_for_equal_seeds(actor, capsys):
    results = [run.evaluate_command(recipe_of(actor), str(actor)) for _ in range(2)]
    assert results[0].keys() >= PROMISED
    assert json.dumps(results[0]) == json.dumps(results[1])
    assert results[0]["actor"] == str(actor)
    shown = capsys.readouterr().out
    assert "repeated calls" in shown and "out of budget" in shown


def test_the_batch_changes_nothing_and_the_seed_does(actor):
    texts = []
    for options in ({"batch": 128}, {"batch": 2}, {"seed": 7}):
        recipe = recipe_of(actor, **options)
        tasks, loaded = run.held_out(recipe), run.player(recipe, actor)
        played = tasks.arena.play(
            tasks.tasks, loaded.policy, key=(tasks.seed, 0), count_tokens=loaded.count_tokens
        )
        texts.append([turn.action.text for t in played for turn in t.turns])
    assert texts[0] == texts[1] != texts[2]


def test_greedy_replies_do_not_hang_on_the_seed(actor):
    texts = []
    for seed, greedy in ((1, True), (2, True), (1, False)):
        loaded = run.player(recipe_of(actor), actor)
        tasks = replace(run.held_out(recipe_of(actor)), seed=seed)
        told: list[str] = []
        spy = replace(loaded, policy=Spy(loaded.policy, told))
        run.measure_actor(tasks, spy, greedy=greedy)
        texts.append(told)
    assert texts[0] == texts[1] != texts[2]


def test_an_actor_is_shown_the_state_it_was_trained_with(actor, tmp_path, capsys):
    folder = tmp_path / "sft"
    shutil.copytree(actor, folder)
    wanted = recipe_of(actor).state
    assert served_state(folder, wanted) == StateOptions.of(wanted)  # no manifest, nothing to tell
    trained = {**recipe_of(actor).model_dump(mode="json"), "state": {"exchanges": 2}}
    write_json(folder / "manifest.json", build_manifest(folder, "sft", recipe=trained).to_json())
    assert served_state(folder, wanted) == StateOptions(exchanges=2)
    told = " ".join(capsys.readouterr().err.split())
    assert "another state (state.exchanges, state.max_tokens, state.tool_prompt)" in told
    assert served_state(folder, StateOptions(exchanges=2)) == StateOptions(exchanges=2)
    assert capsys.readouterr().err == ""


def test_a_tiny_actor_on_an_own_database_is_told_the_cure(actor, tmp_path, capsys):
    recipe = recipe_of(actor)
    options = {"database": tmp_path / "shop.sqlite", "questions": tmp_path / "q.jsonl"}
    environment = recipe.environment.model_copy(update=options)
    run.player(recipe.model_copy(update={"environment": environment}), actor)
    told = " ".join(capsys.readouterr().err.split())
    assert "a real pretrained model" in told
    assert "at least some hundred million weights" in told


@pytest.mark.parametrize("policy", ["null", "random", "frequent", "expert"])
def test_scripted_policies(policy, actor):
    recipe = recipe_of(actor)
    environment = recipe.environment.model_copy(update={"max_turns": 8})
    recipe = recipe.model_copy(update={"environment": environment})
    result = run.evaluate_command(recipe, None, policy=policy)
    assert result["policy"] == policy
    assert result["episodes"] == 6


def test_an_actor_or_a_policy_but_not_both(actor):
    with pytest.raises(UsageError, match="either --actor or --policy"):
        run.evaluate_command(recipe_of(actor), str(actor), policy="null")
    with pytest.raises(UsageError, match="--policy wise is unknown"):
        run.evaluate_command(recipe_of(actor), None, policy="wise")


def test_a_folder_that_is_no_model(actor, tmp_path):
    with pytest.raises(UsageError, match="no folder"):
        run.evaluate(recipe_of(actor), tmp_path / "nothing")


def test_gibberish_counts_as_invalid_and_is_fined(actor):
    figures = run.held_out(recipe_of(actor)).measure(ScriptedPolicy(lambda request: "uh huh"))
    assert figures["invalid_actions"] == 1.0
    assert figures["loops"] == 1.0
    assert figures["repeated_calls"] == pytest.approx(2 / 3)
    assert figures["components"]["format"] < 0


def test_readiness_samples_each_training_task_eight_times(actor):
    recipe = recipe_of(actor, readiness_tasks=3)
    report = run.readiness_check(recipe, run.player(recipe, actor))
    assert report["tasks"] == 3
    assert report["tries"] == 8
    assert report["pass@8"] == 0.0
    assert "RL will not learn" in report["advice"]


def test_unseen_groups_are_those_without_training_tasks(actor):
    tasks = run.held_out(recipe_of(actor, episodes=32))
    figures = tasks.measure(null_policy())
    unseen = {t.group for t in tasks.tasks} - {t.group for t in tasks.training}
    assert unseen and unseen <= {"hotel", "bank", "sport"}
    assert figures["unseen"]["episodes"] + figures["seen"]["episodes"] == 32
    assert figures["unseen"]["episodes"] == sum(t.group in unseen for t in tasks.tasks)


def test_faults_of_all_episodes_end_the_evaluation(monkeypatch):
    class Broken(worlds.Doors):
        def step(self, action):
            raise OSError("the doors are stuck")

    monkeypatch.setattr(arena_module, "make_environment", lambda options: Broken())
    tasks = HeldOut.of(Arena(worlds.OPTIONS, StateOptions()), split="test", episodes=3, seed=0)
    with pytest.raises(UsageError, match=r"all 3 episodes were dropped.*the doors are stuck"):
        tasks.measure(null_policy())


def test_an_empty_split_is_told(monkeypatch):
    class Empty(worlds.Doors):
        def tasks(self, split, count, seed):
            return []

    monkeypatch.setattr(arena_module, "make_environment", lambda options: Empty())
    with pytest.raises(UsageError, match="doors has no task in the test split"):
        HeldOut.of(Arena(worlds.OPTIONS, StateOptions()), split="test", episodes=3, seed=0)
