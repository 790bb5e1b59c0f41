"""Real runs of ``aac rl`` that fall ill by a known cause, and others that stay healthy."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.adapted import World

HERE = "tests.rl.sick_worlds"
WORDY = {
    "reward_model": 0,
    "functions": {"wordy": f"{HERE}:wordy"},
    "weights": {"wordy": 5.0},
    "episode_caps": {"wordy": 0.5},
}
BY_THE_TURN = WORDY | {
    "weights": {"wordy": 3.0},
    "episode_caps": {"wordy": 0.95},
    "dense_cap": 0.99,
}
ECHO = WORDY | {
    "functions": {"echo": f"{HERE}:echo"},
    "weights": {"echo": 5.0},
    "episode_caps": {"echo": 0.5},
}
ACTOR = {"max_new_tokens": 8, "learning_rate": 0.002, "final_rate_fraction": 1.0}
CRITIC = {"hidden_size": 8, "steps": 4, "batch_size": 8, "warm_up": {"max_iterations": 0}}
SHARED = {
    "kind": "v",
    "trunk": "shared",
    "view": "symmetric",
    "warm_up": {"max_iterations": 0},
}
RL = {
    "iterations": 14,
    "episodes": 16,
    "evaluate_every": 2,
    "evaluation_episodes": 32,
    "critic": {"kind": "none"},
    "actor": ACTOR,
    "ppo": {"epochs": 2, "minibatch_episodes": 8, "kl_coef": 0.05, "entropy_coef": 0.0},
}


@dataclass(frozen=True)
class SickRun:
    """One run: what it does differently, and the alarm its cause must raise."""

    alarm: str | None
    """None: a healthy one."""
    rl: dict[str, Any] = field(default_factory=dict)
    """Overrides of ``RL``, by dotted names with ``__``."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the training tasks."""
    turns: int = 1
    world: dict[str, int] = field(default_factory=dict)
    """Steps after which the world ``works`` or ``pays`` no more."""
    exit_code: int = 0
    seed: int = 0
    spoilt_head: bool = False
    """Start from a critic whose head was drawn thirty times too wide."""


USUAL = {"rl__actor__learning_rate": 0.0005}
"""The largest usual rate of a model this small."""
FAST = {"rl__actor__learning_rate": 0.03}
SURE = {**FAST, "rl__ppo__kl_coef": 0.0, "rl__iterations": 20}
HABIT = {"broken": True, "long": True}
SICK: dict[str, SickRun] = {
    "a component is farmed at a reckless rate": SickRun(
        "reward_hacking",
        {"rl__actor__learning_rate": 0.01, "rl__evaluate_every": 1, "rl__rewards": WORDY},
        {"broken": True},
    ),
    "a rate a hundred times too large": SickRun("kl_surge", {"rl__actor__learning_rate": 0.1}),
    "minibatch after minibatch on the same episodes": SickRun(
        "clip_fraction", {**FAST, "rl__ppo__epochs": 8}
    ),
    "a world that stops paying": SickRun("reward_collapse", world={"pays": 120}),
    "one phrase for everything": SickRun(
        "entropy_collapse", {**SURE, "rl__rewards": WORDY}, {"broken": True}
    ),
    "the same words whatever is asked": SickRun(
        "template_collapse",
        {**SURE, "rl__rewards": WORDY, "rl__actor__max_new_tokens": 4},
        {"broken": True},
    ),
    "an echo is paid": SickRun(
        "repetition",
        {"rl__actor__learning_rate": 0.005, "rl__episodes": 32, "rl__rewards": ECHO},
        {"broken": True},
    ),
    "talk is paid by the turn": SickRun(
        "out_of_budget",
        {"rl__actor__learning_rate": 0.01, "rl__rewards": BY_THE_TURN},
        HABIT,
        turns=3,
    ),
    "a sign slipped: malformed calls are paid": SickRun(
        "invalid_actions",
        {
            "rl__actor__learning_rate": 0.005,
            "rl__episodes": 48,
            "rl__rewards__weights": {"format": 5.0},
        },
        {"broken": True},
    ),
    "a world that wears out": SickRun("drops", world={"works": 100}),
    "a value head badly initialised": SickRun(
        "explained_variance",
        {**USUAL, "rl__critic": {**CRITIC, "kind": "v", "learning_rate": 1e-4}},
        spoilt_head=True,
    ),
    "one hundredfold reward on a shared trunk": SickRun(
        "gradient_spike",
        {"rl__critic": SHARED},
        world={"jackpot": 135},
    ),
    "what stage 1 taught is gone": SickRun(
        "forgetting", {**FAST, "rl__rewards": WORDY}, {"broken": True}
    ),
    "a reward that is no number": SickRun("non_finite", {}, {"nothing": True}, exit_code=1),
}
BONUS = {"rl__ppo__entropy_coef": 0.05, "rl__ppo__entropy_coef_final": 0.01}
HEALTHY: dict[str, SickRun] = {
    **{f"short replies are learned, seed {s}": SickRun(None, USUAL, seed=s) for s in range(31, 35)},
    **{
        f"over several turns with a critic, seed {s}": SickRun(
            None,
            {**USUAL, "rl__critic": {**CRITIC, "kind": "v"}},
            {"long": True},
            turns=3,
            seed=s,
        )
        for s in range(35, 38)
    },
    **{
        f"with an entropy bonus that decays, seed {s}": SickRun(None, {**USUAL, **BONUS}, seed=s)
        for s in range(38, 41)
    },
}


def prepared(root: Path) -> World:
    """A world with its SFT actor; ``run`` gives it the tasks of one run."""
    sft = {"steps": 30, "validation_fraction": 0.25}
    made = World(root, environment=_environment(root / "none.jsonl"), rl=RL, sft=sft)
    _write_tasks(root / "none.jsonl", {})
    made.aac("sft", "sft")
    return made


def started(world: World, folder: str, run: SickRun, **over: Any) -> Any:
    """``aac rl`` to whatever end it comes; the outcome of the command."""
    tasks = world.root / f"{folder}-tasks.jsonl"
    _write_tasks(tasks, run.options)
    counter = {"counter": str(world.root / f"{folder}-steps")} if run.world else {}
    environment = _environment(tasks, turns=run.turns, **counter, **run.world)
    sets = {f"environment__{name}": value for name, value in environment.items() if name != "name"}
    out = ["--sft", world.root / "sft", "--output-dir", world.root / folder, "--seed", run.seed]
    if run.spoilt_head:
        out += ["--warm-start", _spoilt(world, run, sets)]
    return world.call("rl", *out, **(sets | run.rl | over))


def _spoilt(world: World, run: SickRun, sets: dict[str, Any]) -> Path:
    """The critic of one healthy iteration, with another head."""
    words = ("--sft", world.root / "sft", "--seed", run.seed)
    healthy = world.aac("rl", "one-iteration", *words, **(sets | run.rl | {"rl__iterations": 1}))
    folder = world.root / "spoilt"
    shutil.copytree(healthy / "critic", folder)
    weights = load_file(folder / "model.safetensors")
    (name,) = (n for n in weights if n.endswith("linear.weight") and "head" in n)
    shape = weights[name].shape
    weights[name] = 30 * torch.randn(shape, generator=torch.Generator().manual_seed(run.seed))
    save_file(weights, folder / "model.safetensors")
    return folder


def _environment(tasks: Path, *, turns: int = 1, **arguments: Any) -> dict[str, Any]:
    return {
        "name": "gymnasium",
        "gymnasium": f"{HERE}:Brevity",
        "arguments": {"named": True, "most": 18, **arguments},
        "tasks": str(tasks),
        "max_turns": turns,
    }


def _write_tasks(file: Path, options: dict[str, Any]) -> None:
    """Only training tasks have the hole: held-out success tells the truth."""
    tasks = [
        *({"split": "train", "options": {"number": n, **options}} for n in range(32)),
        *({"split": "validation", "options": {"number": n}} for n in range(100, 132)),
        {"split": "test", "options": {"number": 200}},
    ]
    named = [{"id": f"task-{number}"} | task for number, task in enumerate(tasks)]
    file.write_text("".join(json.dumps(task) + "\n" for task in named))
