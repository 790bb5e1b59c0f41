"""Kind advantage: A by hand from the model's log-probs, its gradient, good above bad."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.common.errors import UsageError
from stages.interaction.trajectory import Action
from stages.rl.critic.advantage import (
    AdvantageBaseline,
    AdvantageCadence,
    AdvantageLearner,
    load_advantage,
    load_log_ratio,
    turn_logprobs,
)
from stages.rl.critic.learner import FitPlan
from stages.rl.critic.views import ViewParts, critic_views
from stages.rl.pool import ExperiencePool
from tests.rl.worlds import START, episode, small_actor
from tests.tiny_models import tiny_llama

GOOD, BAD = "look it up", "guess"


def success(trajectory):
    return [float(t.rewards.get("success", 0.0)) for t in trajectory.turns]


def worded(word, won, *, number):
    made = episode([([START], [1], 0.0), ([START], [2], float(won))], key=(0, 0, number))
    first, last = (replace(t, observation=()) for t in made.turns)
    turns = [replace(first, action=Action(word)), replace(last, action=Action("then answer"))]
    return replace(made.with_turns(turns), task_id=f"task {number // 4}")


def world(count, *, informative=True):
    """Four episodes a task; the word decides, or nothing does."""
    done = []
    for number in range(count):
        good = number % 2 == 0
        won = good if informative else number % 4 < 2
        done.append(worded(GOOD if good else BAD, won, number=number))
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("small") / "model", hidden_size=16)


def build(folder, *, length_normalised=True, max_tokens=128, **plan):
    network = load_log_ratio(folder, max_tokens=max_tokens, length_normalised=length_normalised)
    options = {"learning_rate": 3e-3, "steps": 5, "batch_size": 4} | plan
    return AdvantageLearner(
        network,
        plan=FitPlan(**options),
        parts=ViewParts(state=False),
        turn_rewards=success,
    )


def move(model):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))


def by_hand(model, context, action):
    """Token by token, each from a forward of its own prefix, in float64."""
    total = 0.0
    for k, token in enumerate(action):
        logits = model(torch.tensor([[*context, *action[:k]]])).logits[0, -1].double()
        total += float(logits.log_softmax(-1)[token])
    return total


@pytest.mark.parametrize("length_normalised", [True, False])
def test_a_is_the_log_ratio_of_the_actions_tokens(folder, length_normalised):
    critic = build(folder, length_normalised=length_normalised)
    one = worded(GOOD, True, number=0)
    assert critic.advantages(one).tolist() == [0.0, 0.0]  # π_θ is π_0 still
    move(critic.network.model)
    network, tokenizer = critic.network, critic.network.tokenizer
    views = critic_views(one, ViewParts(state=False))
    expected = []
    with torch.no_grad():
        for view, turn in zip(views, one.turns, strict=False):
            parts = [view.start(), *(e.text() for e in view.history), view.limits(), view.shown()]
            context = [i for part in parts for i in tokenizer(f"{part}\n")["input_ids"]]
            context += tokenizer("proposed: ")["input_ids"]
            action = [*tokenizer(turn.action.text)["input_ids"], tokenizer.eos_token_id]
            ratio = by_hand(network.model, context, action)
            ratio -= by_hand(network.reference, context, action)
            expected.append(ratio / len(action) if length_normalised else ratio)
    assert critic.advantages(one).tolist() == pytest.approx(expected, abs=1e-5)


def test_rows_of_any_length_together_equal_each_alone():
    model = small_actor()
    rows = [([1, 2], [3]), ([1, 2, 3, 4, 5], [2, 3, 0]), ([1], [5, 5])]
    with torch.no_grad():
        together = turn_logprobs(model, rows, length_normalised=True)
        alone = [turn_logprobs(model, [row], length_normalised=True) for row in rows]
        expected = [by_hand(model, c, a) / len(a) for c, a in rows]
    torch.testing.assert_close(together, torch.cat(alone))
    assert together.tolist() == pytest.approx(expected, abs=1e-6)


def test_one_step_raises_the_good_action_and_lowers_the_bad(folder):
    critic = build(folder, steps=1, batch_size=1, learning_rate=1e-4)
    good, bad = worded(GOOD, True, number=0), worded(BAD, False, number=1)
    metrics = critic.fit([good, bad], np.random.default_rng(0))
    assert metrics["critic/loss"] == pytest.approx(np.log(2))  # A is 0 before the step
    with torch.no_grad():
        assert critic.advantages(good)[0] > 0 > critic.advantages(bad)[0]


def test_good_actions_end_above_bad_ones(folder):
    critic = build(folder)
    for i in range(4):
        metrics = critic.fit(world(16), np.random.default_rng(i))
    assert metrics["critic/loss"] < 0.8 * np.log(2)
    with torch.no_grad():
        good, bad = (
            critic.advantages(worded(w, False, number=900 + n)) for n, w in enumerate((GOOD, BAD))
        )
    assert float(good[0] - bad[0]) > 0.2
    fresh = [replace(e, key=(1, 0, n)) for n, e in enumerate(world(8))]
    assert critic.ranks(fresh) == {"critic/auc": 1.0}


def test_outcomes_that_the_words_do_not_tell_teach_nothing(folder):
    critic = build(folder)
    for i in range(4):
        metrics = critic.fit(world(16, informative=False), np.random.default_rng(i))
    assert metrics["critic/loss"] > 0.9 * np.log(2)


def test_without_a_contrast_nothing_moves(folder):
    critic = build(folder)
    lost = [worded(BAD, False, number=n) for n in range(4)]
    assert critic.fit(lost, np.random.default_rng(0)) == {"critic/pairs": 0.0}
    assert critic.ranks(lost) == {}
    cut = [replace(e, terminated=False, truncated=True) for e in world(8)]
    assert critic.fit(cut, np.random.default_rng(0)) == {"critic/pairs": 0.0}


def test_a_long_view_leaves_room_for_the_whole_action(folder):
    critic = build(folder, max_tokens=60)
    tokenizer = critic.network.tokenizer
    one = worded("a long action of many words", True, number=0)
    wordy = ({"role": "tool", "content": "seen " * 200},)
    one = one.with_turns([replace(one.turns[0], observation=wordy), one.turns[1]])
    views = critic_views(one, ViewParts(state=False))[:-1]
    for (context, action), turn in zip(
        critic.network.rows(views, [t.action.text for t in one.turns]), one.turns, strict=True
    ):
        assert len(context) <= 60
        text = tokenizer.decode(context)
        assert "find it" in text and "turns left" in text and text.endswith("proposed: ")
        assert action == [*tokenizer(turn.action.text)["input_ids"], tokenizer.eos_token_id]


def test_pi_0_is_asked_once_per_episode(folder, monkeypatch):
    critic = build(folder)
    calls = []
    real = critic.network.reference_logprobs
    monkeypatch.setattr(
        critic.network, "reference_logprobs", lambda rows: calls.append(1) or real(rows)
    )
    for i in range(2):
        critic.fit(world(8), np.random.default_rng(i))
    assert len(calls) == 8


def baseline(folder, tmp_path, *, warm_up=1):
    pool = ExperiencePool(tmp_path / "pool", max_episodes=64)
    cadence = AdvantageCadence(seed=0, max_age=4, warm_up_iterations=warm_up)
    return AdvantageBaseline(build(folder, steps=2), pool, cadence)


def test_judgement_and_warm_up(folder, tmp_path):
    judge = baseline(folder, tmp_path)
    judge.pool.add(0, world(8))
    judge.listen(world(8))
    assert not judge.ready
    judge.learn(0, 0)
    judge.listen(world(8))
    assert judge.ready
    short = world(8)[0]
    judged = judge.judge([world(8)[1], replace(short.with_turns(short.turns[:1]), key=())])
    assert judged.mask.tolist() == [[True, True], [True, False]]
    assert float(judged.advantages[1, 1]) == 0.0 and float(judged.values.abs().max()) == 0.0
    assert torch.equal(judged.reviews, judged.advantages)


def test_it_saves_and_loads(folder, tmp_path):
    judge = baseline(folder, tmp_path)
    move(judge.critic.network.model)
    options = {"view": {"max_tokens": 128}, "length_normalised": True}
    judge.save(tmp_path / "critic", options)
    again, told = load_advantage(tmp_path / "critic")
    assert told == options
    rows = judge.critic._rows(world(1)[0])
    with torch.no_grad():
        expected = judge.critic.network.logprobs(rows) - judge.critic.network.reference_logprobs(
            rows
        )
        found = again.logprobs(rows) - again.reference_logprobs(rows)
    assert torch.equal(found, expected) and float(found.abs().max()) > 0
    with pytest.raises(UsageError, match="holds no advantage critic"):
        load_advantage(tmp_path)


def test_what_is_no_causal_model_is_refused(tmp_path):
    from transformers import BertConfig, BertForMaskedLM

    with pytest.raises(UsageError, match=r"rl\.critic\.trunk"):
        load_log_ratio(tmp_path / "nothing", max_tokens=64, length_normalised=True)
    folder = tiny_llama(tmp_path / "bert")
    size = AutoModelForCausalLM.from_pretrained(folder).config.vocab_size
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=size, intermediate_size=16, **shape)
    BertForMaskedLM(config).save_pretrained(folder)
    with pytest.raises(UsageError, match="no language model loads"):
        load_log_ratio(folder, max_tokens=64, length_normalised=True)
