"""Alarms over metric series: the sick ones are told in time, the healthy ones never."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from stages.recipe.models import Recipe
from stages.recipe.monitor import MonitorSection
from stages.rl import monitor as module
from stages.rl.kl import KlCoefficient
from stages.rl.monitor import ALARMS, COOL_DOWN, Monitor
from tests.rl.alarm_table import WOLF, Series, load, printed

HELD_OUT, MAX_PERPLEXITY = 64, 2.0
Columns = Mapping[str, Any]


def first_alarms(columns: Columns, held_out: int = HELD_OUT) -> dict[str, int]:
    """Alarm -> the first iteration (from 1) at which it is raised. None: no value in that row."""
    watch, first = Monitor(held_out, MAX_PERPLEXITY), {}
    for step, values in enumerate(zip(*columns.values(), strict=True), start=1):
        row = {n: v for n, v in zip(columns, values, strict=True) if v is not None}
        for name in watch.observe(row):
            first.setdefault(name, step)
    return first


# ---- runs that really happened and went well (some of their figures, rounded)
# fmt: off

SQL_RUN = {
    "reward/total": [
        0.834, 0.881, 1.221, 1.225, 1.327, 1.346, 1.239, 1.157, 1.280, 1.256, 1.241, 1.236, 1.165,
        1.167, 1.111, 1.031, 1.185, 1.114, 1.179, 1.253, 1.204, 1.149, 1.194, 1.292, 1.160, 1.252,
        1.207, 1.259, 1.391, 1.278,
    ],
    "episode/success": [
        0.469, 0.5, 0.812, 0.812, 0.906, 0.922, 0.828, 0.766, 0.859, 0.844, 0.828, 0.828, 0.766,
        0.766, 0.734, 0.656, 0.781, 0.719, 0.766, 0.844, 0.797, 0.75, 0.797, 0.875, 0.75, 0.859,
        0.797, 0.844, 0.953, 0.859,
    ],
    "actor/kl": [
        None, 0.0, 0.045, 0.047, 0.057, 0.09, 0.089, 0.145, 0.121, 0.135, 0.138, 0.117, 0.175, 0.06,
        0.088, 0.061, 0.077, 0.062, 0.111, 0.069, 0.061, 0.049, 0.079, 0.034, 0.031, 0.116, 0.045,
        0.046, 0.029, 0.036,
    ],
    "actor/entropy": [
        None, 0.126, 0.069, 0.104, 0.18, 0.332, 0.495, 0.563, 0.484, 0.699, 0.575, 0.776, 1.269,
        0.297, 1.029, 0.665, 1.07, 0.718, 0.514, 0.497, 0.588, 0.316, 0.615, 0.152, 0.133, 0.614,
        0.274, 0.153, 0.066, 0.244,
    ],
    "critic/explained_variance": [
        0.0, -0.125, -0.033, 0.093, 0.185, 0.209, 0.175, 0.284, 0.276, 0.336, 0.251, 0.339, 0.352,
        0.312, 0.261, 0.204, 0.241, 0.208, 0.115, 0.355, 0.175, 0.369, 0.252, 0.29, 0.102, 0.339,
        0.113, 0.329, 0.012, 0.272,
    ],
    "actor/grad_norm": [
        None, 1.757, 1.094, 1.477, 1.733, 1.986, 1.735, 1.988, 1.566, 1.531, 1.062, 0.978, 0.982,
        0.768, 1.421, 0.711, 0.845, 0.859, 0.821, 0.927, 0.724, 0.646, 1.095, 1.062, 0.637, 0.83,
        0.834, 0.895, 0.696, 1.187,
    ],
    "episode/invalid_actions": [
        0.04, 0.013, 0.006, 0.033, 0.032, 0.016, 0.054, 0.092, 0.034, 0.047, 0.022, 0.039, 0.09,
        0.039, 0.098, 0.049, 0.069, 0.046, 0.029, 0.047, 0.045, 0.065, 0.049, 0.043, 0.01, 0.081,
        0.025, 0.019, 0.003, 0.026,
    ],
    "evaluation/success": [
        v for e in (0.938, 0.922, 0.969, 0.984, 0.984, 0.984) for v in (*[None] * 4, e)
    ],
}
ANOTHER_SQL_RUN = {
    "reward/total": [
        0.934, 0.876, 1.136, 1.247, 1.237, 1.37, 1.33, 1.274, 1.305, 1.241, 1.269, 1.252, 1.235,
        1.34, 1.239, 1.179, 1.302, 1.181, 1.071, 1.243, 1.255, 1.286, 1.214, 1.245, 1.257, 1.39,
        1.3, 1.27, 1.277, 1.308,
    ],
    "episode/success": [
        0.547, 0.5, 0.734, 0.828, 0.828, 0.938, 0.906, 0.859, 0.875, 0.844, 0.859, 0.859, 0.828,
        0.906, 0.828, 0.781, 0.875, 0.781, 0.703, 0.828, 0.844, 0.859, 0.797, 0.828, 0.844, 0.953,
        0.875, 0.844, 0.859, 0.891,
    ],
    "actor/kl": [
        None, 0.0, 0.032, 0.031, 0.157, 0.057, 0.123, 0.239, 0.098, 0.173, 0.163, 0.175, 0.123,
        0.036, 0.038, 0.068, 0.029, 0.039, 0.097, 0.05, 0.061, 0.04, 0.061, 0.044, 0.07, 0.027,
        0.073, 0.038, 0.035, 0.044,
    ],
    "actor/entropy": [
        None, 0.047, 0.115, 0.084, 0.338, 0.137, 0.507, 0.493, 0.465, 1.067, 0.885, 1.624, 1.11,
        0.198, 0.5, 0.563, 0.17, 0.288, 1.632, 0.775, 0.644, 0.086, 0.174, 0.642, 0.514, 0.156,
        0.131, 0.211, 0.261, 0.557,
    ],
    "episode/out_of_budget": [
        0.0, 0.0, 0.047, 0.0, 0.094, 0.031, 0.047, 0.078, 0.047, 0.125, 0.094, 0.125, 0.078, 0.016,
        0.047, 0.047, 0.016, 0.047, 0.094, 0.031, 0.031, 0.0, 0.0, 0.031, 0.047, 0.016, 0.0, 0.031,
        0.047, 0.031,
    ],
    "evaluation/success": [
        v for e in (0.906, 0.969, 0.969, 0.969, 0.953, 0.969) for v in (*[None] * 4, e)
    ],
}
SMALL_ROLLOUTS = {  # 20 episodes an iteration, in a world where most of them fail
    "reward/total": [0.289, 0.352, 0.214, 0.265, 0.392, 0.271, 0.337, 0.243, 0.468, 0.363, 0.305],
    "episode/loops": [0.3, 0.15, 0.2, 0.15, 0.15, 0.2, 0.25, 0.45, 0.15, 0.25, 0.05],
    "actor/grad_norm": [None, 6.71, 4.48, 2.22, 1.55, 2.18, 1.47, 1.58, 1.39, 1.15, 0.98],
    "critic/explained_variance": [
        0.0, -0.01, -0.02, -0.003, -0.02, -0.01, -0.03, 0.02, 0.08, 0.06, 0.15,
    ],
}
# fmt: on

# ---- shapes with noise; sick ones fall ill at the 20th iteration

N, ILL = 40, 20
T = np.arange(1, N + 1)
AFTER = np.clip(T - ILL, 0, None)


def noisy(level: Any, spread: float, seed: int) -> list[float]:
    return list(level + spread * np.random.default_rng(seed).standard_normal(N))


def rate(level: Any, seed: int, episodes: int = 64) -> list[float]:
    """Shares of so many episodes that come out true."""
    p = np.clip(level * np.ones(N), 0, 1)
    return list(np.random.default_rng(seed).binomial(episodes, p) / episodes)


def now_and_then(values: Any, every: int = 5) -> list[float | None]:
    return [v if t % every == 0 else None for t, v in zip(T, values, strict=True)]


def learning(seed: int) -> dict[str, list[Any]]:
    """A run that learns from 30 % to 80 %."""
    success = 0.3 + 0.5 * (1 - np.exp(-T / 8))
    return {
        "reward/total": noisy(success + 0.3, 0.06, seed),
        "reward/sub_goal": noisy(0.1 + 0.05 * success, 0.01, seed + 1),
        "reward/wordy": noisy(0.05, 0.01, seed + 2),
        "episode/success": rate(success, seed + 3),
        "episode/loops": rate(0.05, seed + 4),
        "episode/repeated_calls": noisy(0.05, 0.02, seed + 5),
        "episode/invalid_actions": noisy(0.06, 0.03, seed + 6),
        "episode/out_of_budget": rate(0.08, seed + 7),
        "episode/babble": list(np.abs(noisy(0.02, 0.02, seed + 15))),
        "episode/template": rate(0.03, seed + 16),
        "dropped/start": rate(0.01, seed + 8),
        "actor/kl": list(np.abs(noisy(0.08 * (1 - np.exp(-T / 10)), 0.02, seed + 9))),
        "actor/entropy": list(np.exp(noisy(np.log(0.6) - 0.02 * T, 0.3, seed + 10))),
        "actor/grad_norm": list(np.exp(noisy(np.log(1.2), 0.3, seed + 11))),
        "actor/clip_fraction": list(np.abs(noisy(0.08, 0.04, seed + 12))),
        "critic/explained_variance": noisy(0.4 * (1 - np.exp(-(T - 3) / 8)), 0.1, seed + 13),
        "evaluation/success": now_and_then(rate(success, seed + 14)),
        "clean/perplexity_ratio": now_and_then(noisy(1.1 + 0.005 * T, 0.05, seed + 17)),
        "clean/format": now_and_then(rate(0.95, seed + 18, episodes=32)),
        "clean/lost": now_and_then(np.abs(noisy(0.0, 0.04, seed + 19))),
    }


def sick(seed: int, **columns: Any) -> dict[str, list[Any]]:
    """A run that learns, with other values for some figures, named ``group__name``."""
    return learning(seed) | {n.replace("__", "/"): list(v) for n, v in columns.items()}


FALL = np.clip(0.8 - 0.05 * AFTER, 0.1, None)
HEALTHY: dict[str, Columns] = {
    "a run in the SQL world": SQL_RUN,
    "another": ANOTHER_SQL_RUN,
    "small rollouts": SMALL_ROLLOUTS,
    **{f"learning {seed}": learning(100 * seed) for seed in range(1, 6)},
    "a reward that falls back a little": sick(
        7, reward__total=noisy(1.0 - 0.01 * AFTER, 0.06, 7), evaluation__success=[None] * N
    ),
    "one outlier of everything but the gradient and the clean check": {
        n: [(3 * v + 0.5 if t == ILL and v is not None else v) for t, v in zip(T, c, strict=True)]
        if n not in ("actor/grad_norm", "evaluation/success")
        and not n.startswith(("reward/", "clean/"))
        else c
        for n, c in learning(8).items()
    },
    "sure and right": sick(
        9, actor__entropy=0.5 * np.exp(-AFTER / 2), episode__success=rate(0.97, 9)
    ),
    "the same is right for all": sick(
        36, episode__template=rate(0.9 * (AFTER > 0), 36), episode__success=rate(0.97, 36)
    ),
    "nothing to learn where all succeed, then a failure": sick(
        37, actor__grad_norm=[1.2] * 8 + [0.01] * 12 + [1.9] + [0.01] * (N - 21)
    ),
    "explained variance undefined": sick(10, critic__explained_variance=[float("nan")] * N),
}
# fmt: off
SICK: dict[str, tuple[Columns, str, int]] = {  # columns, alarm, iterations it may take
    "KL leaps": (
        sick(11, actor__kl=np.abs(noisy(0.08 + 0.5 * (AFTER > 0), 0.03, 11))), "kl_surge", 2,
    ),
    "KL grows by a third an iteration": (
        sick(12, actor__kl=0.05 * 1.33**AFTER), "kl_surge", 12,
    ),
    "KL from the start": (
        sick(13, actor__kl=np.abs(noisy(2.0, 0.3, 13))), "kl_surge", 2,
    ),
    "reward collapses": (
        sick(14, reward__total=noisy(np.where(AFTER > 0, 0.3, 1.1), 0.06, 14)),
        "reward_collapse", 4,
    ),
    "reward decays to nothing": (
        sick(15, reward__total=noisy(1.1 - 0.1 * np.clip(AFTER, 0, 10), 0.08, 15)),
        "reward_collapse", 9,
    ),
    "a component is farmed instead of success": (
        sick(
            16,
            reward__total=noisy(1.1 + 0.01 * AFTER, 0.05, 16),
            reward__wordy=noisy(0.05 + np.clip(0.06 * AFTER, 0, 0.9), 0.02, 17),
            episode__success=rate(FALL, 18), evaluation__success=now_and_then(rate(FALL, 19)),
        ),
        "reward_hacking", 10,
    ),
    "training success rises, held-out falls": (
        sick(
            20, reward__total=noisy(1.0 + 0.03 * AFTER, 0.05, 20),
            evaluation__success=now_and_then(rate(FALL, 21)),
        ),
        "reward_hacking", 10,
    ),
    "entropy collapses": (
        sick(22, actor__entropy=np.exp(noisy(np.log(0.6) - 0.5 * AFTER, 0.2, 22))),
        "entropy_collapse", 9,
    ),
    "loops": (sick(23, episode__loops=rate(0.05 + 0.08 * AFTER, 23)), "repetition", 9),
    "repeated calls": (
        sick(24, episode__repeated_calls=noisy(0.05 + 0.05 * np.clip(AFTER, 0, 12), 0.03, 24)),
        "repetition", 10,
    ),
    "replies repeat themselves": (
        sick(32, episode__babble=noisy(0.02 + 0.05 * np.clip(AFTER, 0, 12), 0.02, 32)),
        "repetition", 9,
    ),
    "one template for all": (
        sick(33, episode__template=rate(0.03 + 0.08 * AFTER, 33)), "template_collapse", 9,
    ),
    "fluency is lost": (
        sick(34, clean__perplexity_ratio=now_and_then(1.1 + 0.3 * AFTER)), "forgetting", 5,
    ),
    "calls lose their form": (
        sick(
            35, clean__format=now_and_then(np.clip(0.95 - 0.04 * AFTER, 0, 1)),
            clean__lost=now_and_then(np.clip(0.04 * AFTER, 0, 0.95)),
        ),
        "forgetting", 10,
    ),
    "a critic worse than a constant": (
        sick(25, critic__explained_variance=noisy(np.where(AFTER > 0, -0.6, 0.3), 0.2, 25)),
        "explained_variance", 7,
    ),
    "clipping": (
        sick(26, actor__clip_fraction=noisy(0.1 + 0.4 * (AFTER > 0), 0.04, 26)),
        "clip_fraction", 3,
    ),
    "invalid actions": (
        sick(27, episode__invalid_actions=noisy(0.05 + 0.06 * np.clip(AFTER, 0, 10), 0.03, 27)),
        "invalid_actions", 9,
    ),
    "out of budget": (
        sick(28, episode__out_of_budget=rate(0.08 + 0.08 * AFTER, 28)), "out_of_budget", 9,
    ),
    "drops": (sick(29, dropped__query=rate(0.04 * AFTER, 29)), "drops", 9),
    "one gradient spike": (
        sick(30, actor__grad_norm=np.where(T == ILL + 1, 40.0, 1.2)), "gradient_spike", 1,
    ),
    "a loss that is nan": (
        sick(31, actor__policy_loss=np.where(AFTER > 0, np.nan, 0.1)), "non_finite", 1,
    ),
}
# fmt: on


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_series_raises_no_alarm(name: str) -> None:
    assert first_alarms(HEALTHY[name]) == {}


@pytest.mark.parametrize("name", SICK)
def test_a_sick_series_raises_its_alarm_in_time_and_no_other(name: str) -> None:
    columns, alarm, delay = SICK[name]
    first = first_alarms(columns)
    assert set(first) == {alarm}
    ill = 0 if "from the start" in name else ILL
    assert ill < first[alarm] <= ill + delay


def test_the_table_covers_every_alarm() -> None:
    assert {alarm for _, alarm, _ in SICK.values()} == set(ALARMS)
    assert len(HEALTHY) + len(SICK) >= 20


RECORDED = load()


@pytest.mark.parametrize("series", RECORDED, ids=lambda series: series.name)
def test_recorded_runs_raise_their_alarm_or_none(series: Series) -> None:
    """What a cause makes ill may raise further alarms; what is healthy may raise none."""
    first = series.alarms()
    if series.alarm:
        assert series.alarm in first
    else:
        assert set(first) == WOLF.get(series.name, set())


def test_half_of_the_recorded_runs_are_sick_and_all_alarms_are_among_them() -> None:
    """All but one: where a reward is no number, no iteration is finished."""
    sick = [series.alarm for series in RECORDED if series.alarm]
    assert set(sick) == set(ALARMS) - {"non_finite"}
    assert len(RECORDED) >= 20 and 2 * len(sick) >= len(RECORDED)
    table = printed(RECORDED).splitlines()
    assert f"{len(sick)} sick series: {len(sick)} told" in table[-2]
    assert (
        table[-1] == f"{len(RECORDED) - len(sick)} healthy series: {len(WOLF)} with a false alarm"
    )


def test_learning_runs_raise_nothing_over_many_seeds() -> None:
    false = [first_alarms(learning(1000 + 20 * seed)) for seed in range(40)]
    assert not any(false)


def test_reward_hacking_names_the_component_that_rose() -> None:
    columns, _, _ = SICK["a component is farmed instead of success"]
    watch, said = Monitor(HELD_OUT), ""
    for values in zip(*columns.values(), strict=True):
        row = {n: v for n, v in zip(columns, values, strict=True) if v is not None}
        said = said or watch.observe(row).get("reward_hacking", "")
    assert "reward/wordy rose by" in said and "evaluation/success" in said


def test_an_alarm_is_silent_for_a_while_and_then_comes_again() -> None:
    watch = Monitor(HELD_OUT)
    raised = [t for t in range(1, 14) if watch.observe({"actor/kl": 3.0})]
    assert raised == [2, 2 + COOL_DOWN, 2 + 2 * COOL_DOWN]


def test_after_a_roll_back_the_best_actor_stays_the_measure() -> None:
    """Success 0.9 at iteration 2, back from iteration 4 to it, then a fall to 0.3: told at once."""
    watch = Monitor(HELD_OUT)
    told = {"reward/total": 1.0, "reward/wordy": 0.0}
    for success in (0.5, 0.9, 0.85, 0.8):
        assert watch.observe({**told, "evaluation/success": success}) == {}
    watch.go_back(2)
    assert len(watch.rows) == 2
    second = Monitor(HELD_OUT)
    second.load_state_dict(json.loads(json.dumps(watch.state_dict())))
    for one in (watch, second):
        assert one.observe({**told, "reward/wordy": 0.5}) == {}
        fallen = one.observe({**told, "reward/wordy": 0.5, "evaluation/success": 0.3})
        assert "0.30 after 0.90" in fallen["reward_hacking"]
        assert one.steps == [1, 2, 5, 6]


def test_its_state_goes_through_json_and_on_to_the_same_alarms() -> None:
    columns, _, _ = SICK["KL leaps"]
    rows = [dict(zip(columns, v, strict=True)) for v in zip(*columns.values(), strict=True)]
    rows = [{n: float(v) for n, v in row.items() if v is not None} for row in rows]
    whole, first, second = (Monitor(HELD_OUT) for _ in range(3))
    expected = [whole.observe(row) for row in rows]
    told = [first.observe(row) for row in rows[: ILL + 1]]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert told + [second.observe(row) for row in rows[ILL + 1 :]] == expected
    assert second.state_dict() == whole.state_dict()


def test_every_alarm_has_a_field_in_the_recipe_and_a_cure_that_exists() -> None:
    assert set(MonitorSection.model_fields) - {"max_rollbacks"} == set(ALARMS)
    for alarm in ALARMS.values():
        for path in re.findall(r"\brl(?:\.\w+)+", alarm.cure):
            assert _known(path), path


def _known(path: str) -> bool:
    model: Any = Recipe
    for part in path.split("."):
        fields = getattr(model, "model_fields", None)
        if fields is None:
            return True  # inside a mapping
        if part not in fields:
            return False
        model = fields[part].annotation
    return True


def test_it_loads_no_torch() -> None:
    names = [
        alias.name
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    ]
    assert "torch" not in names


@pytest.mark.parametrize(
    ("kl", "expected"), [(0.2, 1.02), (0.11, 1.01), (0.1, 1.0), (0.095, 0.995), (0.0, 0.98)]
)
def test_the_kl_coefficient_follows_its_target(kl: float, expected: float) -> None:
    """Ziegler et al. 2019, by hand: the error is cut at 0.2 and the gain is 0.1."""
    coefficient = KlCoefficient(0.05, target=0.1)
    coefficient.steer(kl)
    assert coefficient.value == pytest.approx(0.05 * expected, rel=1e-12)
    fixed = KlCoefficient(0.05)
    fixed.steer(kl)
    assert fixed.value == 0.05


def test_steering_brings_a_kl_that_answers_to_its_target() -> None:
    """Where KL = 0.01/β, the fixed point is β = 0.01/target."""
    coefficient = KlCoefficient(0.5, target=0.1, gain=0.5)
    for _ in range(200):
        coefficient.steer(0.01 / coefficient.value)
    assert coefficient.value == pytest.approx(0.1, rel=1e-3)
