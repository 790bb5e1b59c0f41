"""The work of the multi-turn comparison on disk: demonstrations, tasks, recipe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.bench.analyst import row_of
from stages.bench.models import BASE
from stages.bench.running import recipe_file
from stages.common.files import write_lines
from stages.interaction.arena import about
from stages.interaction.demonstrations import demonstrate_episodes
from stages.interaction.environments.base import Task
from stages.interaction.environments.sql import SqlEnvironment
from stages.interaction.environments.sql.options import ExpertOptions, SqlOptions
from stages.interaction.states import build_state

CLOSING = "Done."
"""What an episode ends with: a reply without a call."""
LONGEST = 1024
"""Tokens of a dialogue: the base model's context."""
SPLITS = {"validation": 256, "test": 256}
"""Held-out tasks: settings are chosen on the former, the race is judged on the latter."""
EXPERT = ExpertOptions(
    wrong_aggregate=0.6,
    dropped_filter=0.6,
    dropped_join_filter=0.5,
    wrong_operator=0.6,
    wrong_order=0.6,
    skipped_step=0.5,
)
"""As in recipes/quickstart.yaml: what RL has to mend."""


@dataclass(frozen=True)
class Work:
    """Batches of episodes, and how the actor comes by what it knows before."""

    batch: int = 64
    group: int = 8
    """Episodes of each task, which GRPO compares."""
    rounds: int = 7
    """Of tool calls, at most; then one more reply."""
    reply: int = 56
    """Tokens of a reply at most. Without a limit, a few that never end would hold up all others."""
    tokens: int = LONGEST - 64
    """For TRL: of the longest transcript after the prompt."""
    demonstrations: int = 4000
    sft_steps: int = 600
    tasks: int = 4096
    rate: float = 1e-6
    """So low that the actor stays as it is: episodes are alike in all repeats."""
    seed: int = 0


class Teacher:
    """Makes what both sides begin with; one call."""

    def __init__(self, folder: Path, work: Work) -> None:
        self.folder, self.work = folder, work

    def __call__(self) -> dict[str, Any]:
        """Files, and stage 1 on them; the actor is in ``folder/sft``."""
        from stages.common.run_folder import RunRequest
        from stages.recipe.load import load_recipe
        from stages.sft.run import run

        recipe = load_recipe(prepare(self.folder, self.work))
        return run(recipe, RunRequest(self.folder / "sft", quiet=True))


def prepare(folder: Path, work: Work) -> Path:
    """Demonstrations, tasks and recipe."""
    write_lines(folder / "demonstrations.jsonl", demonstrations(work))
    write_lines(folder / "tasks.jsonl", tasks(work))
    return recipe_file(folder, recipe_of(folder, work))


def demonstrations(work: Work) -> Iterator[dict[str, Any]]:
    """The expert's episodes as dialogues."""
    world = SqlEnvironment(SqlOptions(expert=EXPERT))
    episodes = demonstrate_episodes(
        world.tasks("train", work.demonstrations, work.seed),
        make_environment=lambda: SqlEnvironment(world.options),
        make_state=lambda: build_state({"exchanges": 16, "max_tokens": 10**6}, about),
        seed=work.seed,
    )
    for episode in episodes:
        messages = [_plain(episode.initial_messages[-1])]
        for turn in episode.turns:
            call = {"role": "assistant", "content": turn.action.text}
            messages += [call, *map(_plain, turn.observation)]
        yield {"messages": [*messages, {"role": "assistant", "content": CLOSING}]}


def tasks(work: Work) -> Iterator[dict[str, Any]]:
    """Rows for both sides."""
    world = SqlEnvironment()
    for split, count in {"train": work.tasks, **SPLITS}.items():
        for task in world.tasks(split, count, work.seed):
            yield {"id": task.id, "split": split, "prompt": [question(task)], **row_of(task)}


def question(task: Task) -> dict[str, str]:
    """What the user asks."""
    return {"role": "user", "content": str(task.payload["questions"][0]["text"])}


def _plain(message: Any) -> dict[str, str]:
    return {"role": message["role"], "content": message["content"]}


def recipe_of(folder: Path, work: Work) -> dict[str, Any]:
    """For stages 1 and 3 of this project."""
    return {
        "name": "multi-turn",
        "seed": work.seed,
        "model": {"actor": str(BASE), "frozen": ["embed_tokens"]},
        "environment": {
            "name": "trl",
            "trl": "stages.bench.analyst:SqlTools",
            "tasks": str(folder / "tasks.jsonl"),
            "max_turns": work.rounds + 1,
        },
        "state": {
            "tool_prompt": "none",
            "checklist": False,
            "exchanges": work.rounds + 1,
            "max_tokens": LONGEST - work.reply,
        },
        "sft": {
            "data": str(folder / "demonstrations.jsonl"),
            "steps": work.sft_steps,
            "batch_size": 16,
            "learning_rate": 5e-4,
            "max_length": LONGEST,
        },
        "rl": {
            "episodes": work.batch,
            "episodes_per_task": work.group,
            "evaluate_every": 0,
            "evaluation_episodes": 1,
            "actor": {
                "max_new_tokens": work.reply,
                "learning_rate": work.rate,
                "final_rate_fraction": 1.0,
            },
            "critic": {"warm_up": {"max_iterations": 0}},
            "ppo": {"epochs": 1, "minibatch_episodes": work.batch},
            "rewards": {"reward_model": 0, "weights": {"format": 0.0, "repeated": 0.0}},
        },
    }
