"""Against TRL's GRPOTrainer: tool calls over many turns, in the same environment.

Both sides play one environment class (``analyst``) with one actor, which stage 1 of this project
has taught the game (``grpo_work``), in the tiny base model's own dialect (``dialect``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from stages.bench.grpo_race import race
from stages.bench.grpo_work import SPLITS, Work
from stages.bench.measure import Spread, Times, interleaved
from stages.bench.results import Bound, Result, Section
from stages.bench.setting import Setting, Tell
from stages.common.errors import RunError

Ids = list[int]

PLAYED = 8
"""Episodes that have to be the same on both sides, token for token."""
SMALL = Work(batch=8, group=4, rounds=2, tokens=64, demonstrations=40, sft_steps=4, tasks=256)
NOTE = (
    "The `sql` environment as a TRL environment class (up to {rounds} rounds of tool calls, the "
    "base model's own chat template), the quickstart's 0.76 M Llama after stage 1; TRL ends an "
    "episode at a call that it cannot parse. Speed: 64 episodes are sampled, 8 of each task, and "
    "one optimizer step is made on them; both sides draw their own, so turns are counted as well. "
    "Success: both sides train at the same time and for as long, on half of the threads each, from "
    "the same actor ({start:.1%}) for the same reward, success; ours with the settings of "
    "recipes/quickstart.yaml, TRL with its own, and the rates, TRL's groups and steps on a batch "
    "chosen on another seed and other tasks; then {tested} held-out tasks, sampled, by this "
    "project's evaluation; medians of the seeds. Proved before: by the likeliest tokens both play "
    "the same {episodes} episodes ({tokens} tokens)."
)


def measure(setting: Setting, tell: Tell) -> Section:
    """Teach the actor, compare what both play, then how fast, then what they make of it."""
    folder, work = setting.fresh("grpo"), SMALL if setting.quick else Work()
    tell("the actor both begin with")
    with setting.side("stages.bench.grpo_work:Teacher", folder=folder, work=work) as teacher:
        teacher()
    tokens, speed = _speed(setting, tell, folder, work)
    start, raced = race(setting, tell, folder, work)
    note = NOTE.format(
        rounds=work.rounds, start=start, tested=SPLITS["test"], episodes=PLAYED, tokens=tokens
    )
    return Section("Multi-turn RL against TRL 1.12's GRPOTrainer", note, "ratio", [*speed, raced])


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
