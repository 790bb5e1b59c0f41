"""How the cost of an iteration grows: with environments, turns, the model and processes.

Random Llamas talk with a world that says some words after each of their replies, all as long.
"""

from __future__ import annotations

import json
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, ClassVar

from stages.bench.measure import Spread, growth
from stages.bench.models import SHAPES, random_actor
from stages.bench.results import Bound, Result, Section
from stages.bench.running import Running, aac, phases, recipe_file
from stages.bench.setting import Setting, Tell
from stages.bench.side import Side
from stages.bench.worlds import Talk
from stages.interaction.trajectory import Trajectory
from stages.rl.pool import ExperiencePool

EARLY, LATE, AROUND = 10, 40, 3
"""Turns that are compared, each with as many neighbours on both sides."""
EVERYTHING = {"summary": {}, "facts": {}, "memory": {"embedder": "hashing"}}
"""State processors without a model of their own."""
MIB = 2**20
POOL, TIMES = 32, 4
"""Most episodes of the pool, and how often it is filled."""
NOTE = (
    "Seconds of one iteration of RL (rollout, critic, update) of a random Llama of 0.15 M weights "
    "with 16 environments of 5 turns and 16 tokens a turn, unless said otherwise, from the smallest"
    " to the largest; growth is b of cost ∝ sizeᵇ, fitted to all sizes. Processes share the same "
    "work by DDP with one thread each (`aac rl --launch ddp`). In the last lines growth is a ratio:"
    " of the time that a turn takes, and of the memory that the pool of episodes holds when it has "
    f"been filled once and {TIMES} times."
)


@dataclass(frozen=True)
class Work:
    """One iteration."""

    size: str = "0.15 M"
    episodes: int = 16
    turns: int = 5
    tokens: int = 16
    everything: bool = False
    """State processors besides the window."""

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.size}-{self.episodes}-{self.turns}-{self.everything}".replace(" ", "")


FEW = Work(episodes=4, turns=1)
LONG = Work(turns=60)
AXES: dict[str, tuple[Sequence[float], Sequence[Work]]] = {
    "environments, 8 to 256": ((8, 32, 128, 256), [Work(episodes=n) for n in (8, 32, 128, 256)]),
    "turns, 5 to 60": ((5, 15, 30, 60), [Work(turns=n) for n in (5, 15, 30, 60)]),
    "weights, 0.15 M to 135 M, 4 environments, 1 turn": (
        (0.15, 1.2, 6.5, 23, 135),
        [replace(FEW, size=size) for size in SHAPES],
    ),
}
QUICK: dict[str, tuple[Sequence[float], Sequence[Work]]] = {
    "environments, 2 to 4": ((2, 4), [replace(FEW, episodes=n) for n in (2, 4)])
}


def measure(setting: Setting, tell: Tell) -> Section:
    """Every axis."""
    results = []
    for axis, (sizes, works) in (QUICK if setting.quick else AXES).items():
        tell(axis)
        results.append(_axis(setting, axis, sizes, works))
    if not setting.quick:
        tell("processes, 1 to 2")
        results.append(_processes(setting))
    tell("long episodes")
    results += _long(setting, replace(LONG, episodes=2, tokens=2) if setting.quick else LONG)
    return Section("How cost grows", NOTE, "growth", results)


def _axis(setting: Setting, what: str, sizes: Sequence[float], works: Sequence[Work]) -> Result:
    folder = setting.fresh(f"growth-{works[-1].name}")
    with setting.side("stages.bench.growth:Growing", folder=folder) as side:
        costs = _asked(setting, side, "iterate", works)
    return _result(what, sizes, costs)


def _asked(setting: Setting, side: Side, question: str, works: Sequence[Work]) -> list[list[Any]]:
    """Of each work what was answered, time after time, in turn; the first time is not counted."""
    rounds = [[side.ask(question, work) for work in works] for _ in range(setting.repeats + 1)][1:]
    return [list(given) for given in zip(*rounds, strict=True)]


def _result(what: str, sizes: Sequence[float], costs: Sequence[Sequence[float]]) -> Result:
    middles = [median(given) for given in costs]
    sides = {"smallest": middles[0], "largest": middles[-1]}
    proof = {"sizes": list(sizes), "seconds": middles}
    return Result(what, sides, "s", growth(sizes, costs), proof=proof)


def _processes(setting: Setting) -> Result:
    folder = setting.fresh("growth-processes")
    recipe = prepare(folder, Work(episodes=64))
    costs = [_launched(setting, folder, recipe, n) for n in (1, 2)]
    return _result("processes, 1 to 2, 64 environments", (1, 2), costs)


def _launched(setting: Setting, folder: Path, recipe: Path, processes: int) -> list[float]:
    """Seconds of each iteration of the real command but the first."""
    out = folder / f"rl-{processes}"
    words = ["rl", str(recipe), "--sft", str(folder / "sft"), "--no-reward"]
    words += ["--output-dir", str(out), "--set", f"rl.iterations={setting.repeats + 1}"]
    words += ["--launch", "ddp", "--processes", str(processes)] if processes > 1 else []
    aac(words, setting.log)
    return [sum(spent.values()) for spent in phases(out)[1:]]


def _long(setting: Setting, work: Work) -> Iterator[Result]:
    """What a late turn takes against an early one, and the memory of a pool of such episodes."""
    folder = setting.fresh("growth-long")
    with setting.side("stages.bench.growth:Growing", folder=folder) as side:
        for everything, what in ((False, "window"), (True, "summary, facts and memory")):
            played = replace(work, everything=everything)
            (turns,) = _asked(setting, side, "turns", [played])
            yield Result(
                f"a turn, {EARLY}th to {LATE}th; {what}",
                {
                    "smallest": 1e3 * median(early for early, _ in turns),
                    "largest": 1e3 * median(late for _, late in turns),
                },
                "ms",
                Spread.of([late / early for early, late in turns]),
                must=Bound(1.2, at_least=False),
            )
        full, later = side.ask("pool", work)
    yield Result(
        f"a pool of {POOL} episodes, filled once and {TIMES} times",
        {"smallest": full / MIB, "largest": later / MIB},
        "MiB",
        Spread.of([later / full]),
        must=Bound(1.2, at_least=False),
    )


class Growing:
    """RL stages on such work, begun when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[Work, Running] = {}

    def iterate(self, work: Work) -> float:
        """Seconds of one iteration."""
        running = self._begun(work)
        start = time.perf_counter()
        running()
        return time.perf_counter() - start

    def turns(self, work: Work) -> tuple[float, float]:
        """Seconds of all episodes' early and late turns."""
        Timed.moments.clear()
        self._begun(work)()
        at = {turn: fmean(moments) for turn, moments in Timed.moments.items()}
        early, late = (
            (at[turn + AROUND] - at[turn - AROUND - 1]) / (2 * AROUND + 1) for turn in (EARLY, LATE)
        )
        return early, late

    def pool(self, work: Work) -> tuple[int, int]:
        """Bytes that a pool holds once it is full, and when as much as it can hold has left it."""
        records = [episode.to_json() for episode in self._begun(work).episodes]
        pool = ExperiencePool(self.folder / "pool", max_episodes=POOL)
        held, shares = [], -(-POOL // len(records))
        tracemalloc.start()
        for number in range(TIMES * shares):
            pool.add(number, [Trajectory.from_json(json.loads(json.dumps(r))) for r in records])
            held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        return held[shares - 1], held[-1]

    def _begun(self, work: Work) -> Running:
        if work not in self._running:
            folder = self.folder / work.name
            recipe = prepare(folder, work)
            self._running[work] = Running(folder, recipe, sft=folder / "sft")
        return self._running[work]


class Timed(Talk):
    """Notes when a reply comes."""

    moments: ClassVar[defaultdict[int, list[float]]] = defaultdict(list)
    """Of ``perf_counter``, by turn, of all episodes."""

    def reset(self, seed: int = 0) -> tuple[str, dict[str, Any]]:
        """As any."""
        self._turn = 0
        return super().reset(seed)

    def step(self, said: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """As any."""
        self._turn += 1
        self.moments[self._turn].append(time.perf_counter())
        return super().step(said)


def prepare(folder: Path, work: Work) -> Path:
    """The actor on disk, and the recipe."""
    random_actor(SHAPES[work.size], folder / "sft")
    state: dict[str, Any] = {"tool_prompt": "none", "checklist": False, "exchanges": 4}
    return recipe_file(
        folder,
        {
            "name": "growth",
            "threads": 1,
            "model": {"actor": str(folder / "sft")},
            "environment": {
                "name": "gymnasium",
                "gymnasium": "stages.bench.growth:Timed",
                "max_turns": work.turns,
            },
            "state": {**state, "max_tokens": 512, **(EVERYTHING if work.everything else {})},
            "rl": {
                "episodes": work.episodes,
                "evaluate_every": 0,
                "evaluation_episodes": 1,
                "forgetting": {"every": 0},
                "actor": {"max_new_tokens": work.tokens, "learning_rate": 1e-5},
                "critic": {"steps": 4, "warm_up": {"max_iterations": 0}},
                "ppo": {"epochs": 1, "minibatch_episodes": work.episodes},
                "rewards": {"reward_model": 0},
            },
        },
    )
