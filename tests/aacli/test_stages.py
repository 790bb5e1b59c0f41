"""Commands hand each stage the right recipe, folders and flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.common.files import write_json


def test_sft_runs_in_the_folder_named_after_recipe_and_stage(here, aac, stages):
    result = aac("sft", "demo.yaml", "--set", "sft.steps=7", "--seed", "5")
    assert result.exit_code == 0
    ((name, recipe, request),) = stages.calls
    assert name == "stages.sft.run"
    assert (recipe.sft.steps, recipe.seed) == (7, 5)
    assert request.output_dir == Path("runs/demo/sft")
    assert (request.overwrite, request.resume, request.dry_run) == (False, "auto", False)
    assert "sft: done; loss 0.5, seconds 2" in result.stdout
    assert "next: aac train-reward demo.yaml --set sft.steps=7 --seed 5" in result.stdout


def test_flags_reach_the_request(here, aac, stages):
    words = ["--output-dir", "out/sft", "--resume", "never", "--overwrite", "--dry-run", "--quiet"]
    result = aac("sft", "demo.yaml", *words)
    request = stages.request
    assert request.output_dir == Path("out/sft")
    assert (request.overwrite, request.resume) == (True, "never")
    assert request.dry_run and request.quiet
    assert result.stdout == "sft: everything is in order; a dry run trains and writes nothing.\n"


def test_quiet_leaves_a_stages_figures_and_its_folder(here, aac, stages):
    out = aac("sft", "demo.yaml", "--quiet").stdout
    assert out == "sft: done; loss 0.5, seconds 2\nsft: runs/demo/sft\n"
    assert aac("run", "demo.yaml", "--quiet").stdout == ""  # the tables are the pipeline's


def test_dry_run_says_so_and_suggests_nothing(here, aac, stages):
    out = aac("sft", "demo.yaml", "--dry-run").stdout
    assert "dry run" in out and "next:" not in out


def test_a_pool_and_a_run_to_go_on_from_reach_the_stage(here, aac, stages):
    words = ("--offline", "my pool: 1.jsonl", "--start", "runs/demo/old")
    assert aac("rl", "demo.yaml", "--no-reward", *words).exit_code == 0
    ((_, recipe, request),) = stages.calls
    assert recipe.rl.offline.pool == "my pool: 1.jsonl"
    assert request.parents["start"] == Path("runs/demo/old")
    assert aac("rl", "demo.yaml", "--no-reward", "--offline", "").exit_code == 2


@pytest.mark.parametrize(
    ("there", "words", "expected"),
    [
        ([], [], "runs/demo/sft"),
        (["out/sft"], ["--output-dir", "out/rl"], "out/sft"),
        ([], ["--output-dir", "out/rl"], "runs/demo/sft"),
        (["out/sft"], ["--output-dir", "out/rl", "--sft", "mine"], "mine"),
    ],
    ids=["default", "sibling", "no sibling", "flag"],
)
def test_where_a_stage_finds_its_parent(there, words, expected, here, aac, stages):
    for folder in there:
        (here / folder).mkdir(parents=True)
    assert aac("rl", "demo.yaml", "--no-reward", *words).exit_code == 0
    assert stages.request.parents == {"sft": Path(expected)}


def test_rl_needs_the_reward_model_its_recipe_weighs(here, aac, stages):
    result = aac("rl", "demo.yaml")
    assert result.exit_code == 2
    assert "runs/demo/reward does not exist" in result.stderr
    assert "--no-reward" in result.stderr
    assert stages.calls == []
    (here / "runs/demo/reward").mkdir(parents=True)
    assert aac("rl", "demo.yaml").exit_code == 0
    assert stages.request.parents["reward"] == Path("runs/demo/reward")


def test_rl_without_reward_model_says_so_in_the_recipe(here, aac, stages):
    assert aac("rl", "demo.yaml", "--no-reward").exit_code == 0
    ((_, recipe, _),) = stages.calls
    assert recipe.rl.rewards.reward_model == 0


def test_rl_takes_the_reward_model_it_is_given(here, aac, stages):
    for folder in ("runs/demo/reward", "mine"):
        (here / folder).mkdir(parents=True)
    assert aac("rl", "demo.yaml", "--reward", "mine").exit_code == 0
    assert stages.request.parents["reward"] == Path("mine")
    result = aac("rl", "demo.yaml", "--reward", "nowhere")
    assert result.exit_code == 2 and "nowhere does not exist" in result.stderr


def test_reward_flag_and_no_reward_exclude_each_other(here, aac, stages):
    result = aac("rl", "demo.yaml", "--no-reward", "--reward", "x")
    assert result.exit_code == 2 and "exclude each other" in result.stderr


def test_next_command_keeps_a_persons_own_folders(here, aac, stages):
    out = aac("train-reward", "demo.yaml", "--output-dir", "my out/reward", "--sft", "a b").stdout
    assert "next: aac rl demo.yaml --output-dir 'my out/rl' --sft 'a b'" in out
    stages.calls.clear()
    out = aac("rl", "demo.yaml", "--no-reward", "--output-dir", "out/rl").stdout
    assert "aac eval demo.yaml --actor out/rl" in out
    assert "aac chat demo.yaml --actor out/rl" in out


def test_finished_folder_is_refused_before_anything_heavy(here, aac, stages):
    folder = here / "runs/demo/sft"
    folder.mkdir(parents=True)
    write_json(folder / "manifest.json", {"stage": "sft"})
    result = aac("sft", "demo.yaml")
    assert result.exit_code == 2
    assert "already holds a finished run" in result.stderr
    assert stages.calls == []
    assert aac("sft", "demo.yaml", "--overwrite").exit_code == 0


def test_run_takes_the_root_folder(here, aac, stages):
    assert aac("run", "demo.yaml").exit_code == 0
    assert stages.request.output_dir == Path("runs/demo")
    stages.calls.clear()
    assert aac("run", "demo.yaml", "--output-dir", "all").exit_code == 0
    assert stages.request.output_dir == Path("all")


def test_eval_and_chat_need_an_actor(here, aac):
    for command in ("eval", "chat"):
        result = aac(command, "demo.yaml")
        assert result.exit_code == 2
        assert "neither runs/demo/rl nor runs/demo/sft holds a finished run" in result.stderr


def test_collect_never_replaces_a_file_unasked(here, aac):
    (here / "rows.jsonl").write_text("precious")
    result = aac("collect", "preferences", "demo.yaml", "--output", "rows.jsonl")
    assert result.exit_code == 2
    assert "rows.jsonl exists" in result.stderr
    assert (here / "rows.jsonl").read_text() == "precious"
