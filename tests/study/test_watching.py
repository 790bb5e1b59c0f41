"""Who is played and watched by whom, and how arms are compared: worked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.common.errors import UsageError
from stages.evaluation.intervals import mcnemar_p, paired_interval
from stages.study.plan import build_plan
from stages.study.study import Study
from stages.study.watching import OF_ROWS, paired_tasks, summary, watched_jobs

pytestmark = pytest.mark.usefixtures("place")

OUT = Path("out")


def study(arms: dict[str, object], **variant: object) -> Study:
    return Study.model_validate(
        {
            "name": "s",
            "recipe": "demo.yaml",
            "seeds": [3, 4],
            "variants": {"agent": {}, "watcher": {"rl.critic.kind": "q", **variant}},
            "supervision": {"actors": {"sft": "watcher", "agent": "watcher"}, "arms": arms},
        }
    )


def test_each_actor_is_played_under_each_arm_with_the_runs_it_needs():
    arms = {"none": {}, "screen": {"by": "critic"}, "best": {"by": "reward"}}
    made = study({**arms, "vote": {"by": "majority", "proposals": 2}}, **{"reward.tasks": 9})
    plan = build_plan(made, [], OUT)
    jobs = watched_jobs(made, plan)
    assert [(j.recipe.seed, j.actor, j.arm) for j in jobs] == [
        (seed, actor, arm)
        for seed in (3, 4)
        for actor in ("sft", "agent")
        for arm in ("none", "screen", "best", "vote")
    ]
    root = OUT / "seed-3"
    sft, agent, watcher = root / "sft", root / "agent/rl", root / "watcher/rl"
    # The watcher's own reward model differs from the agent's.
    (theirs,) = [j.folder for j in plan.jobs if j.folder.name.startswith("reward-")][:1]
    assert [dict(job.parents) for job in jobs[:8]] == [
        {"actor": sft}, {"actor": sft, "critic": watcher},
        {"actor": sft, "reward": theirs}, {"actor": sft},
        {"actor": agent}, {"actor": agent, "critic": watcher},
        {"actor": agent, "reward": root / "reward"}, {"actor": agent},
    ]  # fmt: skip
    assert len({job.folder for job in jobs}) == len(jobs)
    assert all(job.recipe.rl.critic.kind == "v" for job in jobs)  # the recipe without variants


def test_a_study_without_supervision_has_no_such_jobs_and_one_needs_its_reward_model():
    without = study({"none": {}}).model_copy(update={"supervision": None})
    assert watched_jobs(without, build_plan(without, [], OUT)) == []
    alone = study({"best": {"by": "reward"}}, **{"rl.rewards.reward_model": 0})
    with pytest.raises(UsageError, match="arm best asks for the reward model"):
        watched_jobs(alone, build_plan(alone, [], OUT))


def row(arm: str, seed: int, success: float) -> dict[str, object]:
    return {"actor": "sft", "arm": arm, "seed": seed} | dict.fromkeys(OF_ROWS, 2.0) | {
        "success": success
    }  # fmt: skip


def test_arms_are_compared_by_seed_and_by_task():
    rows = [row("none", 0, 0.5), row("none", 1, 0.25), row("screen", 0, 0.75)]
    rows += [row("screen", 1, 0.5), row("late", 1, 1.0)]
    outcomes = {
        ("sft", "none", 0): [True, True, False, False],
        ("sft", "none", 1): [True, False, False, False],
        ("sft", "screen", 0): [True, True, True, False],
        ("sft", "screen", 1): [False, True, True, None],
        ("sft", "late", 1): [True] * 4,
    }
    found = summary(rows, outcomes, "sft", ["none", "screen", "lost", "late"])
    assert list(found) == ["none", "screen", "late"]
    assert found["none"]["success"]["mean"] == 0.375 and "difference" not in found["none"]
    screen = found["screen"]
    assert [screen["difference"][k] for k in ("mean", "low", "high")] == [0.25] * 3
    tasks = screen["tasks"]
    assert (tasks["tasks"], tasks["won"], tasks["lost"]) == (7, 3, 1)
    assert tasks["difference"] == paired_interval(2, 3, 1, 1)._asdict()
    assert tasks["p"] == mcnemar_p(3, 1)
    assert screen["tokens_ratio"] == 2.0
    # Only the seed that both have takes part.
    assert found["late"]["difference"] == {"mean": 0.75, "low": None, "high": None, "seeds": 1}
    assert (found["late"]["tasks"]["won"], found["late"]["tasks"]["lost"]) == (3, 0)


def test_outcomes_of_other_tasks_are_no_pairs():
    with pytest.raises(ValueError):
        paired_tasks([True], [True, False])
