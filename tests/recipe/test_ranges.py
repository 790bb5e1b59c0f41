"""Usual ranges depend on the model's size; a value outside gets one line: what to watch."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.recipe.load import load_recipe
from stages.recipe.models import Recipe
from stages.recipe.ranges import (
    SIZES,
    advice,
    default_learning_rate,
    learning_rates,
    size_class,
)
from tests.recipe.bad_recipes import GOOD

TINY, SMALL, MEDIUM, LARGE = 430_000, 135_000_000, 1_500_000_000, 7_600_000_000


@pytest.fixture
def recipe_with(tmp_path: Path):
    path = tmp_path / "demo.yaml"
    path.write_text(GOOD)

    def load(*overrides: str) -> Recipe:
        return load_recipe(path, overrides)

    return load


@pytest.mark.parametrize("parameters", [TINY, SMALL, MEDIUM, LARGE])
def test_defaults_are_usual_at_every_size(recipe_with, parameters):
    assert advice(recipe_with(), parameters) == []


def test_7b_class_has_the_rates_of_the_field():
    assert default_learning_rate("sft", LARGE) == 2e-5
    rl = size_class(LARGE).rates["rl"]
    assert (rl.low, rl.high) == (1e-6, 5e-6)
    assert default_learning_rate("rl", LARGE) <= default_learning_rate("sft", LARGE) / 10


def test_adapters_learn_at_ten_times_the_rates(recipe_with):
    adapted = recipe_with("model.lora={}")
    for parameters in (TINY, SMALL, MEDIUM, LARGE):
        whole, ten = size_class(parameters), size_class(parameters, adapters=True)
        for stage, rate in learning_rates(adapted, parameters).items():
            assert rate == 10 * default_learning_rate(stage, parameters) == ten.rates[stage].default
            assert ten.rates[stage].high == 10 * whole.rates[stage].high
        assert advice(adapted, parameters) == []
    (line,) = advice(recipe_with("model.lora={}", "sft.learning_rate=0.01"), LARGE, "sft")
    assert "adapters on 7B-class models" in line


def test_rates_fall_with_size():
    for stage in ("sft", "reward", "rl"):
        rates = [default_learning_rate(stage, n) for n in (TINY, SMALL, MEDIUM, LARGE)]
        assert rates == sorted(rates, reverse=True)
        assert rates[0] >= 10 * rates[-1]
    assert [size_class(n) for n in (TINY, SMALL, MEDIUM, LARGE)] == list(SIZES)


@pytest.mark.parametrize(
    ("override", "parameters", "words"),
    [
        ("rl.actor.learning_rate=3e-4", LARGE, ("rl.actor.learning_rate = 0.0003", "actor/kl")),
        ("sft.learning_rate=2e-5", TINY, ("sft.learning_rate = 2e-05", "0.0001 to 0.003", "tiny")),
        ("reward.learning_rate=1", TINY, ("reward.learning_rate = 1", "held-out accuracy")),
        ("rl.ppo.clip_range=0.5", TINY, ("rl.ppo.clip_range = 0.5", "0.1 to 0.2", "clip_fraction")),
        ("rl.ppo.gae_lambda=0.5", TINY, ("0.9 to 0.99", "critic/explained_variance")),
        ("rl.ppo.kl_coef=0.5", TINY, ("rl.ppo.kl_coef = 0.5", "0.01 to 0.1")),
        ("rl.ppo.entropy_coef=0.2", LARGE, ("rl.ppo.entropy_coef = 0.2", "0.01 to 0.05")),
        (
            "rl.ppo.entropy_coef_final=0.04",
            TINY,
            ("entropy_coef_final = 0.04", "usually the bonus"),
        ),
        (
            "rl.ppo.entropy_coef_final=0.2",
            LARGE,
            ("rl.ppo.entropy_coef_final = 0.2", "0 to 0.05", "7B-class"),
        ),
    ],
)
def test_unusual_value_gets_one_line(recipe_with, override, parameters, words):
    lines = advice(recipe_with(override), parameters)
    assert len([line for line in lines if all(word in line for word in words)]) == 1
    assert all("watch" in line and "\n" not in line and line.endswith(".") for line in lines)


def test_rl_rate_near_sfts_is_named_for_pretrained_models_only(recipe_with):
    recipe = recipe_with("sft.learning_rate=1e-5", "rl.actor.learning_rate=5e-6")
    assert any("more than a tenth" in line for line in advice(recipe, LARGE))
    assert not any("more than a tenth" in line for line in advice(recipe, TINY))


def test_each_line_belongs_to_one_stage(recipe_with):
    recipe = recipe_with(
        "sft.learning_rate=1", "reward.learning_rate=1", "rl.ppo.kl_coef=1", "rl.ppo.clip_range=1"
    )
    everything = advice(recipe, TINY)
    by_stage = {stage: advice(recipe, TINY, stage) for stage in ("sft", "reward", "rl")}
    assert {stage: len(lines) for stage, lines in by_stage.items()} == {
        "sft": 1,
        "reward": 1,
        "rl": 2,
    }
    assert [line for lines in by_stage.values() for line in lines] == everything


def test_given_rates_win_over_defaults(recipe_with):
    rates = learning_rates(recipe_with("sft.learning_rate=1e-3"), TINY)
    assert rates["sft"] == 1e-3
    assert rates["rl"] == default_learning_rate("rl", TINY)


def test_adapters_may_learn_at_sfts_rate_in_rl(recipe_with):
    near = ("sft.learning_rate=1e-4", "rl.actor.learning_rate=5e-5")
    recipe = recipe_with(*near, "model.lora={}")
    assert not any("more than a tenth" in line for line in advice(recipe, LARGE))


def test_a_frozen_trunk_learns_at_its_own_rate(recipe_with):
    words = "rl.critic={trunk: an/encoder, learning_rate: 1e-3, frozen: %s}"
    told = {on: advice(recipe_with(words % on), TINY) for on in ("true", "false")}
    assert [any("pretrained trunk" in line for line in told[on]) for on in told] == [False, True]
