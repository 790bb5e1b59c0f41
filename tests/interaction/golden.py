"""A small rollout of the shipped base model, recorded once: ``python -m tests.interaction.golden``.

``golden.json`` was written by the engine as it stood before its speed was worked on; whatever
is done for speed has to give the same tokens, and the same log-probs up to rounding.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stages.common.chat import encode_prompt
from stages.common.models import load_actor, load_tokenizer
from stages.interaction.arena import Arena
from stages.interaction.native import NativePolicy
from stages.recipe.load import load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
FILE = Path(__file__).with_suffix(".json")
PLAYS: dict[str, dict[str, Any]] = {
    "transcript": {"exchanges": 8, "max_tokens": 640, "tool_prompt": "none"},
    "window": {"exchanges": 2, "max_tokens": 640, "tool_prompt": "short"},
    "greedy": {"exchanges": 8, "max_tokens": 640, "tool_prompt": "none"},
}
"""State options of each play; in the second, prompts lose their oldest exchange at every turn."""


def rollout(
    name: str, *, parallel: int = 128, policy: Any = None, episodes: int = 6
) -> Iterator[list[list[Any]]]:
    """Per episode its turns as [check sum of the prompt, sampled ids, log-probs]."""
    recipe = load_recipe(RECIPES / "quickstart.yaml")
    arena = Arena.of(recipe.environment, PLAYS[name], recipe.rl.rewards, parallel=parallel)
    tokenizer = load_tokenizer(RECIPES / "base")
    actor = policy or NativePolicy(
        load_actor(RECIPES / "base").eval(), tokenizer, temperature=1.2, max_new_tokens=40
    )
    played = arena.play(
        arena.draw("train", episodes, 3),
        actor,
        key=(7, 4),
        greedy=name == "greedy",
        count_tokens=lambda messages: len(encode_prompt(tokenizer, messages)),
        label="",
    )
    for episode in played:
        turns = episode.turns
        yield [[_sum(t.prompt_ids), list(t.action_ids), list(t.logprobs)] for t in turns]


def _sum(ids: Sequence[int]) -> int:
    return zlib.crc32(str(list(ids)).encode())


def main() -> None:
    plays = {name: list(rollout(name)) for name in PLAYS}
    for play in plays.values():
        for episode in play:
            for turn in episode:
                turn[2] = [round(value, 7) for value in turn[2]]
    FILE.write_text(json.dumps(plays, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
