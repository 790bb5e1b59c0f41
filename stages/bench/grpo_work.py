"""The work of the multi-turn comparison on disk: base model, demonstrations, tasks, recipe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.bench.analyst import SqlTools, row_of
from stages.bench.chatml import LONGEST, base_in_chatml, tools_message
from stages.bench.running import recipe_file
from stages.common.files import write_lines
from stages.interaction.arena import about
from stages.interaction.demonstrations import demonstrate_episodes
from stages.interaction.environments.base import Task
from stages.interaction.environments.sql import SqlEnvironment
from stages.interaction.states import build_state

CLOSING = "Done."
"""What an episode ends with: a reply without a call."""


@dataclass(frozen=True)
class Work:
    """Batches of episodes, and how the actor comes by what it knows before."""

    batch: int = 64
    group: int = 8
    """Episodes of each task, which GRPO compares."""
    rounds: int = 7
    """Of tool calls, at most; then one more reply."""
    tokens: int = 384
    """Longest reply; for TRL also the longest transcript after the prompt."""
    demonstrations: int = 1500
    sft_steps: int = 400
    tasks: int = 2048
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

        # Whoever speaks a new dialect has to learn its control tokens; later they are frozen.
        recipe = load_recipe(prepare(self.folder, self.work), ["model.frozen=[]"])
        return run(recipe, RunRequest(self.folder / "sft", quiet=True))


def prepare(folder: Path, work: Work) -> Path:
    """Base model, demonstrations, tasks and recipe."""
    from stages.common.models import load_tokenizer

    base = base_in_chatml(folder / "base")
    played = SqlTools()
    tools = (played.answer, played.describe, played.list_tables, played.query)  # TRL sorts them
    told = tools_message(load_tokenizer(base), tools)
    write_lines(folder / "demonstrations.jsonl", demonstrations(told, work))
    write_lines(folder / "tasks.jsonl", tasks(told, work))
    return recipe_file(folder, recipe_of(folder, work))


def demonstrations(told: dict[str, str], work: Work) -> Iterator[dict[str, Any]]:
    """The expert's episodes as dialogues in Qwen3's dialect; ``told``: the tools."""
    world = SqlEnvironment()
    episodes = demonstrate_episodes(
        world.tasks("train", work.demonstrations, work.seed),
        make_environment=SqlEnvironment,
        make_state=lambda: build_state({"exchanges": 16, "max_tokens": 10**6}, about),
        seed=work.seed,
    )
    for episode in episodes:
        messages = [told, _plain(episode.initial_messages[-1])]
        for turn in episode.turns:
            call = f"<tool_call>\n{turn.action.text}\n</tool_call>"
            messages += [{"role": "assistant", "content": call}, *map(_plain, turn.observation)]
        yield {"messages": [*messages, {"role": "assistant", "content": CLOSING}]}


def tasks(told: dict[str, str], work: Work) -> Iterator[dict[str, Any]]:
    """Rows for both sides; TRL's trainer puts the tools before the prompt by itself."""
    world = SqlEnvironment()
    for split, count in (("train", work.tasks), ("validation", 64)):
        for task in world.tasks(split, count, work.seed):
            yield {"id": task.id, "split": split, "prompt": [told, question(task)], **row_of(task)}


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
        "model": {"actor": str(folder / "base"), "frozen": ["embed_tokens"]},
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
            "max_tokens": LONGEST - work.tokens,
        },
        "sft": {
            "data": str(folder / "demonstrations.jsonl"),
            "steps": work.sft_steps,
            "batch_size": 16,
            "learning_rate": 1e-3,
            "max_length": LONGEST,
        },
        "rl": {
            "episodes": work.batch,
            "episodes_per_task": work.group,
            "evaluate_every": 0,
            "evaluation_episodes": 1,
            "actor": {
                "max_new_tokens": work.tokens,
                "learning_rate": work.rate,
                "final_rate_fraction": 1.0,
            },
            "critic": {"warm_up": {"max_iterations": 0}},
            "ppo": {"epochs": 1, "minibatch_episodes": work.batch},
            "rewards": {"reward_model": 0},
        },
    }
