"""Offline runs of stage 3 on a real SFT actor: every method and option, resume, going on online."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.common.errors import HandoffError, UsageError
from stages.common.manifest import verify_parent
from stages.common.run_folder import RunRequest
from stages.evaluation.collect import collect_command
from stages.rl.critic.iql import IqlBaseline
from stages.rl.critic.trunks import load_critic
from stages.rl.pool import read_trajectories
from stages.rl.run import run
from tests.rl.test_offline_pool import FLIGHTS
from tests.rl.test_run import Lab, rows_of, weights
from tests.tiny_models import tiny_llama

OFFLINE = {"steps": 2, "beta": 0.05}


class Desk(Lab):
    """The lab with a pool of somebody's episodes, and a shorthand to learn from a pool."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, tiny_llama)
        self.pool = root / "flights.json"
        self.pool.write_text(json.dumps(FLIGHTS))

    def learn(self, out: Path, source: Any = None, *, offline: Any = (), **rl: Any) -> list[Any]:
        """The rows of metrics.jsonl."""
        section = {**OFFLINE, "pool": str(source or self.pool), **dict(offline)}
        critic = {"steps": 6, "learning_rate": 0.02, **rl.pop("critic", {})}
        return self.rl(out, offline=section, critic=critic, **rl)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("desk"))


@pytest.fixture(scope="module")
def plain(desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with nothing changed: IQL on somebody's episodes."""
    out = tmp_path_factory.mktemp("plain") / "rl"
    desk.learn(out, evaluate_every=1)
    return out


def timeless(rows: list[Any]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def test_what_an_offline_run_leaves_behind(desk: Desk, plain: Path) -> None:
    rows = rows_of(plain)
    assert [row["step"] for row in rows] == [1, 2]
    promised = ["critic/loss", "critic/q_loss", "actor/imitation_loss", "actor/kl"]
    promised += ["actor/grad_norm", "advantage/weight", "advantage/effective_size"]
    promised += ["pool/episodes", "evaluation/success", "time/critic_s", "time/actor_s"]
    promised += ["clean/perplexity_ratio"]
    assert not set(promised) - set(rows[-1])
    assert rows[0]["actor/updates"] == 2 and rows[0]["pool/episodes"] == 8
    assert "episode/success" not in rows[0]  # nothing was played
    manifest = verify_parent(plain, "rl")
    assert set(manifest.parents) == {"sft"} and f"pool {desk.pool}" in manifest.data
    assert not torch.equal(weights(plain), weights(desk.sft))
    files = {p.name for p in plain.iterdir()}
    assert {"critic", "pool", "summary.json", "evaluations.jsonl", "README.md"} <= files
    summary = json.loads((plain / "summary.json").read_text())
    assert summary["training_episodes"] == 8 and summary["actor_updates"] == 2
    kept = read_trajectories(plain / "pool/00000.jsonl")
    assert [e.success for e in kept] == [row["reward"] > 0 for row in FLIGHTS]
    assert all(t.action_ids and not t.logprobs for e in kept for t in e.turns)
    for name in ("critic", "critic/q", "critic/twin"):
        load_critic(plain / name)


METHODS = ("awr", "filtered_cloning", "rejection_sampling")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_goes_its_own_way(
    method: str, desk: Desk, plain: Path, tmp_path: Path
) -> None:
    rows = desk.learn(tmp_path / "rl", offline={"method": method})
    found = weights(tmp_path / "rl")
    assert not torch.equal(found, weights(plain)) and not torch.equal(found, weights(desk.sft))
    with_critic = method == "awr"
    assert ("critic/loss" in rows[0]) == ("advantage/weight" in rows[0]) == with_critic
    assert (tmp_path / "rl/critic").exists() == with_critic
    assert not (tmp_path / "rl/critic/q").exists()
    assert f"trained by {method.replace('_', ' ')}" in (tmp_path / "rl/README.md").read_text()


VARIANTS: dict[str, dict[str, Any]] = {
    "expectile": {"offline": {"expectile": 0.99}},
    "beta": {"offline": {"beta": 1.0}},
    "max_weight": {"offline": {"beta": 0.01, "max_weight": 1.0}},
    "steps": {"offline": {"steps": 1}},
    "max_length": {"offline": {"max_length": 64}},
    "one Q": {"critic": {"twin": False}},
    "kind q": {"critic": {"kind": "q", "loss": "hl_gauss"}},
    "KL": {"ppo": {"kl_coef": 5.0}},
    "batch": {"ppo": {"minibatch_episodes": 8}},
    "critic first": {"critic": {"warm_up": {"max_iterations": 1}}},
    "periodic copies": {"critic": {"target_update": "periodic", "target_period": 1}},
    "prioritised": {"pool": {"sampling": "prioritised"}},
    "temperature": {"actor": {"temperature": 2.0}},
    "reward model": {"rewards": {"reward_model": 2.0}},
}
SHORT = ("expectile", "one Q", "critic first")


@pytest.mark.parametrize(
    "name", [n if n in SHORT else pytest.param(n, marks=pytest.mark.full) for n in VARIANTS]
)
def test_every_option_moves_the_actor(name: str, desk: Desk, plain: Path, tmp_path: Path) -> None:
    rows = desk.learn(tmp_path / "rl", **VARIANTS[name])
    assert not torch.equal(weights(tmp_path / "rl"), weights(plain))
    if name == "one Q":
        assert not (tmp_path / "rl/critic/twin").exists()
    if name == "critic first":
        assert "actor/updates" not in rows[0] and rows[1]["actor/updates"] == 2
        assert rows[1]["actor/learning_rate"] == 1e-3  # it has not fallen meanwhile
    if name == "max_weight":
        assert all(row["advantage/weight"] <= 1.0 for row in rows)


def test_no_steps_hand_over_the_sft_actor(desk: Desk, tmp_path: Path) -> None:
    desk.learn(tmp_path / "rl", offline={"steps": 0, "method": "filtered_cloning"})
    assert torch.equal(weights(tmp_path / "rl"), weights(desk.sft))


def test_an_interrupted_run_resumes_to_the_same_weights(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"iterations": 3, "checkpoint_every": 1}
    whole = desk.learn(tmp_path / "whole", **options)
    real = IqlBaseline.learn

    def killed(self: Any, iteration: int, version: int) -> Any:
        if iteration == 2:
            raise KeyboardInterrupt
        return real(self, iteration, version)

    monkeypatch.setattr(IqlBaseline, "learn", killed)
    with pytest.raises(KeyboardInterrupt):
        desk.learn(tmp_path / "cut", **options)
    monkeypatch.undo()
    rows = desk.learn(tmp_path / "cut", **options)
    assert torch.equal(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert timeless(rows) == timeless(whole)


def test_a_pool_that_the_sft_actor_plays_is_that_of_aac_collect(desk: Desk, tmp_path: Path) -> None:
    """Played first or collected before: the same episodes, and the same actor."""
    options = {"episodes": 4}
    played = desk.learn(tmp_path / "played", "sft", offline=options, episodes_per_task=2)
    collected = tmp_path / "experience.jsonl"
    told = collect_command(
        desk.recipe(rl={"offline": options, "episodes_per_task": 2}),
        "experience",
        actor=str(desk.sft),
        output=collected,
    )
    assert told["rows"] == 4
    ours = read_trajectories(tmp_path / "played/pool/00000.jsonl")
    assert [e.turns for e in read_trajectories(collected)] == [e.turns for e in ours]
    assert [e.task_id for e in ours][::2] == [e.task_id for e in ours][1::2]
    assert all(t.logprobs for e in ours for t in e.turns)
    given = desk.learn(tmp_path / "given", collected)
    assert torch.equal(weights(tmp_path / "given"), weights(tmp_path / "played"))
    assert timeless(given) == timeless(played)


def test_a_run_goes_on_online_from_actor_and_critic(
    desk: Desk, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offline actor plays, the SFT actor stays the reference, V starts from the offline V."""
    from stages.rl.session import Session

    seen: dict[str, Any] = {}
    real = Session.train

    def watched(self: Any) -> None:
        seen["v"] = {k: v.clone() for k, v in self.baseline.critic.network.state_dict().items()}
        seen["fitted"] = self.baseline.fitted
        real(self)

    monkeypatch.setattr(Session, "train", watched)
    recipe = desk.recipe(rl={"iterations": 1, "ppo": {"kl_coef": 0.1}})
    parents = {"sft": desk.sft, "start": plain}
    run(recipe, RunRequest(tmp_path / "rl", parents=parents))
    learnt = load_critic(plain / "critic")[0].state_dict()
    assert seen["fitted"] and all(torch.equal(seen["v"][k], learnt[k]) for k in learnt)
    (row,) = rows_of(tmp_path / "rl")
    assert row["actor/kl"] > 1e-6  # before any update of its own
    assert row["episode/turns"] > 0
    manifest = verify_parent(tmp_path / "rl", "rl")
    assert set(manifest.parents) == {"sft", "start"}
    assert f"critic {plain / 'critic'}" in manifest.data


def test_q_goes_on_too(desk: Desk, tmp_path: Path) -> None:
    critic = {"kind": "q"}
    desk.learn(tmp_path / "offline", critic=critic)
    recipe = desk.recipe(rl={"iterations": 1, "critic": critic})
    run(
        recipe,
        RunRequest(tmp_path / "rl", parents={"sft": desk.sft, "start": tmp_path / "offline"}),
    )
    assert rows_of(tmp_path / "rl")[0]["critic/q_loss"] >= 0


@pytest.mark.full
def test_adapters_go_on_from_adapters(tmp_path: Path) -> None:
    class Adapted(Desk):
        def recipe(self, **over: Any) -> Any:
            model = {"actor": str(self.actor), "lora": {"rank": 2}}
            return super().recipe(**({"model": model} | over))

    desk = Adapted(tmp_path)
    desk.learn(tmp_path / "offline")
    parents = {"sft": desk.sft, "start": tmp_path / "offline"}
    run(desk.recipe(rl={"iterations": 1}), RunRequest(tmp_path / "rl", parents=parents))
    assert rows_of(tmp_path / "rl")[0]["actor/kl"] > 1e-7


def test_a_start_on_another_sft_actor_is_refused(desk: Desk, plain: Path, tmp_path: Path) -> None:
    from stages.sft.run import run as train_sft

    train_sft(desk.recipe(seed=5), RunRequest(tmp_path / "sft"))
    parents = {"sft": tmp_path / "sft", "start": plain}
    with pytest.raises(
        HandoffError, match=r"--start .* was trained from the SFT actor .* not from"
    ):
        run(desk.recipe(), RunRequest(tmp_path / "rl", parents=parents))
    recipe = desk.recipe(rl={"offline": {"pool": "sft"}})
    with pytest.raises(UsageError, match=r"--start .* would play the pool, .* the SFT actor's"):
        run(recipe, RunRequest(tmp_path / "rl", parents={"sft": desk.sft, "start": plain}))
    assert not (tmp_path / "rl").exists()
