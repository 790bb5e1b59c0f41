"""The mix of rewards: proportions, caps, and that length alone never pays."""

from __future__ import annotations

import random

import pytest

from stages.common.errors import UsageError
from stages.interaction.actions import parse_action
from stages.interaction.rewards.functions import (
    babble,
    empty,
    malformed,
    repeated,
    reward_functions,
)
from stages.interaction.rewards.mix import DEFAULT_WEIGHTS, RewardMix
from stages.interaction.rewards.relevance import OffTopic, hashed_similarity, off_topic
from stages.interaction.rollout import collect
from stages.interaction.states import build_state
from stages.interaction.trajectory import Action, ToolCall, Trajectory, Turn
from tests.interaction.toys import BoxEnvironment, Script, answer, count_words, look, task
from tests.tiny_models import tiny_bert


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


def test_emptiness_and_babble() -> None:
    def turn(text: str) -> Turn:
        return Turn(0, (), Action(text))

    assert [empty(turn(t), ()) for t in ("", " ?!", "42", "né")] == [1.0, 1.0, 0.0, 0.0]
    assert babble(turn("the cat sat on the mat and the dog sat on the rug"), ()) == 0.0
    assert babble(turn("no no no no"), ()) == 0.0, "too short to tell"
    # 12 words, 9 runs of four, of which 4 are different
    assert babble(turn("it is so so " * 3), ()) == pytest.approx(1 - 4 / 9)


def test_a_cap_of_its_own_holds_a_component_that_pays_every_turn() -> None:
    mix = RewardMix(weights={"polite": 2.0, "rude": -1.0}, caps={"polite": 0.3, "rude": 0.15})
    rows = [{"polite": 1.0, "sub_goal": 1.0}, {"polite": 1.0}, {"rude": 1.0}, {"rude": 1.0}]
    assert mix.totals(episode(*rows)) == pytest.approx([0.3, 0.1, -0.1, -0.05])
    assert mix.capped(episode(*rows)) == pytest.approx({"polite": 0.1, "rude": 0.05})
    assert mix.capped(episode(*rows[:1])) == {}
    assert RewardMix().capped(episode(*rows)) == {}
    with pytest.raises(ValueError, match="caps must be 0 or more, of known components"):
        RewardMix(caps={"nice": 0.1})


def shouting(turn: Turn, earlier: object) -> float:
    """A person's own function."""
    return float(turn.action.text.isupper())


def broken(turn: Turn, earlier: object) -> float:
    """A person's function that forgets to return a number."""
    return float("nan")


def test_functions_by_entry() -> None:
    here = f"{__name__}:"
    found = reward_functions({"loud": here + "shouting", "babble": "babble"})
    assert set(found) == {"format", "repeated", "loud", "babble"}
    assert found["loud"](Turn(0, (), Action("HO")), ()) == 1.0
    for entry, words in (
        ("nowhere:x", "cannot be loaded"),
        (here + "nothing", "cannot be loaded"),
        (here + "__name__", "is a str"),
    ):
        with pytest.raises(UsageError, match=f"rl.rewards.functions.mine.*{words}"):
            reward_functions({"mine": entry})
    with pytest.raises(UsageError, match="returned nan; expected a finite number"):
        reward_functions({"mine": here + "broken"})["mine"](Turn(0, (), Action("")), ())


SHOWN = (
    {"role": "user", "content": "How many orders have the status shipped?"},
    {"role": "assistant", "content": "bananas grow in the sun"},
    {"role": "tool", "content": "customers, orders"},
)


@pytest.mark.parametrize(
    ("text", "off"),
    [
        ("I look for shipped orders of the customers", 0.0),
        ("bananas grow best in warm rain", 1.0),
        ("bananas", 0.0),
        ('{"name": "query", "arguments": {"sql": "SELECT COUNT(*) FROM orders"}}', 0.0),
        ('{"name": "query", "arguments": {"sql": "bananas grow best"}}', 1.0),
        ('{"name": "list_tables", "arguments": {}}', 0.0),
    ],
)
def test_off_topic_is_what_shares_nothing_with_goal_and_observations(text: str, off: float) -> None:
    turn = Turn(0, SHOWN, parse_action(text))
    assert OffTopic(hashed_similarity, 0.15)(turn, ()) == off


def test_hashed_similarity_is_a_cosine() -> None:
    assert hashed_similarity(["same words"], "same words") == pytest.approx(1.0)
    assert hashed_similarity([], "anything") == hashed_similarity(["x"], "") == 0.0


def test_any_text_classifier_can_judge_the_topic(tmp_path) -> None:  # type: ignore[no-untyped-def]
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    from stages.recipe.rewards import OffTopicSection

    folder = tiny_bert(tmp_path / "bert")
    config = BertConfig.from_pretrained(folder)
    config.label2id, config.id2label = {"off": 0, "relevant": 1}, {0: "off", 1: "relevant"}
    with torch.random.fork_rng():
        model = BertForSequenceClassification(config)
    model.save_pretrained(folder)
    turn = Turn(0, SHOWN, Action("the goal is solved"))
    pair = ("\n".join(m["content"] for m in SHOWN if m["role"] != "assistant"), turn.action.text)
    tokens = AutoTokenizer.from_pretrained(folder)(*pair, return_tensors="pt")
    with torch.no_grad():
        p = float(model.eval()(**tokens).logits.softmax(-1)[0, 1])
    for threshold, off in ((p + 1e-3, 1.0), (p - 1e-3, 0.0)):
        options = OffTopicSection(classifier=folder, threshold=threshold)
        assert off_topic(options)(turn, ()) == off
    with pytest.raises(UsageError, match="label = on is no label of"):
        off_topic(OffTopicSection(classifier=folder, label="on"))
