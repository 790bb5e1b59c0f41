"""``aac eval``, ``collect``, ``env``, ``chat`` and ``run`` as a person types them, for real."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aacli.app import app
from stages import pipeline
from stages.common.files import write_json
from stages.common.manifest import build_manifest
from stages.interaction.environments.sql.lexicon import BY_NAME
from stages.interaction.generation import Generation
from stages.interaction.player import LoadedActor
from stages.interaction.states import StateOptions
from tests.tiny_models import tiny_llama

PROMISED = {
    "success", "return", "turns", "episodes", "components", "out_of_budget", "invalid_actions",
    "repeated_calls", "loops",
}  # fmt: skip
RECIPE = """
name: tiny
threads: 1
model: {{actor: {actor}}}
environment: {{name: sql, max_turns: 6}}
state: {{tool_prompt: none, max_tokens: 512}}
sft: {{demonstrations: 6}}
reward: {{tasks: 2, samples_per_task: 2}}
rl: {{actor: {{max_new_tokens: 4}}}}
evaluation: {{episodes: 4, readiness_tasks: 1}}
"""


@pytest.fixture(scope="module")
def actor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "actor")


@pytest.fixture
def place(tmp_path: Path, actor: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with tiny.yaml in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(RECIPE.format(actor=actor))
    return tmp_path


@pytest.fixture
def shop(place: Path) -> Path:
    path = place / "shop.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript("CREATE TABLE teas (name TEXT); INSERT INTO teas VALUES ('assam');")
    connection.close()
    return path


def one_object(result: Any) -> Any:
    """The one JSON object on standard output."""
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def test_eval_json_is_one_object_equal_for_equal_seeds(place, actor, aac):
    command = ("eval", "tiny.yaml", "--actor", actor, "--json")
    first, second = aac(*command), aac(*command)
    row = one_object(first)
    assert first.stdout == second.stdout
    assert row.keys() >= PROMISED
    assert row["episodes"] == 4


def test_evaluation_has_a_temperature_of_its_own(place, actor, aac):
    """Nearly frozen it plays what greedy play does, however hot the rollouts of training are."""
    command = ("eval", "tiny.yaml", "--actor", actor, "--json", "--set", "rl.actor.temperature=5")
    greedy = one_object(aac(*command, "--greedy"))
    cold = one_object(aac(*command, "--set", "evaluation.temperature=0.0001"))
    hot = one_object(aac(*command))
    assert cold | {"greedy": True} == greedy
    assert hot | {"greedy": True} != greedy


def test_eval_options_reach_the_evaluation(place, actor, aac):
    flags = ("--greedy", "--episodes", 3, "--split", "validation", "--seed", 5, "--json")
    row = one_object(aac("eval", "tiny.yaml", "--actor", actor, *flags))
    assert (row["greedy"], row["episodes"], row["split"]) == (True, 3, "validation")
    assert row["seed"] == 5
    policy = one_object(aac("eval", "tiny.yaml", "--policy", "frequent", "--json"))
    assert policy["policy"] == "frequent"


def test_a_limit_on_malformed_replies_ends_the_episodes_of_whoever_says_nothing(place, aac):
    command = ("eval", "tiny.yaml", "--policy", "null", "--json")
    assert one_object(aac(*command))["turns"] == 6
    limit = ("--set", "environment.malformed_limit=2")
    assert one_object(aac(*command, *limit))["turns"] == 2


def test_eval_takes_the_newest_finished_actor(place, actor, aac):
    for stage in ("rl", "sft"):
        folder = place / "runs" / "tiny" / stage
        tiny_llama(folder)
        if stage == "sft":
            write_json(folder / "manifest.json", build_manifest(folder, stage, recipe={}).to_json())
    row = one_object(aac("eval", "tiny.yaml", "--json"))
    assert row["actor"] == "runs/tiny/sft"  # rl is not finished


def test_eval_for_people_is_a_table(place, actor, aac):
    result = aac("eval", "tiny.yaml", "--actor", actor, "--episodes", 2)
    assert result.exit_code == 0
    assert "repeated calls" in result.stdout
    assert "success per kind and group of tasks" in result.stdout


def test_quiet_leaves_the_results(place, actor, aac):
    tables = aac("eval", "tiny.yaml", "--actor", actor, "--episodes", 2, "-q")
    assert "repeated calls" in tables.stdout and "success per kind" in tables.stdout
    checks = aac("env", "check", "tiny.yaml", "-q")
    assert checks.exit_code == 0 and "gold hidden" in checks.stdout
    verdict = aac("chat", "tiny.yaml", "--actor", actor, "--task", 1, "-q").stdout
    assert verdict.startswith("no answer within 6 turns\nwrong; expected: ")
    silent = aac("eval", "tiny.yaml", "--actor", actor, "--episodes", 2, "-q", "--json")
    assert one_object(silent)["episodes"] == 2 and silent.stderr == ""


@pytest.mark.parametrize("quiet", [False, True])
def test_chat_answers_one_question_and_leaves(place, actor, shop, aac, monkeypatch, quiet):
    reply = Generation(text='{"name": "answer", "arguments": {"value": 12}}')

    class Sure:
        def generate(self, requests: Any, *, greedy: bool = False) -> list[Generation]:
            return [reply for _ in requests]

    sure = LoadedActor(Sure(), count_tokens=len, state=StateOptions())
    monkeypatch.setattr("stages.evaluation.chat.player", lambda *_: sure)
    words = ("--database", shop, "--question", "how many teas?", *(["-q"] if quiet else []))
    result = aac("chat", "tiny.yaml", "--actor", actor, *words)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "answer: 12"
    assert ("The agent works in" in result.stdout) is not quiet
    rows = one_object(aac("chat", "tiny.yaml", "--actor", actor, *words, "--json"))
    assert [(row["question"], row["answer"]) for row in rows] == [("how many teas?", "12")]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--actor", "runs/nothing"), "runs/nothing"),
        (("--actor", "x", "--policy", "null"), "either --actor or --policy"),
        (("--episodes", "0", "--policy", "null"), "evaluation.episodes"),
        ((), "neither runs/tiny/rl nor runs/tiny/sft"),
    ],
)
def test_eval_refuses_in_one_sentence(place, aac, words, sentence):
    result = aac("eval", "tiny.yaml", *words)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


def test_a_persons_own_database_is_evaluated(place, shop, actor, aac):
    questions = place / "questions.jsonl"
    rows = [{"question": "how many teas?", "sql": "SELECT COUNT(*) FROM teas"}]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = ("--set", f"environment.database={shop}", "--set", f"environment.questions={questions}")
    result = aac("eval", "tiny.yaml", "--actor", actor, *own, "--json")
    assert one_object(result)["episodes"] == 1
    assert "will stumble over the names in a database of your own" in result.stderr
    expert = one_object(aac("eval", "tiny.yaml", "--policy", "expert", *own, "--json"))
    assert expert["success"] == 1.0


def test_collect_writes_rows_and_says_where(place, actor, aac):
    row = one_object(aac("collect", "demonstrations", "tiny.yaml", "--json"))
    assert row["output"] == "runs/tiny/demonstrations.jsonl"
    assert len((place / row["output"]).read_text().splitlines()) == row["rows"] == 6
    pairs = aac("collect", "preferences", "tiny.yaml", "--actor", actor)
    # A random actor is never right, so that there is nothing to prefer.
    assert pairs.exit_code == 2
    assert "4 episodes gave no preferences" in pairs.stderr


@pytest.mark.parametrize("kind", ["mixed", "invented"])
def test_demonstrations_over_made_up_domains(place, aac, kind):
    words = ("collect", "demonstrations", "tiny.yaml", "--json")
    groups = {}
    for share in (0, 1):
        more = ("--set", f"environment.{kind}_domains={share}", "--output", f"{kind}-{share}.jsonl")
        row = one_object(aac(*words, *more))
        lines = (place / row["output"]).read_text().splitlines()
        groups[share] = {json.loads(line)["task_id"].split("-")[0] for line in lines}
    assert groups[1] == {kind} and groups[0] <= set(BY_NAME)


def test_collect_replaces_a_chosen_file_when_told_to(place, aac):
    chosen = place / "own" / "rows.jsonl"
    words = ("collect", "demonstrations", "tiny.yaml", "--output", chosen)
    assert one_object(aac(*words, "--json"))["output"] == str(chosen)
    written = chosen.read_text()
    assert len(written.splitlines()) == 6 and not (place / "runs").exists()
    chosen.write_text("old")
    assert aac(*words).exit_code == 2 and chosen.read_text() == "old"
    assert aac(*words, "--overwrite").exit_code == 0 and chosen.read_text() == written


def test_env_check_by_name_and_by_recipe(place, aac):
    by_name = one_object(aac("env", "check", "sql", "--json"))
    policies = by_name["policies"]
    assert set(policies) == {"null", "random", "most_frequent", "expert"}
    assert all(policies[name]["success"] < 0.1 for name in ("null", "random", "most_frequent"))
    assert by_name["deterministic"] is True and by_name["steps_per_s"] > 0
    by_recipe = aac("env", "check", "tiny.yaml")
    assert by_recipe.exit_code == 0
    assert "gold hidden" in by_recipe.stdout
    assert {"sql", "service", "code", "trl", "mcp"} <= set(one_object(aac("env", "list", "--json")))


def test_env_check_fails_where_the_contract_is_broken(place, aac, monkeypatch):
    from stages.evaluation import contract

    monkeypatch.setitem(contract.CHECKS, "deterministic", lambda probe: (False, "it is fickle"))
    result = aac("env", "check", "sql")
    assert result.exit_code == 1
    assert "sql breaks its contract (deterministic: it is fickle)" in result.stderr


def test_chat_with_a_pipe(place, actor, shop):
    words = ["chat", "tiny.yaml", "--actor", str(actor), "--database", str(shop)]
    result = CliRunner().invoke(app, words, input="how many teas are there?\nquit\n")
    assert result.exit_code == 0, result.stderr
    assert "no answer within 6 turns" in result.stdout


def test_chat_plays_a_task(place, actor, aac):
    rows = one_object(aac("chat", "tiny.yaml", "--actor", actor, "--task", 1, "--json"))
    assert [row["success"] for row in rows] == [False]
    shown = aac("chat", "tiny.yaml", "--actor", actor, "--task", 1).stdout
    assert "\nwrong; expected: " in shown


def fake_stage(actor: Path) -> Callable[[str], Callable[..., dict[str, Any]]]:
    """Stages that copy the actor."""

    def function(name: str) -> Callable[..., dict[str, Any]]:
        def run(recipe: Any, request: Any) -> dict[str, Any]:
            tiny_llama(request.output_dir)
            manifest = build_manifest(
                request.output_dir,
                name,
                recipe=recipe.model_dump(mode="json"),
                parents=request.parents,
            )
            write_json(request.output_dir / "summary.json", {})
            write_json(request.output_dir / "manifest.json", manifest.to_json())
            return {}

        return run

    return function


def test_run_ends_with_tables_and_what_to_type_next(place, actor, aac, monkeypatch):
    monkeypatch.setattr(pipeline, "stage_function", fake_stage(actor))
    result = aac("run", "tiny.yaml")
    assert result.exit_code == 0, result.stderr
    assert "success on 4 held-out tasks" in result.stdout
    for command in ("chat", "eval"):
        assert f"aac {command} tiny.yaml --actor runs/tiny/rl" in result.stdout
    assert "sft.data=dialogues.jsonl" in result.stdout
    quiet = aac("run", "tiny.yaml", "--quiet").stdout
    assert "success on 4 held-out tasks" in quiet and "next:" not in quiet
    again = one_object(aac("run", "tiny.yaml", "--json"))
    assert again == json.loads(Path("runs/tiny/summary.json").read_text())


def test_evaluation_modules_load_no_torch_by_themselves():
    import subprocess

    modules = "metrics policies readiness held_out contract check tables run collect chat"
    code = (
        f"import sys; [__import__(f'stages.evaluation.{{m}}') for m in {modules.split()!r}]\n"
        "import stages.pipeline\n"
        "assert not {'torch', 'transformers', 'trl'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
