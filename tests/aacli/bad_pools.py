"""Pools and runs from which ``aac rl --offline`` and ``--start`` cannot go, and wrong words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.aacli.bad_folders import finished, rl
from tests.aacli.bad_input import Case, Place

EPISODES = [
    {
        "task_id": n,
        "reward": 0,
        "messages": [
            {"role": "user", "content": f"say {n}"},
            {"role": "assistant", "content": f"it is {n}"},
        ],
    }
    for n in range(2)
]


def turn(**over: Any) -> dict[str, Any]:
    """A turn of a trajectory, as a pool holds it."""
    messages = [{"role": "user", "content": "say one"}]
    return {"index": 0, "messages": messages, "action": {"text": "one"}} | over


def trajectory(**over: Any) -> dict[str, Any]:
    """A trajectory of one turn."""
    given = {"task_id": "t", "kind": "k", "group": "g", "goal": "say one", "turns": [turn()]}
    return given | {"terminated": True} | over


def offline(id: str, pool: Callable[[Place], str], names: tuple[str, ...], *changes: str) -> Case:
    """``aac rl --offline`` from that pool, with ``--set`` of each change."""

    def make(at: Place) -> list[str]:
        sets = [word for change in changes for word in ("--set", change)]
        return rl(at, finished(at, "sft"), "--offline", pool(at), *sets)

    return Case(id, make, names)


def file(*rows: Any) -> Callable[[Place], str]:
    """A pool of these rows."""
    return lambda at: at.rows(*rows, name="pool.jsonl")


def start(id: str, name: str, *names: str) -> Case:
    """``aac rl --start`` from a folder that is none of stage 3's runs."""

    def make(at: Place) -> list[str]:
        finished(at, "other", "reward")
        return rl(at, finished(at, "sft"), "--start", name)

    return Case(id, make, names)


CASES = (
    offline(
        "no such pool", lambda at: "nowhere", ("the pool nowhere does not exist", "experience")
    ),
    offline("empty pool", file(), ("pool.jsonl holds no rows", "at least one")),
    offline(
        "folder that is no pool",
        lambda at: at.write("mine/a.txt", "x").split("/")[0],
        ("mine is a folder without .jsonl",),
    ),
    offline(
        "pool of dialogues",
        file({"prompt": "a", "completion": "b"}),
        ("pool.jsonl line 1 has no reward", "convert it to demonstrations"),
    ),
    offline("pool of anything", file({"x": 1}), ("pool.jsonl line 1 has x", "messages or traj")),
    offline("half a trajectory", file(trajectory(turns=[{}])), ("is no trajectory of aac",)),
    offline("broken pool", lambda at: at.write("pool.jsonl", "{"), ("line 1 is not valid JSON",)),
    offline(
        "only dropped episodes",
        file(trajectory(error="it broke"), trajectory(turns=[])),
        ("all 2 episodes of the pool pool.jsonl are empty or were dropped",),
    ),
    offline(
        "tokens of another actor",
        file(trajectory(turns=[turn(prompt_ids=[1, 2], action_ids=[3], logprobs=[-1.0])])),
        ("episode 1 of the pool (task t)", "another tokenizer or chat template", "encoded anew"),
    ),
    offline(
        "nothing to clone",
        file(*EPISODES),
        ("none of the pool's 2 episodes succeeded", "method"),
        "rl.offline.method=filtered_cloning",
    ),
    offline(
        "nothing to choose from",
        file(*EPISODES),
        ("each of the pool's 2 tasks was played once", "rl.episodes_per_task"),
        "rl.offline.method=rejection_sampling",
    ),
    offline(
        "unknown log-probs",
        file(*EPISODES),
        ("episode 1 of the pool", "without log-probs", "set it to none"),
        "rl.offline.method=awr",
        "rl.critic.off_policy=vtrace",
    ),
    offline(
        "replies longer than a row",
        file(
            EPISODES[0]
            | {
                "messages": [
                    *EPISODES[0]["messages"][:1],
                    {"role": "assistant", "content": "orders " * 40},
                ]
            }
        ),
        ("no reply of the pool fits", "= 16 tokens", "raise it"),
        "rl.offline.max_length=16",
    ),
    start("start from nothing", "nowhere", "the rl folder nowhere does not exist"),
    start("start from another stage", "other", "made by the stage 'reward', expected 'rl'"),
    Case(
        "episodes of demonstrations",
        lambda at: ["collect", "demonstrations", "demo.yaml", "--episodes", "3"],
        ("--episodes is of experience", "sft.demonstrations"),
    ),
    Case(
        "experience of nobody",
        lambda at: ["collect", "experience", "demo.yaml"],
        ("neither runs/demo/rl nor runs/demo/sft", "--actor"),
    ),
    Case(
        "experience over a file",
        lambda at: ["collect", "experience", "demo.yaml", "--output", at.write("p.jsonl", "x")],
        ("p.jsonl exists", "--overwrite"),
    ),
)
