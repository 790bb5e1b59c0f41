"""Worlds that people already have, by the words a person types: list, check, train."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aacli.app import app
from tests.interaction.environments.openenv_server import Echo, served
from tests.tiny_models import tiny_qwen3

HERE = "tests.interaction.environments.adapted"
RECIPE = """
name: adapted
threads: 1
model: {{actor: {actor}}}
environment: {environment}
state: {{tool_prompt: none, max_tokens: 600}}
sft: {{data: {data}, steps: 2, batch_size: 2, max_length: 600}}
rl:
  iterations: 1
  episodes: 4
  evaluate_every: 0
  evaluation_episodes: 2
  actor: {{max_new_tokens: 8, learning_rate: 1.0e-3}}
  critic: {{steps: 2, batch_size: 4, warm_up: {{max_iterations: 0}}}}
  ppo: {{epochs: 1, minibatch_episodes: 2}}
  rewards: {{reward_model: 0}}
"""


def run(*words: Any) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


class Home:
    """A folder with an SFT actor; recipes for one world after another are written beside it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.actor = tiny_qwen3(root / "actor")
        rows = [{"prompt": f"say {k}", "completion": f"the answer is {k}"} for k in range(8)]
        (root / "dialogues.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        made = run("sft", self.recipe("{name: sql}"), "--output-dir", root / "sft")
        assert made.exit_code == 0, made.stderr

    def recipe(self, environment: str) -> Path:
        path = self.root / "adapted.yaml"
        data = self.root / "dialogues.jsonl"
        path.write_text(RECIPE.format(actor=self.actor, environment=environment, data=data))
        return path

    def rl(self, environment: str, out: Path, *words: Any) -> Any:
        recipe = self.recipe(environment)
        return run("rl", recipe, "--sft", self.root / "sft", "--output-dir", out, *words)

    def weights_of(self, folder: Path) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(folder)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    def trained(self, environment: str, out: Path) -> list[dict[str, Any]]:
        """The episodes of one iteration; the loss was finite and the weights moved."""
        result = self.rl(environment, out)
        assert result.exit_code == 0, result.stderr
        (row,) = [json.loads(x) for x in (out / "metrics.jsonl").read_text().splitlines()]
        assert row["actor/grad_norm"] < 1e3 and row["episode/dropped"] == 0
        assert (self.weights_of(out) != self.weights_of(self.root / "sft")).any()
        (file,) = (out / "trajectories").iterdir()
        episodes = [json.loads(line) for line in file.read_text().splitlines()]
        turns = [turn for episode in episodes for turn in episode["turns"]]
        assert len(episodes) == 4
        assert all(t["action_ids"] and len(t["logprobs"]) == len(t["action_ids"]) for t in turns)
        return episodes


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


def earned(episode: dict[str, Any]) -> float:
    return sum(turn["rewards"].get("success", 0.0) for turn in episode["turns"])


def test_list_names_the_adapters_and_check_wants_a_recipe(aac: Callable[..., Any]):
    assert {"trl", "gymnasium", "program", "mcp", "openenv"} <= set(
        json.loads(aac("env", "list", "--json").stdout)
    )
    result = aac("env", "check", "trl")
    assert result.exit_code == 2 and "needs a recipe with environment: {trl: ...}" in result.stderr


def test_a_trl_class_trains(home, tmp_path):
    world = f"{{trl: '{HERE}:Unrewarded', reward_funcs: ['{HERE}:length_reward']}}"
    episodes = home.trained(world, tmp_path / "rl")
    for episode in episodes:
        assert episode["tools"][0]["function"]["name"] == "look"
        words = episode["turns"][-1]["action"]["text"]
        assert earned(episode) == pytest.approx(len(words) / 100)
    assert len({earned(episode) for episode in episodes}) > 1


def test_a_gymnasium_world_trains(home, tmp_path):
    episodes = home.trained(f"{{gymnasium: '{HERE}:Talkative'}}", tmp_path / "rl")
    for episode in episodes:
        texts = [
            t["action"]["text"].strip() for t in episode["turns"] if "invalid" not in t["info"]
        ]
        assert earned(episode) == pytest.approx(sum(min(len(x), 50) for x in texts) / 100)
    assert len({earned(episode) for episode in episodes}) > 1


@pytest.mark.full
def test_slow_and_broken_instances_are_dropped_and_the_others_train(home, tmp_path):
    """Every fourth seed takes its process along, every fourth hangs (F24)."""
    world = f"{{gymnasium: '{HERE}:Moody', workers: 2, step_timeout_s: 3}}"
    words = ("--set", "rl.episodes=8", "--set", "rl.evaluation_episodes=8")
    result = home.rl(world, tmp_path / "rl", *words)
    assert result.exit_code == 0, result.stderr
    (row,) = [json.loads(x) for x in (tmp_path / "rl" / "metrics.jsonl").read_text().splitlines()]
    assert 0 < row["episode/dropped"] < 8
    assert row["dropped/no call"] == row["episode/dropped"] / 8
    assert (home.weights_of(tmp_path / "rl") != home.weights_of(home.root / "sft")).any()


def test_a_program_that_owns_its_loop_trains(home, tmp_path):
    programs = "tests.interaction.environments.programs"
    episodes = home.trained(f"{{program: '{programs}:talker'}}", tmp_path / "rl")
    for episode in episodes:
        words = [turn["action"]["text"] for turn in episode["turns"]]
        assert len(words) == 2
        assert earned(episode) == pytest.approx(min(sum(map(len, words)), 100) / 100)
        # The tokens that were sampled are the ones that the next prompt holds.
        first, second = episode["turns"]
        start = [*first["prompt_ids"], *first["action_ids"]]
        assert second["prompt_ids"][: len(start)] == start
    assert len({earned(episode) for episode in episodes}) > 1


@pytest.mark.full
def test_the_tools_of_an_mcp_server_train(home, tmp_path):
    rows = [{"prompt": f"tell me of {name}"} for name in ("Emma", "Momo", "Ulysses")]
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shelf = "tests.interaction.environments.mcp_shelf"
    server = json.dumps([sys.executable, "-m", shelf])
    world = f"{{mcp: {server}, reward: '{shelf}:reply_length', tasks: {tasks}, reset_tool: clear}}"
    episodes = home.trained(world, tmp_path / "rl")
    for episode in episodes:
        assert episode["tools"][0]["function"]["name"] == "put"
        words = episode["turns"][-1]["action"]["text"]
        assert earned(episode) == pytest.approx(min(len(words), 50) / 100)
    assert len({earned(episode) for episode in episodes}) > 1


def test_an_openenv_server_trains(home, tmp_path):
    with served(Echo) as address:
        episodes = home.trained(f"{{openenv: '{address}'}}", tmp_path / "rl")
    for episode in episodes:
        texts = [t["action"]["text"].strip() for t in episode["turns"]]
        assert earned(episode) == pytest.approx(sum(min(len(x), 30) for x in texts) / 100)
    assert len({earned(episode) for episode in episodes}) > 1


@pytest.mark.full
def test_check_plays_a_recipes_world(home, aac):
    recipe = home.recipe(f"{{trl: '{HERE}:Lockers', expert: '{HERE}:locker_expert'}}")
    result = aac("env", "check", recipe, "--json")
    assert result.exit_code == 0, result.stderr
    policies = json.loads(result.stdout)["policies"]
    assert policies["expert"]["success"] == 1.0 and policies["null"]["success"] == 0.0


def test_the_experts_dialogues_are_what_sft_learns(home, aac, tmp_path):
    recipe = home.recipe(f"{{trl: '{HERE}:Lockers', expert: '{HERE}:locker_expert'}}")
    out = tmp_path / "rows.jsonl"
    words = ("--set", "sft.demonstrations=3", "--output", out)
    assert aac("collect", "demonstrations", recipe, *words).exit_code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [m["role"] for m in rows[0]["messages"]].count("tool") == 2 and rows[0]["success"]


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ("{trl: nonsense}", "'nonsense' was given; expected module:Class"),
        ("{trl: 'a:B', reward_functions: []}", "did you mean environment.reward_funcs"),
        ("{trl: {a: 'x:Y'}}", "several trl classes need tasks"),
        ("{gymnasium: x, actoins: text}", "did you mean environment.actions"),
        ("{trl: 'no.such.thing:Class'}", "no.such.thing cannot be imported"),
        ("{trl: 'a:B', gymnasium: x}", "environment.name is missing"),
    ],
)
def test_bad_sections_are_one_sentence(home, environment, words, tmp_path):
    result = home.rl(environment, tmp_path / "rl")
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert words in result.stderr
