"""Folders of runs, written by hand in the shape that the stages leave them: no torch, no time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from stages.evaluation.audit import write_picks
from stages.interaction.trajectory import Action, ToolCall, Trajectory, Turn
from stages.recipe.load import load_recipe
from stages.rl.pool import write_trajectories

ROOT = Path(__file__).parents[1]
TOKENIZER = ROOT / "recipes/base/tokenizer.json"
HOSTILE = (
    '</script><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>&lt;b&gt;'
    "<a href='https://example.org'>x</a>"
)
"""What an agent may say, a tool return or a task be called."""
ALARM = {
    "step": 4,
    "alarm": "kl_surge",
    "means": "the actor leaps away from its reference",
    "figures": "actor/kl 0.61, usually 0.02",
    "cure": "lower rl.actor.learning_rate",
    "action": "warn",
    "done": "",
}


def made_episode(
    number: int, *, success: bool = True, turns: int = 3, said: str = "", judged: bool = True
) -> Trajectory:
    """An episode of ``turns`` turns about its number; ``said`` is in all that it holds."""
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    goal = f"How many orders has shop {number}? {said}"
    opening = ({"role": "user", "content": goal},)
    made, seen = [], goal
    for t in range(turns):
        last = t == turns - 1
        text = f'{{"name": "query", "arguments": {{"sql": "SELECT {t}{said}"}}}}'
        action = tokenizer.encode(text).ids
        info = {"value": 0.5 + t / 10, "review": 0.01 * t, "advantage": 0.3 - t / 10}
        made.append(
            Turn(
                index=t,
                messages=({"role": "user", "content": seen},),
                action=Action(text, (ToolCall("query", {"sql": "SELECT"}),)),
                observation=({"role": "tool", "content": f"row {t} {said}"},),
                rewards={"right_tool": 1.0} | ({"success": 1.0} if last and success else {}),
                privileged={"gold_answer": f"{number} {said}"},
                prompt_ids=tuple(tokenizer.encode(seen).ids),
                action_ids=tuple(action),
                logprobs=tuple([-0.01, -0.4, -1.2] * len(action))[: len(action)],
                info=info if judged else {},
            )
        )
        seen += f"\n{text}\nrow {t}"
    return Trajectory(
        task_id=f"task-{number}",
        kind=f"count {said}",
        group="shop",
        goal=goal,
        initial_messages=opening,
        initial_privileged={"gold_answer": str(number)},
        turns=tuple(made),
        terminated=True,
        success=success,
        max_turns=8,
        key=(0, number),
    )


def made_rl(
    folder: Path,
    *,
    seed: int = 0,
    iterations: int = 6,
    said: str = "",
    alarms: Sequence[dict[str, Any]] = (ALARM,),
    finished: bool = True,
) -> Path:
    """The folder of an RL run with ``iterations`` iterations of four episodes."""
    folder.mkdir(parents=True)
    recipe = load_recipe(ROOT / "recipes/quickstart.yaml").model_dump(mode="json") | {"seed": seed}
    recipe["rl"]["rewards"]["reward_model"] = 0.0
    rows = [_row(step, seed, said) for step in range(1, iterations + 1)]
    write_rows(folder / "metrics.jsonl", rows)
    told = [{"step": step, "success": step / 8, "episodes": 64} for step in (3, 6)]
    write_rows(folder / "evaluations.jsonl", told)
    if alarms:
        write_rows(folder / "alarms.jsonl", alarms)
    for step in range(iterations):
        episodes = [made_episode(10 * step + n, success=n < 3, said=said) for n in range(4)]
        write_trajectories(folder / "trajectories" / f"{step:05d}.jsonl", episodes)
    for step in (3, 6):
        kept = [made_episode(100 + step + n, success=n == 0, said=said) for n in range(2)]
        write_picks(folder, step, [_pick(step, n, e, said) for n, e in enumerate(kept)], kept)
    verdict = {"verdict": "bad", "turns": [1], "note": f"odd {said}"}
    (folder / "audit/verdicts.json").write_text(json.dumps({"6-1": verdict}))
    (folder / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    if finished:
        finish(folder, "rl", recipe, training_episodes=4 * iterations)
    else:
        (folder / ".aac-run.json").write_text(json.dumps({"stage": "rl"}))
    return folder


def made_stage(folder: Path, stage: str, figures: Sequence[str], **summary: Any) -> Path:
    """The folder of a finished stage whose figures fall or rise in a straight line."""
    folder.mkdir(parents=True)
    recipe = load_recipe(ROOT / "recipes/quickstart.yaml").model_dump(mode="json")
    rows = [{"step": s} | dict.fromkeys(figures, 1 / s) for s in (25, 50, 75)]
    write_rows(folder / "metrics.jsonl", rows)
    finish(folder, stage, recipe, **summary)
    return folder


def made_pipeline(root: Path) -> Path:
    """The folder of ``aac run``: three stages and their evaluations."""
    made_stage(root / "sft", "sft", ("sft/loss", "sft/token_accuracy"), loss=0.1)
    figures = ("reward/loss", "reward/accuracy")
    made_stage(root / "reward", "reward", figures, accuracy=0.9, held_out=100)
    made_rl(root / "rl")
    actors = {"base": 0.125, "sft": 0.5, "rl": 0.9375}
    rows = {name: _measured(success) for name, success in actors.items()}
    summary = {
        "recipe": "quickstart",
        "seconds": 90.0,
        "baselines": {"base": rows["base"]},
        "stages": {
            "sft": rows["sft"] | {"seconds": 20.0},
            "reward": {"seconds": 30.0, "accuracy": 0.9},
            "rl": rows["rl"] | {"seconds": 40.0},
        },
    }
    (root / "summary.json").write_text(json.dumps(summary))
    return root


def finish(folder: Path, stage: str, recipe: dict[str, Any], **summary: Any) -> None:
    """The files that say that a run is done."""
    manifest = {
        "stage": stage,
        "recipe": recipe,
        "seed": recipe["seed"],
        "versions": {"python": "3.11", "torch": "2.13.0"},
        "base_model": "recipes/base",
        "content_hash": "c0ffee" * 8,
        "parents": {"sft": {"path": "runs/made/sft", "hash": "5f7" * 20}} if stage != "sft" else {},
        "data": {"demonstrations": "da7a" * 16},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "summary.json").write_text(json.dumps({"seconds": 12.5, **summary}))


def write_rows(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """JSON lines."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _row(step: int, seed: int, said: str) -> dict[str, Any]:
    kl = 0.61 if step == 4 else 0.02 * step
    row = {
        "step": step,
        "reward/total": 0.5 + step / 10 + seed / 20,
        "reward/success": 0.4 + step / 10,
        "reward/right_tool": 0.15,
        "episode/success": 0.4 + step / 12,
        "episode/turns": 3.0,
        "episode/invalid_actions": 0.05,
        "actor/kl": kl,
        "actor/entropy": 0.4,
        "actor/clip_fraction": 0.1,
        "critic/explained_variance": step / 10 if step > 1 else None,
        "time/rollout_s": 2.0,
        "time/actor_s": 1.5,
        f"dropped/tool{said}": 0.01,
        "dropped/$\\frac{$": 0.01,
    }
    return row | ({"evaluation/success": 0.15 * step} if step % 3 == 0 else {})


def _pick(step: int, n: int, episode: Trajectory, said: str) -> dict[str, Any]:
    turns = [
        {
            "said": turn.action.text,
            "seen": [str(message["content"]) for message in turn.observation],
            "paid": {"right_tool": 0.05},
        }
        for turn in episode.turns
    ]
    return {
        "id": f"{step}-{n}",
        "step": step,
        "task_id": episode.task_id,
        "kind": episode.kind,
        "goal": episode.goal,
        "reasons": [f"paid 0.15 without success, most of it by right_tool {said}"],
        "success": episode.success,
        "return": 0.15,
        "components": {"right_tool": 0.15},
        "turns": turns,
    }


def _measured(success: float) -> dict[str, Any]:
    part = {"success": success, "episodes": 64}
    groups = {"kinds": {"count": part}, "groups": {"shop": part}, "unseen": None, "seen": None}
    flat = {"success_sampled": success, "success_greedy": success, "return": success, "turns": 3.0}
    measured = {"repeated_calls": 0.0, "sampled": part | groups, "greedy": part}
    return {"episodes": 64, **flat, **measured}
