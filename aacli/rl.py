"""``aac rl``: stage 3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from aacli.command import command
from aacli.folders import require_reward, stage_request
from aacli.launch import relaunched
from aacli.options import RecipePath, RewardFolder, SftFolder, StageOptions
from aacli.outcome import report, suggest, typed
from stages.common.errors import UsageError

NoReward = Annotated[
    bool, typer.Option("--no-reward", help="Learn from the environment alone, without scores.")
]
WarmStart = Annotated[
    Path | None,
    typer.Option(
        "--warm-start",
        metavar="CRITIC",
        help="Start the critic with the weights of another run's critic/ folder.",
        show_default=False,
    ),
]
Start = Annotated[
    Path | None,
    typer.Option(
        "--start",
        metavar="RUN",
        help="Go on from the actor, and the critic, of another rl run of the same SFT actor.",
        show_default=False,
    ),
]
Offline = Annotated[
    str | None,
    typer.Option(
        "--offline",
        metavar="POOL|sft",
        help="Play nothing and learn from a pool: a run's folder, a file of aac collect "
        "experience, or agent episodes; sft: one that the SFT actor plays first.",
        show_default="rl.offline.pool",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "rl", example="aac rl recipes/quickstart.yaml --set rl.iterations=10")(rl)


def rl(
    recipe: RecipePath,
    options: StageOptions,
    sft: SftFolder = None,
    reward: RewardFolder = None,
    no_reward: NoReward = False,
    warm_start: WarmStart = None,
    offline: Offline = None,
    start: Start = None,
) -> None:
    """Stage 3: let the actor act and learn from what comes of it, with a critic beside it; or
    learn from what others did (--offline)."""
    if no_reward and reward:
        raise UsageError("--reward and --no-reward exclude each other; give one of them.")
    given = ["rl.rewards.reward_model=0"] if no_reward else []
    given += [] if offline is None else [f"rl.offline.pool={json.dumps(offline)}"]
    loaded = options.load(recipe, *given)
    weight = loaded.rl.rewards.reward_model
    parents: dict[str, Path | None] = {"sft": sft} | ({"reward": reward} if weight > 0 else {})
    parents |= {"critic": warm_start} if warm_start else {}
    parents |= {"start": start} if start else {}
    request = stage_request(loaded, options, "rl", parents)
    if weight > 0:
        require_reward(weight, request.parents["reward"])
    if relaunched(options):
        return
    from stages.rl.run import run

    report("rl", run(loaded, request), request, options)
    if not request.dry_run:
        actor = request.output_dir
        suggest(
            typed("eval", recipe, options, actor=actor), typed("chat", recipe, options, actor=actor)
        )
