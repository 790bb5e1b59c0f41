"""Whatever goes wrong: an exit code and one sentence, and a stack trace only when asked for."""

from __future__ import annotations

import errno
import json
import os
import sys

import pytest

from stages.common.errors import HandoffError, RunError, UsageError
from stages.common.interrupts import Interrupted
from tests.recipe.bad_recipes import CASES, Bad

WITH_RECIPE = (
    ("sft",),
    ("train-reward",),
    ("rl",),
    ("run",),
    ("eval",),
    ("collect", "demonstrations"),
    ("collect", "experience"),
    ("chat",),
    ("env", "check"),
    ("recipes", "show"),
    ("recipes", "validate"),
)


def one_sentence(result) -> str:
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("aac: ") and lines[0].endswith(".")
    return lines[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_bad_recipe_is_exit_code_2(case: Bad, here, aac):
    overrides = [word for text in case.overrides for word in ("--set", text)]
    result = aac("recipes", "validate", case.write(here).relative_to(here), *overrides)
    assert result.exit_code == 2
    assert result.stdout == ""
    sentence = one_sentence(result)
    for name in case.names:
        assert name in sentence
    assert "mine.yaml" in sentence or sentence.startswith("aac: --set")


@pytest.mark.parametrize("command", WITH_RECIPE, ids=" ".join)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rl: {ppo: {clip_rang: 1}}", ("rl.ppo.clip_rang", "did you mean rl.ppo.clip_range")),
        ("seed: x", ("seed = 'x'", "a whole number of at least 0")),
    ],
)
def test_every_command_refuses_a_bad_recipe(command, text, words, here, aac):
    (here / "bad.yaml").write_text((here / "demo.yaml").read_text() + text)
    result = aac(*command, "bad.yaml")
    assert result.exit_code == 2
    for word in ("bad.yaml", *words):
        assert word in one_sentence(result)
    assert sorted(path.name for path in here.iterdir()) == ["bad.yaml", "demo.yaml"]


@pytest.mark.parametrize(
    ("outcome", "code", "words"),
    [
        (UsageError("rows.jsonl, row 3: no reply."), 2, "rows.jsonl, row 3"),
        (HandoffError("runs/demo/sft was altered."), 2, "was altered"),
        (RunError("the loss is not finite."), 1, "not finite"),
        (ZeroDivisionError("division\nby zero"), 1, "ZeroDivisionError: division)"),
        (AssertionError(), 1, "AssertionError: no message"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_failures_of_a_run(outcome, code, words, here, aac, stages):
    stages.outcome = outcome
    result = aac("sft", "demo.yaml")
    assert result.exit_code == code
    assert words in one_sentence(result)
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("words", "goes_on"),
    [
        (("sft", "demo.yaml"), "aac sft demo.yaml"),
        (("sft", "demo.yaml", "--overwrite", "--quiet"), "aac sft demo.yaml --quiet"),
        (("sft", "demo.yaml", "--resume", "never", "--seed", "3"), "aac sft demo.yaml --seed 3"),
        (("sft", "demo.yaml", "--resume=never"), "aac sft demo.yaml"),
        (
            ("sft", "demo.yaml", "--set", "sft.trainer={}"),
            "aac sft demo.yaml --set 'sft.trainer={}'",
        ),
    ],
)
def test_an_interrupt_names_the_command_that_goes_on(
    words, goes_on, here, aac, stages, monkeypatch
):
    monkeypatch.setattr(sys, "argv", ["anything", *words])
    for outcome, saved in (
        (KeyboardInterrupt(), "nothing new is saved"),
        (Interrupted("the state after step 3 is saved"), "the state after step 3 is saved"),
    ):
        stages.outcome = outcome
        result = aac(*words)
        assert result.exit_code == 130
        assert result.stderr == f"aac: interrupted: {saved}; go on with: {goes_on}\n"


def test_a_full_disk_is_one_sentence(here, aac, stages):
    stages.outcome = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/demo/sft/metrics.jsonl")
    result = aac("sft", "demo.yaml")
    assert result.exit_code == 1
    sentence = one_sentence(result)
    assert "runs/demo/sft/metrics.jsonl could not be written (No space left on device)" in sentence
    assert "make room" in sentence


def test_unexpected_failure_names_debug_and_debug_shows_the_trace(here, aac, stages):
    stages.outcome = ZeroDivisionError("oops")
    assert "--debug" in aac("sft", "demo.yaml").stderr
    stages.calls.clear()
    result = aac("sft", "demo.yaml", "--debug")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr and "aac: the run failed" in result.stderr


def test_debug_also_traces_errors_of_the_person(here, aac, stages):
    stages.outcome = UsageError("rows.jsonl, row 3: no reply.")
    result = aac("sft", "demo.yaml", "--debug")
    assert result.exit_code == 2 and "Traceback" in result.stderr


@pytest.mark.parametrize(
    "words",
    [("sft",), ("sft", "demo.yaml", "--sett", "a=1"), ("collect", "wishes", "demo.yaml"), ("stf",)],
)
def test_bad_usage_is_exit_code_2(words, here, aac):
    result = aac(*words)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_bad_seed_is_named(here, aac):
    result = aac("sft", "demo.yaml", "--seed", "-1")
    assert result.exit_code == 2
    assert "seed = -1" in one_sentence(result)


def test_json_result_is_alone_on_stdout(here, aac, stages):
    result = aac("sft", "demo.yaml", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"loss": 0.5, "seconds": 2}


def test_json_of_validate_lists_every_problem(here, aac):
    (here / "bad.yaml").write_text("")
    result = aac("recipes", "validate", "demo.yaml", "bad.yaml", "--json")
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert found["valid"] is False
    assert found["problems"]["demo.yaml"] is None
    assert "is empty" in found["problems"]["bad.yaml"]
