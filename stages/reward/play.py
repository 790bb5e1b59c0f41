"""Preferences and turns from the SFT actor's own play."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.common.chat import encode_prompt
from stages.common.console import progress
from stages.common.errors import RunError
from stages.interaction.environments import EnvironmentOptions, make_environment
from stages.interaction.rollout import collect
from stages.interaction.states import build_state
from stages.interaction.tasks import draw_tasks
from stages.interaction.trajectory import Trajectory
from stages.recipe.models import ActorSection, ModelSection, StateSection

PARALLEL = 128
"""Environments played at once."""


@dataclass(frozen=True)
class Sampling:
    """Which actor plays what, how often, and keyed by what."""

    actor: Path
    tasks: int
    samples_per_task: int
    seed: int


def play(
    sampling: Sampling,
    *,
    model: ModelSection,
    environment: EnvironmentOptions,
    state: StateSection,
    generation: ActorSection,
) -> list[Trajectory]:
    """Each training task played several times by the actor of a folder, at the temperature of RL.

    Episodes that the machinery dropped are left out; RunError if none is left.
    """
    policy, tokenizer = _policy(sampling.actor, model, generation)
    world = make_environment(environment)
    try:
        tasks = draw_tasks(world, "train", sampling.tasks, sampling.seed)
    finally:
        world.close()
    repeated = [task for task in tasks for _ in range(sampling.samples_per_task)]
    with progress("preferences", len(repeated)) as advance:
        episodes = collect(
            repeated,
            make_environment=lambda: make_environment(environment),
            make_state=lambda: build_state(state, lambda m: len(encode_prompt(tokenizer, m))),
            policy=policy,
            key=(sampling.seed, 0),
            parallel=PARALLEL,
            on_episode=lambda _: advance(),
        )
    return _kept(episodes)


def _policy(folder: Path, model: ModelSection, generation: ActorSection) -> tuple[Any, Any]:
    import torch

    from stages.common.models import load_actor, load_tokenizer
    from stages.interaction.native import NativePolicy

    tokenizer = load_tokenizer(folder, model.chat_template)
    actor = load_actor(folder, dtype=model.dtype, tokenizer=tokenizer).eval()
    if torch.cuda.is_available():
        actor.to("cuda")
    policy = NativePolicy(
        actor,
        tokenizer,
        temperature=generation.temperature,
        max_new_tokens=generation.max_new_tokens,
    )
    return policy, tokenizer


def _kept(episodes: Sequence[Trajectory]) -> list[Trajectory]:
    kept = [episode for episode in episodes if episode.error is None and episode.turns]
    if not kept:
        raise RunError(
            f"all {len(episodes)} episodes were dropped ({episodes[0].error}); "
            "check the environment with aac env check."
        )
    return kept
