"""The critic on the actor's trunk: where it reads, what its loss moves, and the whole command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from aacli.app import app
from stages.common.errors import UsageError
from stages.interaction.trajectory import Action
from stages.rl.baselines import Cadence
from stages.rl.learner import ActorLearner, Objective, Tally
from stages.rl.pool import ExperiencePool, read_trajectories
from stages.rl.rows import actor_rows
from stages.rl.shared import (
    SharedBaseline,
    SharedCritic,
    SharedHead,
    load_head,
    next_prompt,
    save_head,
)
from stages.rl.trainer import AsymmetricPPOTrainer, Parts
from stages.rl.trl_adapter import ppo_config
from tests.rl.test_run import Lab, rows_of, weights
from tests.rl.worlds import (
    BETWEEN,
    START,
    VOCABULARY,
    bandit_episodes,
    episode,
    small_actor,
    small_tokenizer,
)
from tests.tiny_models import tiny_llama, tiny_qwen3

PLAIN = Objective(
    clip_range=0.2,
    kl_coef=0.1,
    kl_loss="k2",
    entropy_coef=0.05,
    sft_coef=0.0,
    temperature=1.0,
    max_grad_norm=1e9,
)
SILENT = replace(PLAIN, kl_coef=0.0, entropy_coef=0.0)


def success(trajectory):
    return [float(t.rewards.get("success", 0.0)) for t in trajectory.turns]


def setup(folder, *, detach=False, iterations=1, learning_rate=1e-3, value_rate=1e-2):
    """TRL's set-up around the small actor with a head whose weights are not zero."""
    actor = small_actor()
    head = SharedHead(actor.config.hidden_size, detach=detach)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        head.linear.weight.normal_(0.0, 0.3, generator=generator)
    config = ppo_config(
        folder,
        iterations=iterations,
        learning_rate=learning_rate,
        value_learning_rate=value_rate,
        seed=3,
    )
    return AsymmetricPPOTrainer(
        config,
        actor=actor,
        reference=small_actor().requires_grad_(False),
        reward_model=None,
        tokenizer=small_tokenizer(),
        value_head=head,
    )


def critic_of(trainer, **options):
    plan = {"turn_rewards": success, "discount": 1.0, "microbatch_tokens": 32} | options
    return SharedCritic(trainer, **plan)


def learner_of(trainer, **options):
    plan = {"epochs": 1, "minibatch_episodes": 1000, "microbatch_tokens": 32} | options
    return ActorLearner(trainer, **plan)


def random_episodes(trainer, count=6, *, extend=True):
    """Episodes of one to three turns; with ``extend`` the turns of one share a row."""
    rng = np.random.default_rng(0)
    done = []
    for number in range(count):
        ids, turns = [START], []
        for _ in range(1 + number % 3):
            action = rng.integers(VOCABULARY, size=int(rng.integers(1, 4))).tolist()
            turns.append((list(ids), action, float(rng.integers(2))))
            ids = [*ids, *action, BETWEEN] if extend else [START, BETWEEN, *action]
        done.append(episode(turns, actor=trainer.actor))
    return done


def by_definition(trainer, prompt):
    """V of one prompt alone: the head on the last hidden state of a forward of its own."""
    found = trainer.actor(torch.tensor([list(prompt)]), output_hidden_states=True)
    linear = trainer.value_head.linear
    state = found.hidden_states[-1][0, -1]
    return (state.detach() if trainer.value_head.detach else state) @ linear.weight[0] + linear.bias


def gradients(trainer):
    return {
        name: p.grad.clone() if p.grad is not None else torch.zeros_like(p)
        for name, p in trainer.learned.named_parameters()
    }


def accumulated(trainer, rows, objective):
    """Gradients and figures of one minibatch."""
    trainer.learned.zero_grad(set_to_none=True)
    tally = Tally()
    learner = learner_of(trainer)
    for loss in learner.ppo_losses(learner.with_reference(rows, 1.0), objective, tally):
        learner.setup.descent.accumulate(loss, last=False)
    return gradients(trainer), tally.means()


def returns_for(episodes):
    rng = np.random.default_rng(5)
    return [list(rng.normal(size=len(e.turns))) for e in episodes]


# ---- where it reads


@pytest.mark.parametrize("extend", [True, False])
def test_values_are_those_of_each_prompt_alone(extend, tmp_path):
    trainer = setup(tmp_path)
    episodes = random_episodes(trainer, extend=extend)
    rows = actor_rows(episodes, [[0.0] * len(e.turns) for e in episodes])
    assert (len(rows) == len(episodes)) == extend
    for values, e in zip(critic_of(trainer).values(episodes), episodes, strict=True):
        alone = [float(by_definition(trainer, t.prompt_ids).detach()) for t in e.turns]
        assert values.tolist() == pytest.approx([*alone, 0.0], abs=1e-5)


def test_turns_without_anything_between_them_have_values_of_their_own(tmp_path):
    """The second prompt is the first and its action: the last action token is its last token."""
    trainer = setup(tmp_path)
    tight = episode([([START], [3, 4], 0.0), ([START, 3, 4], [5], 1.0)], actor=trainer.actor)
    assert len(actor_rows([tight], [[0.0, 0.0]])) == 1
    (values,) = critic_of(trainer).values([tight])
    alone = [float(by_definition(trainer, t.prompt_ids).detach()) for t in tight.turns]
    assert values.tolist() == pytest.approx([*alone, 0.0], abs=1e-5)


def test_a_value_knows_nothing_of_its_action(tmp_path):
    trainer = setup(tmp_path)
    one = episode([([START], [3], 0.0), ([START, 3, BETWEEN], [4], 0.0)])
    other = episode([([START], [3], 0.0), ([START, 3, BETWEEN], [5, 5], 0.0)])
    a, b = (critic_of(trainer).values([e])[0] for e in (one, other))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_a_cut_episode_bootstraps_from_the_state_it_was_cut_in(tmp_path):
    trainer = setup(tmp_path)
    trainer.processing_class.backend_tokenizer.pre_tokenizer = WhitespaceSplit()
    trainer.processing_class.chat_template = (
        "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    )
    cut = episode([([1, 2], [3], 0.0)], actor=trainer.actor, truncated=True)
    shown = replace(
        cut.turns[0],
        messages=({"role": "user", "content": "1 2"},),
        observation=({"role": "user", "content": "4 5"},),
    )
    cut = cut.with_turns([shown])
    critic = critic_of(trainer)
    (values,) = critic.values([cut])
    after = next_prompt(trainer.processing_class, shown)
    assert after == (1, 2, 3, 4, 5)
    expected = [float(by_definition(trainer, ids).detach()) for ids in ((1, 2), after)]
    assert values.tolist() == pytest.approx(expected, abs=1e-5)
    assert float(critic.padded([cut], [values]).bootstrap) == pytest.approx(expected[1], abs=1e-5)


@pytest.mark.parametrize("build", [tiny_llama, tiny_qwen3])
def test_the_next_state_goes_on_from_the_tokens_as_sampled(build, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(build(tmp_path))
    from stages.common.chat import encode_action, encode_prompt

    messages = ({"role": "user", "content": "How many orders?"},)
    turn = replace(
        random_turn(),
        messages=messages,
        action=Action("list tables"),
        observation=({"role": "tool", "content": "orders, products"},),
        prompt_ids=tuple(encode_prompt(tokenizer, messages)),
        action_ids=tuple(encode_action(tokenizer, messages, "list tables")),
    )
    after = next_prompt(tokenizer, turn)
    before = (*turn.prompt_ids, *turn.action_ids)
    assert after[: len(before)] == before
    assert "orders, products" in tokenizer.decode(after[len(before) :])


def random_turn():
    return episode([([START], [3], 0.0)]).turns[0]


# ---- what its loss moves


def test_it_really_shares_storage(tmp_path):
    """Everything the values read, but the head, lies where the actor's parameters lie."""
    trainer = setup(tmp_path)
    critic = critic_of(trainer)
    place = {p.data_ptr() for p in trainer.actor.parameters()}
    own = {p.data_ptr() for p in critic.head.parameters()}
    read = {p.data_ptr() for p in critic.setup.model.parameters()}
    assert read == place | own and len(own) == 2 and not place & own
    optimised = [p.data_ptr() for g in trainer.optimizer.param_groups for p in g["params"]]
    assert sorted(optimised) == sorted(place | own)
    assert [g["lr"] for g in trainer.optimizer.param_groups] == [1e-3, 1e-3, 1e-2]
    episodes = random_episodes(trainer)
    (before, *_) = critic.values(episodes)
    with torch.no_grad():
        trainer.actor.get_input_embeddings().weight.add_(0.5)
    critic.forget()
    assert not torch.allclose(critic.values(episodes)[0], before)


@pytest.mark.parametrize("extend", [True, False])
def test_the_gradient_is_the_policys_and_vf_coef_times_the_values(extend, tmp_path):
    """∇total = ∇policy + vf_coef · ∇ mean over turns of (V − G)², the latter by definition."""
    trainer = setup(tmp_path)
    episodes = random_episodes(trainer, extend=extend)
    returns = returns_for(episodes)
    advantages = [[1.5 * g for g in row] for row in returns]
    policy, _ = accumulated(trainer, actor_rows(episodes, advantages), PLAIN)
    total, figures = accumulated(
        trainer, actor_rows(episodes, advantages, returns), replace(PLAIN, vf_coef=0.7)
    )
    trainer.learned.zero_grad(set_to_none=True)
    errors = [
        (by_definition(trainer, turn.prompt_ids) - g).square()
        for e, row in zip(episodes, returns, strict=True)
        for turn, g in zip(e.turns, row, strict=True)
    ]
    loss = torch.stack(errors).mean()
    loss.backward()
    value = gradients(trainer)
    assert figures["critic/loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    for name in total:
        expected = policy[name] + 0.7 * value[name]
        torch.testing.assert_close(total[name], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("detach", "vf_coef", "trunk_moves", "head_moves"),
    [(False, 0.5, True, True), (False, 0.0, False, False), (True, 0.5, False, True)],
)
def test_what_the_value_loss_alone_moves(detach, vf_coef, trunk_moves, head_moves, tmp_path):
    trainer = setup(tmp_path, detach=detach)
    episodes = random_episodes(trainer)
    nothing = [[0.0] * len(e.turns) for e in episodes]
    rows = actor_rows(episodes, nothing, returns_for(episodes))
    found, _ = accumulated(trainer, rows, replace(SILENT, vf_coef=vf_coef))
    moved = {name for name, gradient in found.items() if bool((gradient != 0).any())}
    assert any(name.startswith("policy.model.layers") for name in moved) == trunk_moves
    assert any("head" in name.split(".") for name in moved) == head_moves


def test_an_update_moves_trunk_and_head_by_the_value_loss_alone(tmp_path):
    trainer = setup(tmp_path, iterations=10)
    episodes = random_episodes(trainer)
    nothing = [[0.0] * len(e.turns) for e in episodes]
    before = {n: p.detach().clone() for n, p in trainer.learned.named_parameters()}
    learner = learner_of(trainer, epochs=25, minibatch_episodes=6)
    returns = [[0.3 * len(t.prompt_ids) for t in e.turns] for e in episodes]
    rows, rng = actor_rows(episodes, nothing, returns), np.random.default_rng(0)
    first = learner.update(rows, replace(SILENT, vf_coef=0.5), rng)["critic/loss"]
    later = learner.update(rows, replace(SILENT, vf_coef=0.5), rng)["critic/loss"]
    assert later < 0.8 * first
    after = dict(trainer.learned.named_parameters())
    assert not torch.equal(before["policy.model.norm.weight"], after["policy.model.norm.weight"])


# ---- the loop


def bandit(folder, *, iterations, warm_up=1):
    trainer = setup(folder, iterations=iterations, learning_rate=2e-2, value_rate=3e-2)
    pool = ExperiencePool(folder / "pool", max_episodes=128)
    cadence = Cadence(
        seed=3,
        discount=1.0,
        gae_lambda=0.95,
        target="td_lambda",
        max_age=4,
        warm_up_iterations=warm_up,
        min_explained_variance=0.0,
    )
    baseline = SharedBaseline(
        critic_of(trainer), pool, cadence, steps=40, batch_size=16, max_grad_norm=1.0
    )
    log = []
    parts = Parts(
        collect=lambda i, v: bandit_episodes(trainer.actor, 32, i, version=v),
        score=list,
        measure=lambda es: {"episode/success": float(np.mean([e.success for e in es]))},
        baseline=baseline,
        pool=pool,
        objective=lambda *_: replace(SILENT, vf_coef=0.5, max_grad_norm=1.0),
        report=lambda i, metrics, es: log.append(metrics),
        evaluate=lambda i: {},
        checkpoint=lambda i: None,
    )
    return trainer, parts, learner_of(trainer, epochs=2, minibatch_episodes=8), log


def test_it_solves_a_problem_whose_first_action_decides(tmp_path):
    trainer, parts, learner, log = bandit(tmp_path, iterations=8)
    trainer.train(parts, learner, iterations=8)
    curve = [m["episode/success"] for m in log]
    assert curve[0] < 0.5 and np.mean(curve[-3:]) > 0.9
    promised = {"critic/explained_variance", "critic/loss", "critic/warm", "critic/learning_rate"}
    assert not promised - set(log[-1])


def test_the_warm_up_fits_the_head_and_nothing_else(tmp_path):
    trainer, parts, learner, log = bandit(tmp_path, iterations=3, warm_up=2)
    actor = [p.clone() for p in trainer.actor.parameters()]
    head = [p.clone() for p in trainer.value_head.parameters()]
    trainer.train(parts, learner, iterations=1)
    assert all(torch.equal(a, b) for a, b in zip(actor, trainer.actor.parameters(), strict=True))
    moved = zip(head, trainer.value_head.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in moved)
    assert log[0]["critic/warm"] == 0 and log[0]["critic/steps"] == 40
    fresh = bandit_episodes(trainer.actor, 64, 7)
    assert parts.baseline.critic.surprise(fresh) > 0.1
    trainer.train(parts, learner, iterations=3)
    assert any(
        not torch.equal(a, b) for a, b in zip(actor, trainer.actor.parameters(), strict=True)
    )


def test_warm_up_loss_falls_and_permuted_targets_remove_the_fall(tmp_path):
    episodes = bandit_episodes(small_actor(), 48, 0)
    won = np.random.default_rng(0).permutation([e.success for e in episodes])
    mixed = [
        e.with_turns([e.turns[0], replace(e.turns[1], rewards={"success": 1.0} if w else {})])
        for e, w in zip(episodes, won, strict=True)
    ]
    fell = {}
    for name, data in (("true", episodes), ("permuted", mixed)):
        critic = critic_of(setup(tmp_path, value_rate=3e-2))
        rng = np.random.default_rng(1)
        torch.nn.init.zeros_(critic.head.linear.weight)
        torch.nn.init.constant_(critic.head.linear.bias, float(won.mean()))
        plan = {"batch_size": 256, "max_grad_norm": 1.0}
        first = critic.fit(data, rng, steps=1, **plan)
        critic.fit(data, rng, steps=200, **plan)
        fell[name] = 1 - critic.fit(data, rng, steps=1, **plan) / first
    assert fell["true"] > 0.2 > fell["permuted"]


def test_the_head_is_saved_and_loaded(tmp_path):
    head = SharedHead(8, detach=True)
    torch.nn.init.normal_(head.linear.weight)
    save_head(head, tmp_path / "critic", {"trunk": "shared", "detach": True})
    again = load_head(tmp_path / "critic")
    states = torch.randn(5, 8)
    assert torch.equal(again(states), head(states)) and again.detach
    save_head(head, tmp_path / "other", {"trunk": "light", "detach": False})
    with pytest.raises(UsageError, match="trunk of its own"):
        load_head(tmp_path / "other")


def test_a_head_gives_float32_values_of_bfloat16_states():
    assert SharedHead(8)(torch.randn(2, 8, dtype=torch.bfloat16)).dtype == torch.float32


# ---- the command


SHARED = {
    "trunk": "shared",
    "view": "symmetric",
    "learning_rate": 1e-2,
    "steps": 10,
    "warm_up": {"max_iterations": 1},
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("llama"), tiny_llama)


def aac_rl(lab: Lab, out: Path, *words: str, **rl: Any) -> Any:
    """``aac rl`` on a recipe file; the result has exit_code and output."""
    given = {"critic": SHARED, "ppo": {"epochs": 2}, "iterations": 2, "evaluate_every": 2} | rl
    recipe = lab.recipe(rl=given).model_dump(mode="json", exclude_unset=True)
    file = out.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(recipe))
    folders = ["--sft", str(lab.sft), "--output-dir", str(out)]
    return CliRunner().invoke(app, ["rl", str(file), *folders, *words])


def values_of(folder: Path, episodes: Any) -> list[float]:
    """By the folder's actor and head, each prompt in a forward of its own."""
    actor = AutoModelForCausalLM.from_pretrained(folder)
    head = load_head(folder / "critic")
    found = []
    with torch.no_grad():
        for turn in (t for e in episodes for t in e.turns):
            ids = torch.tensor([turn.prompt_ids])
            states = actor(ids, output_hidden_states=True).hidden_states[-1][0, -1:]
            found.append(float(head(states)))
    return found


def test_a_run_trains_saves_and_reloads(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stages.rl.session import Session

    real, last = Session.save, []

    def noted(self: Any) -> Any:
        episodes = self.pool.episodes
        self.baseline.critic.forget()
        values = self.baseline.critic.values(episodes)
        last.append((episodes, torch.cat([v[:-1] for v in values]).tolist()))
        return real(self)

    monkeypatch.setattr(Session, "save", noted)
    result = aac_rl(lab, tmp_path / "rl")
    assert result.exit_code == 0, result.output
    rows = rows_of(tmp_path / "rl")
    assert rows[0]["critic/warm"] == 0 and "actor/updates" not in rows[0]
    assert rows[-1]["critic/warm"] == 1 and rows[-1]["critic/loss"] >= 0
    assert {"critic/explained_variance", "critic/learning_rate"} <= set(rows[-1])
    assert not torch.equal(weights(tmp_path / "rl"), weights(lab.sft))
    assert bool((load_file(tmp_path / "rl/critic/model.safetensors")["linear.weight"] != 0).any())
    names = set(load_file(tmp_path / "rl/model.safetensors"))
    assert names == set(load_file(lab.sft / "model.safetensors"))  # a plain actor: no head in it
    ((episodes, values),) = last
    assert values_of(tmp_path / "rl", episodes) == pytest.approx(values, abs=1e-5)
    turn = read_trajectories(tmp_path / "rl/trajectories/00001.jsonl")[0].turns[0]
    assert turn.info["value"] != 0


@pytest.mark.parametrize("option", [{"vf_coef": 5.0}, {"detach": True}, {"learning_rate": 1e-1}])
def test_every_option_moves_the_actor(
    option: dict[str, Any], lab: Lab, plain: torch.Tensor, tmp_path: Path
) -> None:
    assert aac_rl(lab, tmp_path / "rl", critic=SHARED | option).exit_code == 0
    assert not torch.equal(weights(tmp_path / "rl"), plain)


@pytest.fixture(scope="module")
def plain(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    out = tmp_path_factory.mktemp("plain") / "rl"
    assert aac_rl(lab, out).exit_code == 0
    return weights(out)


@pytest.mark.parametrize("killed_at", [1, pytest.param(3, marks=pytest.mark.full)])
def test_an_interrupted_run_resumes_to_the_same_weights(
    killed_at: int, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed within the warm-up and after it; head, trunk and figures come out the same."""
    from stages.rl.player import Player

    warm_up = {"max_iterations": 2, "min_explained_variance": 1.0}
    options = {
        "iterations": killed_at + 2,
        "checkpoint_every": 1,
        "evaluate_every": 1,
        "keep": "best",
        "critic": SHARED | {"warm_up": warm_up},
    }
    assert aac_rl(lab, tmp_path / "whole", **options).exit_code == 0
    real = Player.collect

    def killed(self: Any, iteration: int, version: int) -> Any:
        if iteration == killed_at:
            raise KeyboardInterrupt
        return real(self, iteration, version)

    with monkeypatch.context() as patch:
        patch.setattr(Player, "collect", killed)
        assert aac_rl(lab, tmp_path / "cut", **options).exit_code == 130
    assert aac_rl(lab, tmp_path / "cut", **options).exit_code == 0
    assert torch.equal(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    heads = [load_file(tmp_path / name / "critic/model.safetensors") for name in ("cut", "whole")]
    assert all(torch.equal(heads[0][k], heads[1][k]) for k in heads[0])
    timeless = [
        [{k: v for k, v in row.items() if k[:5] != "time/"} for row in rows_of(tmp_path / name)]
        for name in ("cut", "whole")
    ]
    assert json.dumps(timeless[0]) == json.dumps(timeless[1])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rl.critic.view=full"], "set rl.critic.view: symmetric"),
        (["rl.critic.view.limits=true"], "the actor's own state"),
        (["rl.critic.kind=none"], "set rl.critic.kind: v"),
        (["rl.critic.trunk=light", "rl.critic.vf_coef=0.5"], "shared with the actor"),
        (["rl.critic.trunk=light", "rl.critic.detach=true"], "shared with the actor"),
        (["rl.critic.vf_coef=-1"], "rl.critic.vf_coef"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    words: list[str], said: str, lab: Lab, tmp_path: Path
) -> None:
    flags = [flag for word in words for flag in ("--set", word)]
    spelled = {part: part == "state" for part in ("history", "state", "checklist", "limits")}
    critic = SHARED | {"view": spelled | {"privileged": False}}
    result = aac_rl(lab, tmp_path / "rl", *flags, critic=critic)
    assert result.exit_code == 2
    text = " ".join(result.output.split())
    assert said in text and text.count(". ") == 0
    assert not (tmp_path / "rl").exists()
