"""``aac recipes`` and ``aac env list`` as a person uses them."""

from __future__ import annotations

import json

import yaml

from stages.recipe.load import load_recipe


def test_list_names_recipes_and_their_purpose(here, aac):
    (here / "recipes").mkdir()
    (here / "recipes/a.yaml").write_text("# Purpose: to try it.\nname: a\n")
    (here / "recipes/b.yaml").write_text("name: b\n")
    out = aac("recipes", "list").stdout.splitlines()
    assert out[0].split(maxsplit=1) == ["recipes/a.yaml", "to try it."]
    assert out[1].strip() == "recipes/b.yaml"
    rows = json.loads(aac("recipes", "list", "--json").stdout)
    assert rows[0] == {"path": "recipes/a.yaml", "purpose": "to try it."}


def test_list_of_no_folder(here, aac):
    result = aac("recipes", "list", "nowhere")
    assert result.exit_code == 2 and "nowhere is no folder" in result.stderr


def test_show_prints_a_recipe_that_loads_to_the_same(here, aac):
    result = aac("recipes", "show", "demo.yaml", "--set", "rl.ppo.epochs=4")
    assert "# Passes over each iteration's episodes." in result.stdout
    (here / "shown.yaml").write_text(result.stdout)
    assert load_recipe(here / "shown.yaml") == load_recipe(here / "demo.yaml", ["rl.ppo.epochs=4"])
    plain = aac("recipes", "show", "demo.yaml", "--plain").stdout
    assert "#" not in plain
    shown = json.loads(aac("recipes", "show", "demo.yaml", "--json").stdout)
    assert yaml.safe_load(plain) == shown


def test_validate_says_which_are_valid(here, aac):
    result = aac("recipes", "validate", "demo.yaml")
    assert result.exit_code == 0
    assert result.stdout == "demo.yaml is valid.\n"


def test_environments_are_listed(aac):
    lines = aac("env", "list").stdout.splitlines()
    assert any(line.startswith("sql  ") and "SQLite" in line for line in lines)
    assert all(len(line.split()) > 3 for line in lines)
    assert "sql" in json.loads(aac("env", "list", "--json").stdout)
