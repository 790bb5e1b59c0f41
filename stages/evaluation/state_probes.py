"""What state processors remember and cost: ``python -m stages.evaluation.state_probes``.

Over scripted episodes of 60 turns, for each choice of processors: how often a fact that left the
window some turns ago stands in the state when it is asked for; tokens and time of a late turn
against those of an early one; how much shorter a summary is, and which facts it has kept. A memory
whose vectors are shuffled among its turns shows what retrieval itself is worth.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from rich.table import Table

from stages.common.console import show
from stages.common.files import write_json
from stages.evaluation.long_episodes import RESET, LongEpisode, asking, long_episode
from stages.interaction.states import StateProcessor, build_state, replay
from stages.interaction.states.base import CountTokens
from stages.interaction.states.memory import Embedder, Memory
from stages.interaction.states.words import turn_parts, turn_words
from stages.interaction.trajectory import Message, Trajectory, Turn

AGES = (6, 10, 20, 40)
"""Turns ago that the needed fact was told."""
EARLY, LATE, AROUND = 10, 40, 2
"""Turns that are compared, each with as many neighbours on both sides."""
WINDOW = {"exchanges": 4, "max_tokens": 512, "checklist": False, "tool_prompt": "none"}
SHUFFLED = "memory, shuffled"


def choices(embedder: str, writer: str) -> dict[str, dict[str, Any]]:
    """Processors by name; the window and the whole budget are the same for all."""
    summary = {"max_tokens": 96, "writer": writer}
    facts, memory = {"max_tokens": 96}, {"max_tokens": 96, "top_k": 2, "embedder": embedder}
    return {
        "window": {},
        "summary": {"summary": summary},
        "facts": {"facts": facts},
        "memory": {"memory": memory},
        SHUFFLED: {"memory": memory},
        "all": {"summary": summary, "facts": facts, "memory": memory},
    }


@dataclass
class Played:
    """What one episode showed, turn by turn."""

    episode: LongEpisode
    turns: list[Turn] = field(default_factory=list)
    """With what the processors made."""
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Of the processor: a busy machine would stretch those of the clock."""


class ShuffledEmbedder:
    """Gives each text of an episode the vector of another one; a query keeps its own."""

    def __init__(self, embedder: Embedder, texts: Sequence[str]) -> None:
        self._embedder, self.size = embedder, embedder.size
        self.identity = f"{embedder.identity}, shuffled"
        order = np.random.default_rng(0).permutation(len(texts))
        self._other = {text: texts[k] for text, k in zip(texts, order, strict=True)}

    def embed(self, texts: list[str]) -> np.ndarray:
        """(n, size), as the embedder makes them."""
        return self._embedder.embed([self._other.get(text, text) for text in texts])


def measure(
    arms: Mapping[str, Mapping[str, Any]], count: CountTokens, *, episodes: int, length: int
) -> dict[str, Any]:
    """The figures of each choice of processors over the same scripted episodes."""
    scripts = [long_episode(length, seed) for seed in range(episodes)]
    return {name: _figures(name, options, scripts, count) for name, options in arms.items()}


def _figures(
    name: str, options: Mapping[str, Any], scripts: Sequence[LongEpisode], count: CountTokens
) -> dict[str, Any]:
    def fresh(script: LongEpisode) -> StateProcessor:
        state = build_state({**WINDOW, **options}, count)
        return _shuffled(state, script) if name == SHUFFLED else state

    played = [play(fresh(script), script, count) for script in scripts]
    recall = {age: fmean(_recalled(fresh(p.episode), p, age) for p in played) for age in AGES}
    late = {
        "tokens": [_around([p.tokens for p in played], turn) for turn in (EARLY, LATE)],
        "seconds": [_around([p.seconds for p in played], turn) for turn in (EARLY, LATE)],
    }
    made = {"recall": {str(age): share for age, share in recall.items()}}
    for what, (early, later) in late.items():
        made[what] = {str(EARLY): early, str(LATE): later, "ratio": later / early}
    made["tokens"]["most"] = max(max(p.tokens) for p in played)
    return made | ({"summary": _summary(played, count)} if "summary" in options else {})


def play(state: StateProcessor, script: LongEpisode, count: CountTokens) -> Played:
    """One episode as the rollout would play it: render, count what is shown, update."""
    state.reset(RESET)
    played = Played(script)
    for turn in script.turns:
        begin = time.process_time()
        messages = state.render()
        length = count(messages)
        now = replace(turn, messages=tuple(messages), produced=state.produced())
        state.update(now)
        played.seconds.append(time.process_time() - begin)
        played.tokens.append(length)
        played.turns.append(now)
    return played


def _recalled(state: StateProcessor, played: Played, age: int) -> float:
    """Share of the facts told ``age`` turns ago that stand in the state when they are asked for."""
    found = []
    for told in played.episode.told[5 : len(played.turns) - age : 7]:
        before = played.turns[: told.turn + age]
        asked = asking(told, len(before))
        record = Trajectory("", "", "", RESET.goal, RESET.messages, RESET.tools)
        shown = replay(state, record.with_turns([*before, asked])).render()
        found.append(told.code in _text(shown))
    return fmean(found)


def _summary(played: Sequence[Played], count: CountTokens) -> dict[str, float]:
    """Tokens of what was summed up per token of the summary; share of its codes kept."""
    shorter, kept, newest = [], [], []
    for one in played:
        made = one.turns[-1].produced["summary"]
        merged = one.turns[: made["turns"]]
        whole = "\n".join(turn_words(turn) for turn in merged)
        shorter.append(_length(count, whole) / max(_length(count, made["text"]), 1))
        codes = [told.code in made["text"] for told in one.episode.told[: len(merged)]]
        kept.append(fmean(codes))
        newest.append(fmean(codes[-5:]))
    return {
        "compression": fmean(shorter),
        "facts_kept": fmean(kept),
        "newest_5_kept": fmean(newest),
    }


def _shuffled(state: Any, script: LongEpisode) -> StateProcessor:
    """The same processor with a memory that finds the wrong turns."""
    texts = list(dict.fromkeys(part for turn in script.turns for part in turn_parts(turn)))
    for piece in state.pieces:
        if isinstance(piece, Memory):
            piece.embedder = ShuffledEmbedder(piece.embedder, texts)
    return state


def _around(rows: Sequence[Sequence[float]], turn: int) -> float:
    """Median over episodes and neighbouring turns: a busy machine stretches single turns."""
    return median(value for row in rows for value in row[turn - AROUND : turn + AROUND + 1])


def _text(messages: Sequence[Message]) -> str:
    return "\n".join(str(message["content"]) for message in messages)


def _length(count: CountTokens, text: str) -> int:
    return count([{"role": "user", "content": text}])


def tables(figures: Mapping[str, Any]) -> Table:
    """One row a choice of processors."""
    title = f"recall N turns later; tokens and CPU time of turn {LATE} against turn {EARLY}"
    ages = [f"N = {age}" for age in AGES]
    made = Table("processors", *ages, "tokens", "x", "ms", "x", title=title)
    for name, row in figures.items():
        tokens, seconds = row["tokens"], row["seconds"]
        made.add_row(
            name,
            *(f"{row['recall'][str(age)]:.0%}" for age in AGES),
            f"{tokens[str(LATE)]:.0f}",
            f"{tokens['ratio']:.2f}",
            f"{1e3 * seconds[str(LATE)]:.1f}",
            f"{seconds['ratio']:.2f}",
        )
    return made


def main(words: Sequence[str] | None = None) -> None:
    """Measure, show, and write JSON."""
    parser = argparse.ArgumentParser(prog="python -m stages.evaluation.state_probes")
    parser.add_argument("--actor", default="recipes/base", help="whose tokens are counted")
    parser.add_argument("--embedder", default="hashing", help="of the memory")
    parser.add_argument("--writer", default="rules", help="of the summary")
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--only", nargs="*", help="names of the processors to measure")
    parser.add_argument("--output", type=Path, default=Path("runs/bench/states.json"))
    given = parser.parse_args(words)
    arms = choices(given.embedder, given.writer)
    arms = {name: arms[name] for name in given.only or arms}
    figures = measure(arms, _counter(given.actor), episodes=given.episodes, length=given.turns)
    settings = {k: v for k, v in vars(given).items() if k not in ("output", "only")}
    given.output.parent.mkdir(parents=True, exist_ok=True)
    write_json(given.output, {"settings": settings | {"window": WINDOW}, "processors": figures})
    show(tables(figures))
    for name, row in figures.items():
        if "summary" in row:
            show(f"{name}: {json.dumps({k: round(v, 3) for k, v in row['summary'].items()})}")


def _counter(actor: str) -> CountTokens:
    from stages.common.chat import encode_prompt
    from stages.common.models import load_tokenizer

    tokenizer = load_tokenizer(actor)
    return lambda messages: len(encode_prompt(tokenizer, messages))


if __name__ == "__main__":
    main()
