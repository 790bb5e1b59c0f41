"""The critic: what it may see, the values it must reach, and that it goes where it is told."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from stages.common.errors import UsageError
from stages.interaction.trajectory import Action
from stages.rl.critic.encoder import EncoderTrunk
from stages.rl.critic.learner import CriticLearner, FitPlan
from stages.rl.critic.light import LightTrunk
from stages.rl.critic.network import CriticNetwork
from stages.rl.critic.text import keep_mostly_end
from stages.rl.critic.trunks import load_critic, save_critic
from stages.rl.critic.views import ViewParts, action_views, critic_views
from tests.rl.worlds import BETWEEN, START, episode
from tests.tiny_models import tiny_bert, tiny_qwen3


def success(trajectory):
    return [float(t.rewards.get("success", 0.0)) for t in trajectory.turns]


def three_turns(first=3):
    turns = [
        ([START], [first], 0.0),
        ([START, first, BETWEEN], [4], 0.0),
        ([START, first, BETWEEN, 4, BETWEEN], [5], 1.0),
    ]
    done = episode(turns)
    facts = [
        replace(t, privileged={"answer": "42", "left": f"after {t.index}"}) for t in done.turns
    ]
    return replace(done.with_turns(facts), initial_privileged={"answer": "42", "left": "all"})


def test_a_view_never_holds_its_own_action_or_what_came_of_it():
    """The recorder: replace a_t and its result; c_t stays byte-identical, c_{t+1} changes."""
    original = three_turns()
    for t in range(3):
        turns = list(original.turns)
        turns[t] = replace(
            turns[t],
            action=Action("something else"),
            observation=({"role": "tool", "content": "another result"},),
            privileged={"answer": "42", "left": "changed"},
            rewards={},
        )
        changed = critic_views(original.with_turns(turns))
        before = critic_views(original)
        for earlier in range(t + 1):
            assert changed[earlier].text() == before[earlier].text()
        assert changed[t + 1].text() != before[t + 1].text()


def test_privileged_facts_arrive_one_view_late():
    views = critic_views(three_turns())
    assert len(views) == 4
    assert "left: all" in views[0].privileged
    assert [f"after {t}" in views[t + 1].privileged for t in range(3)] == [True] * 3
    assert views[0].turns_left == 4 and views[3].turns_left == 1


def test_each_part_can_be_switched_off():
    full = critic_views(three_turns())[2]
    assert full.history and full.state and full.privileged
    assert critic_views(three_turns(), ViewParts(history=False))[2].history == ()
    assert critic_views(three_turns(), ViewParts(state=False))[2].state == ""
    assert critic_views(three_turns(), ViewParts(privileged=False))[2].privileged == ""
    assert critic_views(three_turns(), ViewParts(checklist=False))[2].checklist == ""
    assert full.turns_left == 2
    assert critic_views(three_turns(), ViewParts(limits=False))[2].turns_left == 0


def test_tokens_left_are_those_of_the_actors_state():
    parts = ViewParts(state_tokens=10)
    assert [v.tokens_left for v in critic_views(three_turns(), parts)] == [9, 7, 5, 4]
    assert critic_views(three_turns(), ViewParts())[0].tokens_left == 0


def test_an_action_view_is_the_view_with_its_action():
    whole = three_turns()
    plain, judged = critic_views(whole), action_views(whole)
    assert len(judged) == 3
    for view, with_action, turn in zip(plain[:-1], judged, whole.turns, strict=True):
        assert with_action == replace(view, action=turn.action.text)
        assert with_action.text().endswith(f"proposed: {turn.action.text}")


@pytest.mark.parametrize("parts", [ViewParts(), ViewParts(history=False)])
def test_light_values_do_not_depend_on_the_batch_or_on_the_future(parts):
    torch.manual_seed(0)
    trunk = LightTrunk(16)
    whole = three_turns()
    short = whole.with_turns(whole.turns[:1])
    prepared = [trunk.prepare(critic_views(e, parts)) for e in (whole, short, three_turns(2))]
    together = trunk(prepared).split([4, 2, 4])
    for one, apart in zip(prepared, together, strict=True):
        torch.testing.assert_close(trunk([one]), apart)
    if parts.history:
        turns = [*whole.turns[:2], replace(whole.turns[2], action=Action("other words"))]
        other = trunk([trunk.prepare(critic_views(whole.with_turns(turns), parts))])
        torch.testing.assert_close(other[:3], together[0][:3])
        assert not torch.allclose(other[3], together[0][3])


def coin_episodes(count, p, seed, *, truncated=False):
    """One coin decides; three turns; the first result shows the coin. V_0 = p, then 0 or 1."""
    rng = np.random.default_rng(seed)
    done = []
    for number in range(count):
        coin = int(rng.random() < p)
        turns = [
            ([START], [coin], 0.0),
            ([START, coin, BETWEEN], [4], 0.0),
            ([START, coin, BETWEEN, 4], [5], 0.0 if truncated else float(coin)),
        ]
        done.append(episode(turns, key=(seed, 0, number), truncated=truncated))
    return done


def fitted(trunk, episodes, *, steps, kind="td_lambda", **plan):
    torch.manual_seed(0)
    options = {"learning_rate": 5e-3, "steps": steps, "batch_size": 64} | plan
    learner = CriticLearner(
        CriticNetwork(trunk), plan=FitPlan(**options), parts=ViewParts(), turn_rewards=success
    )
    rng = np.random.default_rng(0)

    def sample(count):
        return [episodes[i] for i in rng.integers(len(episodes), size=count)]

    for _ in range(8):
        loss = learner.fit(sample, kind=kind)
    return learner, loss


@pytest.mark.parametrize("kind", ["td_lambda", "monte_carlo"])
def test_it_reaches_the_true_values(kind):
    episodes = coin_episodes(256, 0.3, seed=1)
    share = np.mean([e.success for e in episodes])
    learner, _ = fitted(LightTrunk(16), episodes, steps=25, kind=kind)
    values = torch.stack([v[:3] for v in learner.values(episodes[:32])])
    won = torch.tensor([float(e.success) for e in episodes[:32]])
    assert float((values[:, 0] - share).abs().max()) < 0.06
    assert float((values[:, 1:] - won[:, None]).abs().max()) < 0.08


def test_truncation_bootstraps_where_termination_does_not():
    """Reward 1 a turn, γ = 0.5, endless but cut after 3 turns: V → 2. As terminated: below."""

    def ones(trajectory):
        return [1.0] * len(trajectory.turns)

    def value(truncated):
        episodes = coin_episodes(8, 0.0, seed=2, truncated=truncated)
        torch.manual_seed(0)
        plan = FitPlan(learning_rate=1e-2, steps=40, batch_size=8, discount=0.5, target_rate=0.5)
        learner = CriticLearner(
            CriticNetwork(LightTrunk(8)),
            plan=plan,
            parts=ViewParts(state=False),
            turn_rewards=ones,
        )
        for _ in range(12):
            learner.fit(lambda n: episodes, kind="td_lambda")
        return learner.values(episodes)[0]

    # c_3 is never acted on, so its value is generalised: near 2, far from what follows
    assert float((value(True)[:3] - 2.0).abs().max()) < 0.25
    # 1 + 0.5 + 0.25, then less: the machinery's cut taken for an end
    torch.testing.assert_close(value(False)[:3], torch.tensor([1.75, 1.5, 1.0]), atol=0.1, rtol=0.0)


def test_loss_falls_and_permuted_targets_remove_the_fall():
    episodes = coin_episodes(128, 0.5, seed=3)
    learner, loss = fitted(LightTrunk(16), episodes, steps=20)
    _, unfitted = fitted(LightTrunk(16), episodes, steps=20, learning_rate=1e-12)
    assert loss < 0.8 * unfitted
    rng = np.random.default_rng(0)
    wins = rng.permutation([float(e.success) for e in episodes])
    shuffled = [
        e.with_turns([*e.turns[:2], replace(e.turns[2], rewards={"success": w} if w else {})])
        for e, w in zip(episodes, wins, strict=True)
    ]
    learner, _ = fitted(LightTrunk(16), shuffled, steps=2)
    fresh = coin_episodes(128, 0.5, seed=4)
    assert learner.surprise(fresh) < 0.3
    assert fitted(LightTrunk(16), episodes, steps=20)[0].surprise(fresh) > 0.6


def test_the_target_network_follows_slowly():
    episodes = coin_episodes(32, 0.5, seed=5)
    network = CriticNetwork(LightTrunk(8))
    plan = FitPlan(steps=5, target_rate=0.25, learning_rate=1e-2)
    learner = CriticLearner(network, plan=plan, parts=ViewParts(), turn_rewards=success)
    before = [p.clone() for p in learner.target.parameters()]
    learner.fit(lambda n: episodes, kind="td_lambda")
    pairs = zip(before, network.parameters(), learner.target.parameters(), strict=True)
    for old, fast, slow in pairs:
        torch.testing.assert_close(slow, 0.75 * old + 0.25 * fast)
    assert not any(p.requires_grad for p in learner.target.parameters())


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory):
    """A random BERT with a word-piece tokenizer of its own: another family than the actor's."""

    return tiny_bert(tmp_path_factory.mktemp("encoder"), max_position_embeddings=64)


def test_any_encoder_folder_is_a_critic(encoder_folder, tmp_path):
    trunk = EncoderTrunk.load(str(encoder_folder), max_tokens=512)
    episodes = coin_episodes(16, 0.5, seed=6)
    before = [p.clone() for p in trunk.parameters()]
    learner, _ = fitted(trunk, episodes, steps=2, learning_rate=1e-3)
    assert any(not torch.equal(a, b) for a, b in zip(before, trunk.parameters(), strict=True))
    values = learner.values(episodes[:3])
    options = {"trunk": str(encoder_folder), "hidden_size": 8, "view": {"max_tokens": 512}}
    save_critic(learner.network.eval(), tmp_path / "critic", options)
    again, _ = load_critic(tmp_path / "critic")
    reloaded = CriticLearner(
        again.eval(), plan=FitPlan(), parts=ViewParts(), turn_rewards=success
    ).values(episodes[:3])
    for a, b in zip(values, reloaded, strict=True):
        torch.testing.assert_close(a, b)


def test_a_long_view_loses_the_middle_of_its_history_only(encoder_folder):
    trunk = EncoderTrunk.load(str(encoder_folder), max_tokens=60)
    whole = three_turns()
    wordy = [
        replace(t, observation=({"role": "tool", "content": f"seen {'0 ' * 40} {t.index}"},))
        for t in whole.turns
    ]
    views = critic_views(whole.with_turns(wordy), ViewParts(state=False))
    ids = trunk.prepare(views)[3].tolist()
    text = trunk.reader.tokenizer.decode(ids)
    assert len(ids) <= 60
    assert "goal" in text and "facts" in text and "left" in text and "after 2" in text


def test_keep_mostly_end():
    assert keep_mostly_end(list(range(10)), 10) == list(range(10))
    assert keep_mostly_end(list(range(10)), 4) == [0, 7, 8, 9]
    assert keep_mostly_end(list(range(10)), 0) == []


def test_light_critic_saves_and_loads(tmp_path):
    network = CriticNetwork(LightTrunk(16))
    torch.nn.init.normal_(network.head.linear.weight)
    options = {"trunk": "light", "hidden_size": 16, "view": {"max_tokens": 16}}
    save_critic(network, tmp_path, options)
    again, _ = load_critic(tmp_path)
    views = [network.prepare(critic_views(three_turns()))]
    torch.testing.assert_close(network(views), again(views))


def test_a_critic_of_another_shape_is_refused_in_one_sentence(tmp_path):
    """As one is that an earlier version saved under options that this one reads as well."""
    save_critic(CriticNetwork(LightTrunk(8)), tmp_path, {"hidden_size": 16})
    with pytest.raises(UsageError, match=r"safetensors describes no critic that this"):
        load_critic(tmp_path)


def test_an_unknown_trunk_is_explained(tmp_path):
    from stages.recipe.critic import CriticSection
    from stages.rl.critic.trunks import build_trunk

    with pytest.raises(UsageError, match=r"rl\.critic\.trunk"):
        build_trunk(CriticSection(trunk=str(tmp_path / "nothing")))


def test_a_causal_model_folder_is_an_encoder_too(tmp_path):
    folder = tiny_qwen3(tmp_path / "qwen3")
    trunk = EncoderTrunk.load(str(folder), max_tokens=64)
    features = trunk([trunk.prepare(critic_views(three_turns()))])
    assert features.shape == (4, trunk.width) and bool(features.isfinite().all())
