"""``aac env check``: does an environment keep its contract, and can fools win in it?"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stages.common.console import show, warn
from stages.common.errors import AacError, RunError, UsageError
from stages.evaluation.contract import try_contract
from stages.evaluation.held_out import HeldOut
from stages.evaluation.policies import random_policy
from stages.evaluation.run import POLICIES
from stages.evaluation.tables import checks_table
from stages.interaction.arena import Arena
from stages.interaction.environments import needs_person
from stages.interaction.states import StateOptions

TRIED = 16
"""Tasks that the contract is tried on."""
FOOLS = ("null", "random", "most_frequent")
FIGURES = ("success", "return", "turns")
TOO_EASY = 0.1
"""A fool that wins more than this share of the episodes makes the environment suspect."""


def check_environment(options: Any, *, episodes: int = 128, seed: int = 0) -> dict[str, Any]:
    """Play an environment with scripted policies and try its contract.

    ``{"environment", "ok", "policies": {name: {"success", "return", "turns"}}, "steps_per_s",
    "deterministic", "demonstrations", "checks": {name: {"ok", "detail"}}}``. A check's ``ok`` is
    None where it does not apply, a policy is None where it cannot be played. ``episodes`` test
    tasks are played by each policy. The expert is the scripted one without the mistakes that
    ``options.expert`` asks for; ``demonstrations`` are those with them, None where none are made.
    UsageError for a world that needs a person.
    """
    if needs_person(options):
        raise UsageError(
            f"environment {options.name} is played by a person at the terminal, so nothing can be"
            " checked without one; talk to an agent in it with aac chat."
        )
    flawed, options = options, _without_mistakes(options)
    arena = Arena(options, StateOptions(checklist=False, tool_prompt="none"))
    tasks = HeldOut.of(arena, split="test", episodes=episodes, seed=seed)
    checks = try_contract(arena, tasks.tasks[:TRIED])
    return {
        "environment": options.name,
        "ok": all(row["ok"] is not False for row in checks.values()),
        "policies": {name: _measured(tasks, name) for name in POLICIES},
        "demonstrations": _demonstrated(flawed, tasks) if flawed != options else None,
        "steps_per_s": round(_steps_per_second(tasks), 1),
        "deterministic": checks.get("deterministic", {}).get("ok"),
        "checks": checks,
    }


def check_command(options: Any) -> dict[str, Any]:
    """``aac env check``: show the result of ``check_environment`` and return it."""
    result = check_environment(options)
    show(checks_table(result))
    for name in FOOLS:
        won = (result["policies"][name] or {}).get("success") or 0.0
        if won > TOO_EASY:
            warn(f"the {name} policy wins {won:.0%} of the episodes: success measures little here.")
    return result


def require_kept(result: Mapping[str, Any]) -> None:
    """Raise RunError in one sentence if a check of the contract failed."""
    broken = [f"{n}: {row['detail']}" for n, row in result["checks"].items() if row["ok"] is False]
    if broken:
        raise RunError(
            f"environment {result['environment']} breaks its contract ({'; '.join(broken)})."
        )


def _measured(tasks: HeldOut, name: str) -> dict[str, Any] | None:
    """The main figures of a scripted policy; None (and a line that says why) without."""
    try:
        figures = POLICIES[name](tasks)
    except AacError as error:
        warn(f"the {name} policy was not played: {error}")
        return None
    return {key: figures[key] for key in FIGURES}


def _without_mistakes(options: Any) -> Any:
    """The same options with a clean expert, where the expert can be told to be one."""
    clean = getattr(type(getattr(options, "expert", None)), "clean", None)
    return options.model_copy(update={"expert": clean()}) if clean else options


def _demonstrated(options: Any, tasks: HeldOut) -> dict[str, Any]:
    """The figures of demonstrations with the mistakes that the options ask for."""
    arena = replace(tasks.arena, environment=options)
    figures = replace(tasks, arena=arena).measure_expert()
    return {key: figures[key] for key in FIGURES}


def _steps_per_second(tasks: HeldOut) -> float:
    start = time.perf_counter()
    played = tasks.arena.play(tasks.tasks, random_policy(), key=(tasks.seed, 2))
    return sum(len(t.turns) for t in played) / (time.perf_counter() - start)
