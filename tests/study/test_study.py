"""What a person writes: seeds, values to vary, study files; and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.common.errors import UsageError
from stages.study.study import load_study, parse_seeds, varied
from tests.recipe.bad_recipes import GOOD

STUDY = """
name: mine
recipe: demo.yaml
seeds: [4, 2]
set: {rl.iterations: 3}
variants:
  full: {}
  blind: {rl.critic.view.history: false, rl.ppo.kl_coef: 1e-2}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo.yaml").write_text(GOOD)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", (0, 1, 2)), ("0,3", (0, 3)), ("7,", (7,)), ("5, 1", (5, 1))]
)
def test_seeds_are_a_number_or_a_list(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "0", "-1", "a", "1,1", "1,x", "2.5", ","])
def test_other_seeds_are_refused(text):
    with pytest.raises(UsageError, match="--seeds .* is not understood; expected how many"):
        parse_seeds(text)


def test_vary_makes_the_product_with_names_for_folders():
    assert varied([]) == {"plain": {}}
    assert varied(["rl.ppo.kl_coef=1e-2,0.5"]) == {
        "kl_coef=0.01": {"rl.ppo.kl_coef": 0.01},
        "kl_coef=0.5": {"rl.ppo.kl_coef": 0.5},
    }
    both = varied(["state.exchanges=2,4", "rl.critic.view.history=true,false"])
    assert list(both) == [
        "exchanges=2,history=true",
        "exchanges=2,history=false",
        "exchanges=4,history=true",
        "exchanges=4,history=false",
    ]
    assert both["exchanges=4,history=false"] == {
        "state.exchanges": 4,
        "rl.critic.view.history": False,
    }
    same_ends = varied(["rl.ppo.gae_lambda=1", "rl.critic.gae_lambda=0"])
    assert list(same_ends) == ["rl.ppo.gae_lambda=1,rl.critic.gae_lambda=0"]
    lists = varied(["model.frozen=[a,b],[]", "rl.critic.trunk=a/b c"])
    assert list(lists) == ["frozen=a-b,trunk=a-b-c", "frozen=empty,trunk=a-b-c"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["rl.iterations"], "expected path=a,b,c"),
        (["=3"], "expected path=a,b,c"),
        (["rl.iterations="], "expected path=a,b,c"),
        (["rl.iterations=[1"], "--vary rl.iterations=\\[1.* is not valid YAML"),
        (["rl.iterations=1,1"], "holds a value twice"),
        (["seed=1,2"], "give them with --seeds"),
        (["rl.iterations=1", "rl.iterations=2"], "is given twice"),
    ],
)
def test_bad_vary_is_one_sentence(options, sentence):
    with pytest.raises(UsageError, match=sentence):
        varied(options)


def test_a_study_file(folder):
    (folder / "studies").mkdir()
    path = folder / "studies/mine.yaml"
    path.write_text(STUDY)
    study = load_study(path)
    assert study.recipe == Path("demo.yaml")  # of the working directory
    assert (study.name, study.seeds, study.set) == ("mine", (4, 2), {"rl.iterations": 3})
    assert study.variants["blind"] == {"rl.critic.view.history": False, "rl.ppo.kl_coef": 0.01}
    (folder / "studies/demo.yaml").write_text(GOOD)
    assert load_study(path).recipe == folder / "studies/demo.yaml"  # beside the study
    assert load_study(path, seeds="1").seeds == (0,)


def test_a_recipe_is_a_study_of_what_is_varied(folder):
    study = load_study(Path("demo.yaml"), vary=["rl.iterations=1,2"], seeds="2")
    assert (study.name, study.recipe, study.seeds) == ("demo", Path("demo.yaml"), (0, 1))
    assert list(study.variants) == ["iterations=1", "iterations=2"]
    assert load_study(Path("demo.yaml")).seeds == (0, 1, 2)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("variants:", "variant:", "variant is no known key; did you mean variants"),
        ("seeds: [4, 2]", "seeds: 3", "seeds = 3 is not allowed; expected a list of a whole"),
        ("seeds: [4, 2]", "seeds: [4, 4]", "seeds is not allowed: \\[4, 4\\], expected different"),
        ("seeds: [4, 2]", "seeds: []", "seeds = \\[\\] is not allowed"),
        ("full: {}", "full: {seed: 3}", "variants is not allowed: it sets seed"),
        ("rl.iterations: 3", "seed: 3", "set is not allowed: it sets seed"),
        ("full: {}", "a/b: {}", "'a/b' names no folder"),
        ("full: {}", "full: 3", "variants.full = 3 is not allowed"),
        ("full: {}", "full: {after: blind}", "full comes after blind, expected .* it is the first"),
        ("rl.ppo.kl_coef: 1e-2", "after: ful", r"blind comes after ful, expected .* \(full\)"),
        ("full: {}", "full: {warm_start: x}", "full takes the critic of x, expected .* the first"),
        ("name: mine", "name: a/b", "name = 'a/b' is not allowed"),
        ("recipe: demo.yaml", "", "recipe is missing; expected a path"),
        ("recipe: demo.yaml", "recipe: 3", "recipe = 3 is not allowed; expected a path"),
    ],
)
def test_bad_studies_are_one_sentence(folder, old, new, sentence):
    path = folder / "bad.yaml"
    path.write_text(STUDY.replace(old, new))
    with pytest.raises(UsageError, match=sentence) as caught:
        load_study(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_a_study_takes_no_vary(folder):
    path = folder / "mine.yaml"
    path.write_text(STUDY)
    with pytest.raises(UsageError, match="is a study, which names its variants"):
        load_study(path, vary=["rl.iterations=1"])
