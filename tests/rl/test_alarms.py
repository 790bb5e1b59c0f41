"""Alarms caused in real runs of ``aac rl``, and what each action does about them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.recipe.models import RlSection
from stages.rl.kl import KlCoefficient
from stages.rl.rewarding import build_rewarding
from tests.adapted import World, rows, tensors
from tests.rl.worlds import episode, setup

RL = {
    "iterations": 6,
    "episodes": 16,
    "evaluate_every": 1,
    "evaluation_episodes": 32,
    "critic": {"kind": "none"},
    "rewards": {
        "functions": {"wordy": "tests.rl.sick_worlds:wordy"},
        "weights": {"wordy": 5.0},
        "episode_caps": {"wordy": 0.5},
    },
    # So high a rate that the actor leaps, at a constant level that an action's effect stands out of
    "actor": {"max_new_tokens": 8, "learning_rate": 0.03, "final_rate_fraction": 1.0},
    "ppo": {"epochs": 2, "minibatch_episodes": 8, "kl_coef": 0.05, "entropy_coef": 0.0},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Its training tasks never pay success: the letters of a reply are farmed instead."""
    root = tmp_path_factory.mktemp("sick")
    tasks = [
        *({"split": "train", "options": {"broken": True}} for _ in range(16)),
        *({"split": "validation"} for _ in range(32)),
        {"split": "test"},
    ]
    named = [{"id": f"task-{number}"} | task for number, task in enumerate(tasks)]
    file = root / "tasks.jsonl"
    file.write_text("".join(json.dumps(task) + "\n" for task in named))
    environment = {
        "name": "gymnasium",
        "gymnasium": "tests.rl.sick_worlds:Brevity",
        "tasks": str(file),
        "max_turns": 1,
    }
    made = World(root, environment=environment, rl=RL)
    made.aac("sft", "sft")
    return made


def started(world: World, folder: str, **over: Any) -> Any:
    """``aac rl`` to whatever end it comes."""
    out = ("--output-dir", world.root / folder)
    return world.call("rl", "--sft", world.root / "sft", *out, **over)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def summary(world: World, folder: str) -> dict[str, Any]:
    return json.loads((world.root / folder / "summary.json").read_text())


def raised(table: list[dict[str, Any]], name: str) -> list[int]:
    return [row["step"] for row in table if f"alarm/{name}" in row]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_farmed_component_is_named_and_the_run_goes_on(world: World) -> None:
    result = started(world, "farmed")
    assert result.exit_code == 0, result.stderr
    table, told = rows(world.root / "farmed"), lines(world.root / "farmed/alarms.jsonl")
    assert table[-1]["reward/wordy"] > 2 * table[0]["reward/wordy"]  # it really is exploited
    assert len(table) == 6
    for name in ("reward_hacking", "kl_surge", "clip_fraction"):
        steps = raised(table, name)
        assert steps == [line["step"] for line in told if line["alarm"] == name] and steps
        assert summary(world, "farmed")["alarms"][name] == len(steps)
        said = [s for s in result.stderr.splitlines() if s.startswith(f"alarm {name} ")]
        assert len(said) == len(steps) and "Usual cure: " in said[0]
    hacking = next(line for line in told if line["alarm"] == "reward_hacking")
    assert "while reward/wordy rose by" in hacking["figures"] and hacking["action"] == "warn"
    end = summary(world, "farmed")
    assert end["validation_success"] < end["best"]["success"] - 0.3


def test_stop_ends_the_run_and_keeps_the_best(world: World) -> None:
    result = started(world, "stopped", rl__monitor__reward_hacking="stop")
    assert result.exit_code == 1 and "Traceback" not in result.stderr
    table, end = rows(world.root / "stopped"), summary(world, "stopped")
    assert raised(table, "reward_hacking") == [table[-1]["step"]] and table[-1]["step"] < 6
    said = result.stderr.splitlines()[-1]
    best = end["best"]["step"]
    assert "stopped at iteration" in said and f"the actor of iteration {best} " in said
    assert not (world.root / "stopped/manifest.json").exists()
    assert "reward_hacking" in end["stopped"]
    world.rl("short", rl__iterations=best)  # the same run, to its best iteration and no further
    assert same(tensors(world.root / "stopped"), tensors(world.root / "short"))


def test_roll_back_returns_to_the_best_at_half_the_rate_a_few_times(world: World) -> None:
    monitor = {"rl__monitor__reward_hacking": "roll_back", "rl__monitor__max_rollbacks": 1}
    result = started(world, "back", rl__iterations=24, **monitor)
    table, told = rows(world.root / "back"), lines(world.root / "back/alarms.jsonl")
    first, second = (line for line in told if line["alarm"] == "reward_hacking")
    assert "back to the actor of iteration" in first["done"] and "(1 of 1)" in first["done"]
    before, after = table[first["step"] - 1], table[first["step"]]
    assert after["actor/learning_rate"] == before["actor/learning_rate"] / 2 == 0.015
    assert after["actor/kl"] < before["actor/kl"] / 2
    assert after["evaluation/success"] > before["evaluation/success"] + 0.2
    assert result.exit_code == 1 and "fell ill again after 1 roll-back" in result.stderr
    assert "no roll-back is left" in second["done"] and table[-1]["step"] == second["step"]
    end = summary(world, "back")
    assert end["rollbacks"] == 1
    world.rl("until", rl__iterations=end["best"]["step"])
    assert same(tensors(world.root / "back"), tensors(world.root / "until"))


def test_rates_are_lowered_and_kl_is_raised(world: World) -> None:
    table = world.rl(
        "tuned", rl__monitor__kl_surge="lower_rate", rl__monitor__clip_fraction="raise_kl"
    )
    for name, figure, factor in (
        ("kl_surge", "actor/learning_rate", 0.5),
        ("clip_fraction", "actor/kl_coef", 2.0),
    ):
        step = raised(table, name)[0]
        assert table[step][figure] == factor * table[step - 1][figure]
        assert len({row[figure] for row in table[:step]}) == 1  # and not before


def timeless(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in table]


def test_resume_goes_on_with_the_monitors_state(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed twice, once amid an alarm's silence: alarms, coefficient and weights are the same."""
    options = {
        "rl__checkpoint_every": 1,
        "rl__ppo__kl_target": 0.1,
        "rl__ppo__kl_gain": 0.5,
        "rl__monitor__clip_fraction": "raise_kl",
        "rl__monitor__kl_surge": "lower_rate",
    }
    whole = world.rl("whole", **options)
    from stages.rl.player import Player

    real, deaths = Player.collect, [3, 5]

    def killed(self: Any, iteration: int, version: int) -> Any:
        if deaths and iteration == deaths[0]:
            deaths.pop(0)
            raise KeyboardInterrupt
        return real(self, iteration, version)

    monkeypatch.setattr(Player, "collect", killed)
    for _ in range(2):
        assert started(world, "cut", **options).exit_code == 130
    again = world.rl("cut", **options)
    assert timeless(again) == timeless(whole)
    assert same(tensors(world.root / "cut"), tensors(world.root / "whole"))
    alarms = [lines(world.root / folder / "alarms.jsonl") for folder in ("cut", "whole")]
    assert alarms[0] == alarms[1] != []
    assert summary(world, "cut")["alarms"] == summary(world, "whole")["alarms"]
    # Ziegler et al. 2019, and twice where the alarm says so
    for now, later in pairwise(whole):
        error = min(max(now["actor/kl"] / 0.1 - 1, -0.2), 0.2)
        factor = (1 + 0.5 * error) * (2 if "alarm/clip_fraction" in now else 1)
        assert later["actor/kl_coef"] == pytest.approx(factor * now["actor/kl_coef"], rel=1e-12)


@pytest.mark.parametrize(
    ("over", "words"),
    [
        (
            {"rl__monitor__kl_surge": "raise_kl", "rl__ppo__kl_coef": 0},
            "rl.ppo.kl_coef, which is 0",
        ),
        (
            {"rl__monitor__reward_hacking": "roll_back", "rl__evaluate_every": 0},
            "rl.evaluate_every is 0",
        ),
        (
            {"rl__monitor__forgetting": "roll_back", "rl__forgetting__every": 0},
            "rl.monitor.forgetting = roll_back can do nothing",
        ),
        ({"rl__ppo__kl_target": 0.1, "rl__ppo__kl_coef": 0}, "a start above 0"),
        ({"rl__monitor__kl_surge": "rollback"}, "did you mean roll_back"),
        ({"rl__monitor__kl_surges": "warn"}, "did you mean rl.monitor.kl_surge"),
    ],
)
def test_actions_that_cannot_act_are_refused(
    world: World, over: dict[str, Any], words: str
) -> None:
    assert words in world.refused("rl", "--sft", world.root / "sft", **over)


def test_a_kl_in_the_reward_moves_with_its_coefficient() -> None:
    rl = RlSection.model_validate({"ppo": {"kl_loss": "in_reward"}, "rewards": {"reward_model": 0}})
    coefficient = KlCoefficient(0.1)
    rewarding = build_rewarding(rl, None, kl=coefficient)
    plain = episode([([1], [3], 0.0)])
    drifted = plain.with_turns([replace(plain.turns[0], info={"kl_to_reference": 2.0})])
    before = rewarding.turn_rewards(drifted)[0]
    coefficient.value = 0.3
    assert rewarding.turn_rewards(drifted)[0] == pytest.approx(before - 0.4)


def test_moments_are_forgotten(tmp_path: Path) -> None:
    trainer = setup(tmp_path)
    ids = torch.tensor([[1, 3, 2]])
    mask = torch.tensor([[False, True, True]])
    trainer.descent.accumulate(lambda: trainer.actor_logits(ids, mask).square().sum(), last=True)
    trainer.descent.step(1.0)
    moments = [v for state in trainer.optimizer.state.values() for v in state.values()]
    assert any(v.any() for v in moments)
    trainer.descent.forget()
    assert moments and not any(v.any() for v in moments)
