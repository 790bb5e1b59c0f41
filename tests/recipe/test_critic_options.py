"""Options of critic and pool in a recipe: sizes in words, refusals in a sentence, advice."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from stages.common.errors import UsageError
from stages.recipe.describe import describe
from stages.recipe.load import load_recipe
from stages.recipe.models import Recipe, RlSection
from stages.recipe.ranges import advice
from tests.recipe.bad_recipes import GOOD

TINY = 430_000
VTRACE = "rl.critic.off_policy=vtrace"
SHARED = {"trunk": "shared", "view": "symmetric"}


@pytest.fixture
def recipe_with(tmp_path: Path):
    path = tmp_path / "demo.yaml"
    path.write_text(GOOD)

    def load(*overrides: str) -> Recipe:
        return load_recipe(path, overrides)

    return load


@pytest.mark.parametrize(
    ("given", "size"), [("1000", 1000), ("512 MiB", 2**29), ("1.5GB", 1_500_000_000)]
)
def test_the_pools_size_in_words(recipe_with, tmp_path, given, size):
    recipe = recipe_with(f"rl.pool.max_bytes={given}")
    assert recipe.rl.pool.max_bytes == size
    shown = yaml.safe_load(describe(recipe))
    assert Recipe.model_validate(shown).rl.pool.max_bytes == size
    assert recipe_with().rl.pool.max_bytes == 2**30


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rl.pool.max_bytes=lots", ("rl.pool.max_bytes = 'lots'", "a size in bytes", "512 MiB")),
        ("rl.pool.max_bytes=0", ("rl.pool.max_bytes = 0", "of at least 1")),
        ("rl.pool.max_bytes=true", ("rl.pool.max_bytes = true",)),
        ("rl.pool.sampling=prioritized", ("uniform, prioritised", "did you mean prioritised")),
        ("rl.pool.priority_exponent=-1", ("of at least 0",)),
        ("rl.critic.target=nstep", ("td_lambda, monte_carlo, n_step", "did you mean n_step")),
        ("rl.critic.n_steps=0", ("a whole number of at least 1",)),
        ("rl.critic.off_policy=v_trace", ("none, vtrace", "did you mean vtrace")),
        ("rl.critic.rho_bar=0", ("a number above 0",)),
        ("rl.critic.c_bar=-1", ("a number above 0",)),
        ("rl.critic.target_update=copy", ("polyak, periodic",)),
        ("rl.critic.target_period=0", ("a whole number of at least 1",)),
    ],
)
def test_a_bad_value_is_refused_in_a_sentence(recipe_with, override, words):
    with pytest.raises(UsageError) as refusal:
        recipe_with(override)
    assert all(word in str(refusal.value) for word in words)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((VTRACE, "rl.critic.rho_bar=0.5", "rl.critic.c_bar=0.5"), "rl.critic.rho_bar = 0.5 is"),
        ((VTRACE, "rl.critic.c_bar=0.5"), "rl.critic.c_bar = 0.5 is outside"),
        ((VTRACE, "rl.critic.c_bar=2"), "c_bar = 2 is above rl.critic.rho_bar = 1"),
        (
            ("rl.critic.target_update=periodic", "rl.critic.target_period=50"),
            "rl.critic.target_period = 50",
        ),
        (
            ("rl.pool.sampling=prioritised", "rl.pool.priority_exponent=2"),
            "rl.pool.priority_exponent = 2",
        ),
    ],
)
def test_unusual_values_are_told_where_they_act(recipe_with, overrides, words):
    lines = advice(recipe_with(*overrides), TINY, "rl")
    assert len([line for line in lines if words in line]) == 1
    assert all("watch" in line for line in lines)
    switched_off = overrides[1:]
    assert advice(recipe_with(*switched_off), TINY) == []


@pytest.mark.parametrize(
    ("critic", "parameters", "usual"),
    [
        ("{trunk: an/encoder}", TINY, "1e-05 to 0.0001"),
        ("{trunk: reward-model}", 100 * TINY, "5e-06 to 0.0005"),
        ("{kind: advantage}", 100 * TINY, "5e-06 to 0.0005"),
        ("{trunk: an/encoder, learning_rate: 1e-4}", TINY, ""),
        ("{trunk: reward-model}", TINY, ""),
        ("{trunk: scratch}", 100 * TINY, ""),
        ("{kind: none, trunk: an/encoder}", TINY, ""),
    ],
)
def test_a_rate_that_would_undo_a_pretrained_trunk_is_told(recipe_with, critic, parameters, usual):
    lines = advice(recipe_with(f"rl.critic={critic}"), parameters, "rl")
    expected = f"rl.critic.learning_rate = 0.001 is outside the usual {usual} for a pretrained"
    assert [expected in line for line in lines] == ([True] if usual else [])


def test_a_short_warm_up_of_iql_is_told(recipe_with):
    lines = advice(recipe_with("rl.offline.pool=sft"), TINY, "rl")
    assert len(lines) == 1 and "gives the critic 60 steps before the actor learns" in lines[0]
    longer = ("rl.offline.pool=sft", "rl.critic.warm_up.max_iterations=10")
    assert advice(recipe_with(*longer), TINY) == []
    assert advice(recipe_with("rl.offline.pool=sft", "rl.offline.method=awr"), TINY) == []


def test_defaults_are_usual_where_they_act(recipe_with):
    switches = (VTRACE, "rl.critic.target_update=periodic", "rl.pool.sampling=prioritised")
    assert advice(recipe_with(*switches), TINY) == []


@pytest.mark.parametrize(
    ("critic", "pool", "words"),
    [
        ({"kind": "q", "off_policy": "vtrace"}, {}, "corrects V fitted to the pool, but kind is q"),
        ({"kind": "none", "off_policy": "vtrace"}, {}, "but kind is none"),
        ({"trunk": "shared", "view": "symmetric"}, {"sampling": "prioritised"}, "replays nothing"),
        ({"kind": "advantage"}, {"sampling": "prioritised"}, "replays nothing by priority"),
        ({"kind": "advantage", "trunk": "scratch"}, {}, "scratch, expected actor or a causal"),
        ({"kind": "advantage", "trunk": "reward-model"}, {}, "reward-model, expected actor"),
        ({"trunk": "actor"}, {}, "actor, which kind advantage takes and kind v does not"),
        ({"trunk": "scratch", "hidden_size": 33}, {}, "33, expected an even number"),
        ({"trunk": "light", "frozen": True}, {}, "trunk light has no encoder that could stand"),
        ({"kind": "advantage", "frozen": True}, {}, "kind advantage on trunk actor has no encoder"),
        ({"kind": "advantage", "loss": "huber"}, {}, "loss is huber, which does nothing for kind"),
        ({"kind": "advantage", "ensemble": 2}, {}, "leave rl.critic.ensemble out"),
        (SHARED | {"target": "n_step"}, {}, "target is n_step, which does nothing .* trunk shared"),
        (SHARED | {"target_update": "periodic"}, {}, "leave rl.critic.target_update out"),
        (SHARED | {"optimizer": "sgd"}, {}, "optimizer is sgd, which does nothing"),
    ],
)
def test_what_a_critic_cannot_do_is_refused(critic, pool, words):
    with pytest.raises(ValidationError, match=words):
        RlSection.model_validate({"critic": critic, "pool": pool})


def test_what_acts_is_taken():
    for critic in (
        {"kind": "advantage", "optimizer": "sgd"},
        {"kind": "none", "trunk": "actor", "ensemble": 3},
        {"kind": "q", "ensemble": 3, "loss": "hl_gauss", "target": "n_step"},
        {"trunk": "light", "hidden_size": 33},
    ):
        assert RlSection.model_validate({"critic": critic})
