"""Against TRL's GRPOTrainer: tool calls over many turns, in the same environment.

Both sides play one environment class (``analyst``) with one actor, which stage 1 of this project
has taught Qwen3's dialect (``chatml``, ``grpo_work``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median

from stages.bench.grpo_work import TESTED, Work
from stages.bench.measure import Spread, Times, interleaved
from stages.bench.results import Bound, Result, Section
from stages.bench.setting import Setting, Tell
from stages.common.errors import RunError

Ids = list[int]

SEEDS = (0, 1, 2)
BUDGET = 40.0
"""Seconds of training, without start-up, for each side and seed."""
PLAYED = 8
"""Episodes that have to be the same on both sides, token for token."""
SMALL = Work(
    batch=8,
    group=4,
    per_task=4,
    rounds=0,  # an actor that has learned nothing makes no calls that TRL can parse
    tokens=64,
    demonstrations=40,
    sft_steps=4,
    minibatch=8,
)
NOTE = (
    "The `sql` environment as a TRL environment class (up to 7 rounds of tool calls, Qwen3's chat "
    "template), a 0.76 M Llama after a short stage 1. Speed: 64 episodes are sampled and one "
    "optimizer step is made on them; both sides draw their own, and TRL ends an episode at a call "
    "that it cannot parse, so turns are counted as well. Success: {budget:.0f} s of training for "
    "both at the same time, on half of the threads each, at the same learning rate and with 16 "
    "optimizer steps on 64 episodes, then {tested} held-out tasks, sampled, by this project's "
    "evaluation; the actor they begin with has {start:.1%}. Proved before: by the likeliest tokens "
    "both play the same {episodes} episodes ({tokens} tokens)."
)


def measure(setting: Setting, tell: Tell) -> Section:
    """Speed, then the race."""
    folder, work = setting.fresh("grpo"), SMALL if setting.quick else Work()
    tell("the actor both begin with")
    with setting.side("stages.bench.grpo_work:Teacher", folder=folder, work=work) as teacher:
        teacher()
    tokens, speed = _speed(setting, tell, folder, work)
    start = _success(setting, folder, folder / "sft")
    seeds, budget = (SEEDS[:1], 1.0) if setting.quick else (SEEDS, BUDGET)
    learning = replace(work, per_task=1, epochs=2, minibatch=8, rate=5e-4)  # as the quickstart
    race = []
    for seed in seeds:
        tell(f"{budget:.0f} s of training on each side, seed {seed}")
        race.append(_race(setting, folder, replace(learning, seed=seed), budget))
    note = NOTE.format(budget=budget, tested=TESTED, start=start, episodes=PLAYED, tokens=tokens)
    return Section("Multi-turn RL against TRL 1.12's GRPOTrainer", note, "ratio", [*speed, *race])


def _speed(setting: Setting, tell: Tell, folder: Path, work: Work) -> tuple[int, list[Result]]:
    """Tokens of the episodes that prove equal work, and what is played in a second."""
    given = {"folder": folder, "work": work}
    with (
        setting.side("stages.bench.grpo_sides:Ours", **given) as ours,
        setting.side("stages.bench.grpo_sides:Theirs", **given) as theirs,
    ):
        tell("do both play the same?")
        tokens = require_same_episodes(ours.ask("greedy", PLAYED), theirs.ask("greedy", PLAYED))
        tell("episodes per second")
        taken = interleaved({"aac": ours, "TRL": theirs}, setting.repeats)
    return tokens, [_rate(taken, "episodes", Bound(3)), _rate(taken, "turns", None)]


def _rate(taken: Mapping[str, Sequence[Times]], unit: str, aim: Bound | None) -> Result:
    rates = {
        side: [one.figures[unit] / one.seconds for one in times] for side, times in taken.items()
    }
    return Result(
        f"{unit}, sampled and learned from",
        {side: median(values) for side, values in rates.items()},
        f"{unit}/s",
        Spread.of([a / b for a, b in zip(rates["aac"], rates["TRL"], strict=True)]),
        aim=aim,
        proof={side: dict(times[-1].figures) for side, times in taken.items()},
    )


def _race(setting: Setting, folder: Path, work: Work, budget: float) -> Result:
    half = replace(setting, threads=max(setting.threads // 2, 1))
    given = {"folder": folder, "work": work}
    with (
        half.side("stages.bench.grpo_sides:Ours", **given) as ours,
        half.side("stages.bench.grpo_sides:Theirs", **given) as theirs,
    ):
        sides = {"aac": ours, "TRL": theirs}
        actors = {side: folder / f"{side}-{work.seed}" for side in sides}
        with ThreadPoolExecutor() as pool:
            ran = {
                name: pool.submit(side.ask, "train", budget, actors[name])
                for name, side in sides.items()
            }
            batches = {name: future.result() for name, future in ran.items()}
    success = {side: _success(setting, folder, actor) for side, actor in actors.items()}
    return Result(
        f"success after {budget:.0f} s, seed {work.seed}",
        {side: 100 * value for side, value in success.items()},
        "%",
        Spread.of([success["aac"] / max(success["TRL"], 1 / TESTED)]),
        aim=Bound(1),
        proof={"batches": batches},
    )


def _success(setting: Setting, folder: Path, actor: Path) -> float:
    with setting.side("stages.bench.grpo_work:Judge", folder=folder, actor=actor) as judge:
        return float(judge().figures["success"])


def require_same_episodes(one: Sequence[Ids], other: Sequence[Ids]) -> int:
    """How many tokens the episodes have; RunError unless they are the same token for token."""
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        if a != b:
            place = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), -1)
            raise RunError(
                f"played by the likeliest tokens, episode {number} is not the same on both sides: "
                f"{len(a)} and {len(b)} tokens, apart from token {place} on; nothing was compared."
            )
    return sum(map(len, one))
