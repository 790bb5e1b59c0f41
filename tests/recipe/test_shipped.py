"""Every recipe in the repository loads, says what it is for, and is counted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from stages.recipe.describe import describe
from stages.recipe.load import load_recipe
from stages.recipe.models import Recipe
from stages.recipe.ranges import advice
from stages.recipe.schema import walk
from stages.study.plan import recipes
from stages.study.study import Study, load_study

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "recipes/studies").glob("*.yaml"))
RECIPES = sorted(set((ROOT / "recipes").rglob("*.yaml")) - set(STUDIES))
# Raise them with every file that is added, so that none is left out of these tests unnoticed.
COUNT, STUDY_COUNT = 14, 12
HEADER = ("purpose", "hardware", "expected", "launch")


def test_recipes_are_counted():
    assert (len(RECIPES), len(STUDIES)) == (COUNT, STUDY_COUNT)


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_recipe_loads_from_any_folder_and_is_named_after_its_file(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_recipe(path).name == path.stem


@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
def test_study_loads_from_any_folder_with_all_its_variants(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = load_study(path)
    assert study.name == path.stem
    _, variants = recipes(study)
    assert list(variants) == list(study.variants)


@pytest.mark.parametrize("path", RECIPES + STUDIES, ids=lambda p: p.stem)
def test_recipe_says_purpose_hardware_result_and_launch_line(path):
    header = re.match(r"(#.*\n)+", path.read_text())
    assert header, "a recipe begins with a comment"
    for word in HEADER:
        assert re.search(rf"^# {word}: +\S", header.group(), re.IGNORECASE | re.MULTILINE)
    command = "compare" if path in STUDIES else "run"
    assert f"aac {command} {path.relative_to(ROOT)}" in header.group()


ON_PURPOSE = {"laptop": ["rl.ppo.gae_lambda"]}
"""Options that a recipe sets outside their usual range, and says why beside them."""


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_recipe_stays_in_the_usual_ranges(path):
    recipe = load_recipe(path)
    lines = advice(recipe, _parameters(recipe.model.actor))
    assert [line.split(" = ")[0] for line in lines] == ON_PURPOSE.get(path.stem, [])


@pytest.mark.parametrize("comments", [True, False])
@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_described_recipe_is_the_same_recipe(path, comments):
    recipe = load_recipe(path)
    again = Recipe.model_validate(yaml.safe_load(describe(recipe, comments=comments)))
    assert again == recipe


def test_every_key_has_one_line_that_describes_it():
    known = [*walk(Recipe, {}), *walk(Study, {})]
    missing = [k.dotted for k in known if not (k.field.description or "").strip()]
    assert missing == []


def _parameters(actor: str) -> int:
    """Weights of a local model, or of one whose config is known."""
    from stages.memory.architecture import architecture_of

    return architecture_of(actor).parameters
