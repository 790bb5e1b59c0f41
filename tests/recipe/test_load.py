"""A recipe is right, or one sentence says what is wrong with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stages.common.errors import UsageError
from stages.recipe.load import load_recipe
from tests.recipe.bad_recipes import CASES, GOOD, Bad


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "demo.yaml"
    path.write_text(GOOD)
    return path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_bad_recipe_gives_one_sentence_that_names_everything(case: Bad, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        load_recipe(case.write(tmp_path), case.overrides)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    for name in case.names:
        assert name in message
    if not message.startswith("--set"):
        assert "mine.yaml" in message
    assert "\n" not in message and message.endswith(".")
    assert "pydantic" not in message and "Traceback" not in message


def test_good_recipe_has_defaults(good):
    recipe = load_recipe(good)
    assert (recipe.name, recipe.model.actor, recipe.rl.ppo.clip_range) == ("demo", "some-base", 0.2)
    assert recipe.environment.name == "sql"


def test_overrides_are_read_as_yaml_and_make_sections(good):
    recipe = load_recipe(
        good,
        ("rl.ppo.clip_range=1e-1", "model.frozen=[embed, head]", "rl.rewards.weights.success=5"),
        seed=9,
    )
    assert recipe.rl.ppo.clip_range == 0.1
    assert recipe.model.frozen == ("embed", "head")
    assert recipe.rl.rewards.weights == {"success": 5.0}
    assert recipe.seed == 9


def test_adapters_are_off_until_asked_for_and_then_have_defaults(good):
    assert load_recipe(good).model.lora is None
    assert load_recipe(good, ["model.lora={}"]).model.lora.rank == 16
    partly = load_recipe(good, ["model.lora.rank=4"]).model.lora
    assert (partly.rank, partly.alpha, partly.quantize, partly.layers) == (4, 32, "none", None)


def test_exponents_without_a_dot_are_numbers(good):
    good.write_text(GOOD + "sft: {learning_rate: 5e-4}\nrl: {trainer: {adam_epsilon: 1e-8}}")
    recipe = load_recipe(good)
    assert recipe.sft.learning_rate == 5e-4
    assert recipe.rl.trainer["adam_epsilon"] == 1e-8


def test_paths_in_the_file_mean_its_folder_first(good, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    for folder in (tmp_path, elsewhere):
        (folder / "base").mkdir(parents=True, exist_ok=True)
        (folder / "rows.jsonl").write_text("{}")
    monkeypatch.chdir(elsewhere)
    good.write_text(GOOD.replace("some-base", "base") + "sft: {data: rows.jsonl}")
    recipe = load_recipe(good)
    assert Path(recipe.model.actor) == tmp_path / "base"
    assert recipe.sft.data == tmp_path / "rows.jsonl"


def test_paths_fall_back_to_the_working_directory_and_hub_ids_stay(good, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "rows.jsonl").write_text("{}")
    monkeypatch.chdir(elsewhere)
    good.write_text(GOOD.replace("some-base", "Org/Model-7B") + "sft: {data: rows.jsonl}")
    recipe = load_recipe(good)
    assert recipe.model.actor == "Org/Model-7B"
    assert recipe.sft.data == Path("rows.jsonl")


def test_paths_in_overrides_mean_the_working_directory(good, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    for folder in (tmp_path, elsewhere):
        (folder / "base").mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(elsewhere)
    assert load_recipe(good, ("model.actor=base",)).model.actor == "base"


def test_words_with_a_meaning_are_no_paths(good, tmp_path):
    for word in ("sft", "actor", "light"):
        (tmp_path / word).mkdir()
    good.write_text(GOOD + "reward: {base: sft}\nrl: {critic: {trunk: light}}")
    recipe = load_recipe(good)
    assert (recipe.reward.base, recipe.rl.critic.trunk) == ("sft", "light")


def test_missing_files_may_be_ignored(good):
    good.write_text(GOOD + "sft: {data: later.jsonl}")
    assert load_recipe(good, check_files=False).sft.data == Path("later.jsonl")


def test_a_folder_is_no_recipe(tmp_path):
    with pytest.raises(UsageError, match="it is a folder"):
        load_recipe(tmp_path)


def test_a_similar_recipe_is_named(good):
    with pytest.raises(UsageError, match=r"did you mean .*demo\.yaml"):
        load_recipe(good.with_name("demmo.yaml"))


def test_a_later_override_wins_and_is_the_one_blamed(good):
    with pytest.raises(UsageError, match=r"--set sft\.steps=y"):
        load_recipe(good, ("sft.steps=x", "sft.steps=y"))


def test_loading_a_recipe_loads_no_torch(good):
    code = (
        "import sys; from pathlib import Path; from stages.recipe.load import load_recipe; "
        f"load_recipe(Path({str(good)!r})); "
        "print([m for m in ('torch', 'transformers', 'trl', 'datasets') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("full", (True, True, True)),
        ("symmetric", (False, True, False)),
        ("history", (True, False, False)),
        ("privileged", (False, True, True)),
    ],
)
def test_one_word_stands_for_a_critic_view(good, word, shown):
    view = load_recipe(good, [f"rl.critic.view={word}"]).rl.critic.view
    assert (view.history, view.state, view.privileged) == shown


def test_an_unknown_view_is_told_the_known_ones(good):
    with pytest.raises(UsageError, match="symetric, expected a section or one of full, symmetric"):
        load_recipe(good, ["rl.critic.view=symetric"])
