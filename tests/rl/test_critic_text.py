"""Views as text within a budget, and the encoders that read them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stages.common.errors import UsageError
from stages.common.files import write_json
from stages.recipe.critic import CriticSection
from stages.rl.critic import encoder as encoders
from stages.rl.critic.encoder import EncoderTrunk, looks_only_back, packed
from stages.rl.critic.ensemble import Ensemble, bootstrap_weights
from stages.rl.critic.text import Pieces, WordReader, newest
from stages.rl.critic.trunks import build_network, load_critic, save_critic
from stages.rl.critic.views import View, action_views, critic_views
from tests.rl.test_critic import three_turns
from tests.tiny_models import tiny_bert, tiny_qwen3

PIECES = Pieces(
    start=[1] * 5,
    history=[[20] * 4, [21] * 6, [22] * 3, [23] * 8],
    limits=[3] * 2,
    state=list(range(40, 52)),
    action=[5] * 4,
)


def test_nothing_is_cut_that_fits() -> None:
    assert PIECES.within(len(PIECES)) == PIECES.within(1000)
    assert len(PIECES.within(1000)) == len(PIECES) == 44


@pytest.mark.parametrize("budget", range(7, 45))
def test_goal_facts_and_limits_stay_at_any_budget(budget: int) -> None:
    ids = PIECES.within(budget)
    assert len(ids) == budget  # all the room is used
    assert ids[:5] == [1] * 5 and [i for i in ids if i == 3] == [3, 3]
    if budget >= 27:
        assert ids.count(23) == 8  # the last exchange is whole
        assert ids.count(5) == 4
    state = [i for i in ids if i >= 40]
    assert state == sorted(state)
    if 4 <= len(state) < 12:
        assert {40, 51} <= set(state)  # its middle is what went


def test_goal_and_facts_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(ValueError, match="7 tokens of 6"):
        PIECES.within(6)


def test_newest_exchanges_stay_whole() -> None:
    exchanges = [[1, 2, 3], [4, 5], [6, 7]]
    assert newest(exchanges, 7) == [1, 2, 3, 4, 5, 6, 7]
    assert newest(exchanges, 6) == [1, 2, 4, 5, 6, 7]
    assert newest(exchanges, 3) == [1, 6, 7]
    assert newest(exchanges, 0) == [] == newest([], 5)


def test_words_are_their_own_tokenizer() -> None:
    reader = WordReader()
    one, two = reader.ids(["How many, Orders?", "how many orders"])
    assert one == two and len(one) == 3
    assert max(one + reader.before) < reader.vocabulary


def long_views() -> list[View]:
    turn = three_turns().turns[0]
    wordy = "many words of a result " * 30
    turns = [
        replace(turn, index=t, observation=({"role": "tool", "content": f"result{t} {wordy}"},))
        for t in range(4)
    ]
    views = critic_views(three_turns().with_turns(turns))
    return [replace(v, state=f"begin {'state of the actor ' * 60} end") for v in views]


def test_a_long_state_pushes_out_neither_facts_nor_limits() -> None:
    trunk = EncoderTrunk.scratch(hidden_size=8, layers=1, max_tokens=64)
    for view, row in zip(long_views(), trunk.prepare(long_views()), strict=True):
        assert len(row) <= 64
        needed = WordReader().ids([view.start(), view.limits()])
        text = ",".join(map(str, row.tolist()))
        assert all(",".join(map(str, ids)) in text for ids in needed)


def test_a_budget_too_small_for_goal_and_facts_is_refused() -> None:
    trunk = EncoderTrunk.scratch(hidden_size=8, layers=1, max_tokens=16)
    views = [replace(v, goal="a very long goal " * 9) for v in critic_views(three_turns())]
    with pytest.raises(UsageError, match=r"rl\.critic\.view\.max_tokens.*at least (\d+)") as caught:
        trunk.prepare(views)
    assert "\n" not in str(caught.value)


def test_values_do_not_depend_on_packing_or_order(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    trunk = EncoderTrunk.scratch(hidden_size=16, layers=2, max_tokens=128)
    trunk.train()  # has no effect: dropout stays off
    episodes = [trunk.prepare(v) for v in (long_views(), critic_views(three_turns()))]
    whole = trunk(episodes)
    monkeypatch.setattr(encoders, "MICROBATCH_TOKENS", 1)
    torch.testing.assert_close(trunk(episodes), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(trunk(episodes[::-1]), torch.cat([whole[5:], whole[:5]]))
    assert whole.std() > 0.01  # views differ


def test_dropout_stays_off(tmp_path: Path) -> None:
    trunk = EncoderTrunk.load(tiny_bert(tmp_path / "bert"), max_tokens=96)
    assert trunk.encoder.config.hidden_dropout_prob > 0
    trunk.train()
    rows = [trunk.prepare(critic_views(three_turns()))]
    torch.testing.assert_close(trunk(rows), trunk(rows), rtol=0, atol=0)


def test_a_broken_description_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "critic.json").write_text('{"trunk": "light", "no_such_option": 1}')
    with pytest.raises(UsageError, match=r"critic\.json describes no critic"):
        load_critic(tmp_path)


def test_packed_batches_hold_every_row_once_within_the_budget() -> None:
    lengths = [5, 1, 9, 3, 3, 20]
    batches = list(packed(lengths, 12))
    assert sorted(k for batch in batches for k in batch) == list(range(6))
    sizes = [len(batch) * max(lengths[k] for k in batch) for batch in batches]
    assert all(size <= 12 or len(b) == 1 for size, b in zip(sizes, batches, strict=True))
    assert batches == [[1, 3, 4], [0], [2], [5]]


def test_a_decoder_is_read_at_its_last_token(tmp_path: Path) -> None:
    trunk = EncoderTrunk.load(tiny_qwen3(tmp_path / "qwen3"), max_tokens=64)
    assert looks_only_back(trunk.encoder)
    assert not looks_only_back(EncoderTrunk.scratch(hidden_size=8, layers=1, max_tokens=16).encoder)
    rows = trunk.prepare(critic_views(three_turns()))
    alone = trunk.encoder(input_ids=rows[2][None]).last_hidden_state[0, -1]
    torch.testing.assert_close(trunk([rows])[2], alone, rtol=1e-4, atol=1e-5)


def test_the_encoder_of_an_encoder_decoder_is_a_trunk(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, T5Config, T5Model

    tokenizer = AutoTokenizer.from_pretrained(tiny_qwen3(tmp_path / "qwen3"))
    config = T5Config(
        vocab_size=len(tokenizer), d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2
    )
    folder = tmp_path / "t5"
    T5Model(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    critic = CriticSection(trunk=str(folder), view={"max_tokens": 64})
    network = build_network(critic)
    views = [network.prepare(critic_views(three_turns()))]
    torch.nn.init.normal_(network.head.linear.weight)
    save_critic(network, tmp_path / "critic", critic.model_dump(mode="json"))
    again, _ = load_critic(tmp_path / "critic")
    torch.testing.assert_close(again(views), network(views))


@pytest.mark.parametrize("hidden_size", [8, 50, 98])
def test_a_trunk_from_scratch_of_any_even_width(hidden_size: int) -> None:
    network = build_network(CriticSection(trunk="scratch", hidden_size=hidden_size, layers=1))
    view = View("find it", (), "", "", "", 0, 1, 1)
    assert network([network.prepare([view])]).shape == (1,)


@pytest.mark.parametrize("other", [{"kind": "advantage"}, {"trunk": "shared", "view": "symmetric"}])
def test_a_folder_of_a_critic_without_a_value_network_is_refused(
    other: dict[str, str], tmp_path: Path
) -> None:
    critic = CriticSection.model_validate(other)
    write_json(tmp_path / "critic.json", critic.model_dump(mode="json"))
    with pytest.raises(UsageError, match=f"kind {critic.kind} on trunk {critic.trunk}, expected"):
        load_critic(tmp_path)


# ---- ensembles


def ensemble(members: int = 3, **options: object) -> Ensemble:
    torch.manual_seed(0)
    network = build_network(CriticSection(hidden_size=8, ensemble=members, **options))
    assert isinstance(network, Ensemble)
    for member in network.members:
        torch.nn.init.normal_(member.head.linear.weight)
    return network


def test_an_ensembles_value_is_the_mean_and_its_spread_the_deviation() -> None:
    network = ensemble()
    views = critic_views(three_turns())
    drawn = [network.prepare(views)]
    each = torch.stack([m([m.prepare(views)]) for m in network.members])
    torch.testing.assert_close(network(drawn), each.mean(0))
    torch.testing.assert_close(network.spread(drawn), each.std(0, unbiased=False))
    assert float(network.spread(drawn).detach().min()) > 0


@pytest.mark.parametrize("loss", ["mse", "hl_gauss"])
def test_a_members_gradient_is_that_of_its_weighted_loss(loss: str) -> None:
    network = ensemble(loss=loss)
    episodes = [critic_views(three_turns()), critic_views(three_turns(2))]
    drawn = [
        replace(network.prepare(v), weights=torch.tensor(w))
        for v, w in zip(episodes, ([0.0, 1.0, 2.0], [1.0, 0.0, 3.0]), strict=True)
    ]
    targets = torch.linspace(-0.5, 1.0, 8)
    network.loss(network.outputs(drawn), targets).mean().backward()
    for k, member in enumerate(network.members):
        found = member.head.linear.weight.grad.clone()
        member.zero_grad()
        output = member.outputs([member.prepare(v) for v in episodes])
        weights = torch.cat([d.weights[k].expand(4) for d in drawn])
        ((weights * member.loss(output, targets)).mean() / 3).backward()
        torch.testing.assert_close(found, member.head.linear.weight.grad)


def test_bootstrap_weights_are_fixed_and_poisson() -> None:
    assert torch.equal(bootstrap_weights("an episode", 4), bootstrap_weights("an episode", 4))
    draws = torch.stack([bootstrap_weights(f"episode {k}", 3) for k in range(600)])
    assert draws.mean(0).tolist() == pytest.approx([1.0] * 3, abs=0.15)
    assert draws.var(0).tolist() == pytest.approx([1.0] * 3, abs=0.3)
    assert abs(float(torch.corrcoef(draws.T)[0, 1])) < 0.15


def test_proposed_actions_are_read() -> None:
    trunk = EncoderTrunk.scratch(hidden_size=8, layers=1, max_tokens=64)
    whole = three_turns()
    plain, judged = trunk.prepare(critic_views(whole)), trunk.prepare(action_views(whole))
    assert len(judged) == 3
    assert all(len(b) > len(a) for a, b in zip(plain[:-1], judged, strict=True))
