"""The mix of rewards: proportions, caps, and that length alone never pays."""

from __future__ import annotations

import random

import pytest

from stages.interaction.rewards.functions import malformed, repeated
from stages.interaction.rewards.mix import DEFAULT_WEIGHTS, RewardMix
from stages.interaction.rollout import collect
from stages.interaction.states import build_state
from stages.interaction.trajectory import Action, ToolCall, Trajectory, Turn
from tests.interaction.toys import BoxEnvironment, Script, answer, count_words, look, task


def episode(*rewards: dict[str, float]) -> Trajectory:
    turns = tuple(Turn(i, (), Action("x"), rewards=row) for i, row in enumerate(rewards))
    return Trajectory("t", "k", "g", "goal", turns=turns)


def total(mix: RewardMix, *rewards: dict[str, float]) -> float:
    return sum(mix.totals(episode(*rewards)))


def test_success_is_the_unit_and_the_rest_keeps_its_proportions() -> None:
    mix = RewardMix()
    assert total(mix, {"success": 1.0}) == 1.0
    for name, weight in DEFAULT_WEIGHTS.items():
        assert total(mix, {name: 1.0}) == pytest.approx(weight / 10, rel=1e-12)
    assert total(RewardMix(weights={"success": 5.0}), {"sub_goal": 0.5}) == pytest.approx(0.1)
    assert total(mix, {"unheard_of": 1.0}) == 0.0


def test_every_component_is_in_every_row() -> None:
    mix = RewardMix(reward_model_weight=0.5)
    for row in mix.weighted(episode({"success": 1.0}, {})):
        assert tuple(row) == mix.components == (*DEFAULT_WEIGHTS, "reward_model")


def test_the_cap_is_causal_and_cuts_in_proportion() -> None:
    mix = RewardMix(dense_cap=0.12)
    rows = [{"sub_goal": 1.0}, {"right_tool": 0.4, "right_arguments": 0.4}, {"sub_goal": 1.0}]
    assert mix.totals(episode(*rows)) == pytest.approx([0.1, 0.02, 0.0])
    assert mix.weighted(episode(*rows))[1]["right_tool"] == pytest.approx(0.01)
    prefix = mix.totals(episode(*rows[:2]))
    assert mix.totals(episode(*rows))[:2] == prefix, "later turns change no earlier reward"
    assert mix.totals(episode(*rows, {"success": 1.0}))[-1] == 1.0, "success is never capped"


def test_penalties_are_capped_alike_and_apart() -> None:
    mix = RewardMix(dense_cap=0.1)
    rows = [{"invalid": 1.0}] * 10
    assert total(mix, *rows) == pytest.approx(-0.1)
    assert total(mix, *rows, {"sub_goal": 1.0}) == pytest.approx(0.0)


def test_random_episodes_against_the_definition() -> None:
    """The sum of each sign is min(cap, uncapped sum): another algorithm for the same figure."""
    draw = random.Random(1)
    for _ in range(100):
        cap = draw.choice([0.0, 0.05, 0.3])
        rows = [
            {name: draw.random() for name in DEFAULT_WEIGHTS if draw.random() < 0.4}
            for _ in range(draw.randrange(1, 8))
        ]
        flat = [(n, DEFAULT_WEIGHTS[n] * v / 10) for row in rows for n, v in row.items()]
        wins = sum(v for n, v in flat if n == "success")
        ups = min(cap, sum(v for n, v in flat if n != "success" and v > 0))
        downs = min(cap, -sum(v for _, v in flat if v < 0))
        assert total(RewardMix(dense_cap=cap), *rows) == pytest.approx(wins + ups - downs)


def test_scores_are_offset_scaled_clipped_and_averaged() -> None:
    mix = RewardMix(reward_model_weight=0.5, score_mean=1.0, score_std=2.0, score_clip=2.0)
    assert total(mix, {"reward_model": 1.0}) == 0.0
    assert total(mix, {"reward_model": 3.0}) == pytest.approx(0.05)
    assert total(mix, {"reward_model": 99.0}) == pytest.approx(0.1)
    assert total(mix, {"reward_model": -99.0}) == pytest.approx(-0.1)
    assert total(mix, {"reward_model": 3.0}, {"reward_model": 1.0}) == pytest.approx(0.025)
    flat = RewardMix(reward_model_weight=0.5, score_std=0.0)
    assert total(flat, {"reward_model": 3.0}) == 0.0
    assert total(RewardMix(), {"reward_model": 3.0}) == 0.0


@pytest.mark.parametrize("score", [-3.0, 0.0, 0.7, 50.0])
@pytest.mark.parametrize("ending", [{"success": 1.0}, {}])
def test_an_episode_that_only_prolongs_itself_gains_nothing(
    score: float, ending: dict[str, float]
) -> None:
    mix = RewardMix(reward_model_weight=1.0)
    useful = [{"useful_result": 1.0, "reward_model": score}, ending | {"reward_model": score}]
    base = total(mix, *useful)
    for length in (1, 3, 50):
        idle = [{"reward_model": score}] * length
        assert total(mix, useful[0], *idle, useful[1]) <= base + 1e-12
        looping = [{"reward_model": score, "repeated": 1.0}] * length
        assert total(mix, useful[0], *looping, useful[1]) < base


@pytest.mark.parametrize("ending", [answer("red"), answer("wrong")])
def test_a_policy_that_only_prolongs_episodes_gains_nothing(ending: str) -> None:
    """Through the rollout: the same episode, padded with idle turns of every sort."""

    def played(*texts: str) -> float:
        [trajectory] = collect(
            [task()],
            make_environment=BoxEnvironment,
            make_state=lambda: build_state({}, count_words),
            policy=Script(*texts, ending),
            max_turns=12,
        )
        return sum(RewardMix().totals(trajectory))

    base = played(look("a"))
    for idle in (look("a"), look("nowhere"), "let me think", "", '{"name": '):
        for length in (1, 3, 8):
            paddings = [idle] * length
            gained = played(look("a"), *paddings) - base
            # The first look into a new box is useful wherever it leads, so it is no idling.
            allowed = 0.01 if idle == look("nowhere") else 0.0
            assert gained <= allowed + 1e-12, (idle, length)


def test_format_marks_what_cannot_be_read() -> None:
    assert malformed(Turn(0, (), Action("x", error="broken")), []) == 1.0
    assert malformed(Turn(0, (), Action(" \n")), []) == 1.0
    assert malformed(Turn(0, (), Action("talk")), []) == 0.0
    assert malformed(Turn(0, (), Action("talk"), info={"malformed": True}), []) == 1.0


def test_repeated_compares_calls_not_spellings() -> None:
    def called(text: str, *calls: ToolCall) -> Turn:
        return Turn(0, (), Action(text, calls))

    first = called("A", ToolCall("look", {"box": "a", "n": 1}), ToolCall("rest", {}))
    same = called("other words", ToolCall("look", {"n": 1, "box": "a"}))
    assert repeated(same, [first]) == 1.0
    assert repeated(called("A", ToolCall("look", {"box": "b"})), [first]) == 0.0
    assert repeated(called("so  it is"), [called("so it is")]) == 1.0
    assert repeated(called(""), [called("")]) == 0.0
    assert repeated(first, []) == 0.0


def test_weights_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="success must be above 0"):
        RewardMix(weights={"success": 0.0})
    with pytest.raises(ValueError, match="score_std"):
        RewardMix(score_std=-1.0)
