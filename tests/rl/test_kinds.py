"""Every kind of critic through the real ``aac rl``: it learns, is saved, and resumes exactly.

The actor plays the real environment; what the critic reads of its episodes is rewritten, so that
the first action's words decide the outcome, or, permuted, nothing does.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from aacli.app import app
from stages.common.run_folder import RunRequest
from stages.interaction.trajectory import Action, Trajectory
from stages.recipe.models import Recipe
from stages.reward.run import run as train_reward
from stages.rl import rewarding
from stages.rl.critic.advantage import load_advantage
from stages.rl.critic.discriminator import BONUS, held_out
from stages.rl.critic.trunks import load_critic
from stages.rl.critic.views import action_views, critic_views
from stages.rl.player import Player
from stages.rl.pool import read_trajectories
from stages.rl.session import Session
from stages.sft.run import run as train_sft
from tests.rl.test_run import BASE, RL, merged, rows_of, weights
from tests.tiny_models import tiny_bert, tiny_llama, tiny_qwen3

LOSS = {
    "v": "critic/loss",
    "q": "critic/q_loss",
    "discriminative": "critic/discriminator_loss",
    "advantage": "critic/loss",
}
NAMES = [f"task {n}" for n in range(100)]
TASKS = [next(n for n in NAMES if held_out(n) == held) for held in (False, True)]
EPISODES = 4 * len(TASKS)
VIEW = {"state": False, "checklist": False, "limits": False, "max_tokens": 96}


def rewritten(episodes: list[Trajectory], *, permuted: bool) -> list[Trajectory]:
    """Four episodes a task; half of them "look it up" first, half "guess"; ±1 at the end."""
    done = []
    for number, episode in enumerate(episodes):
        good = number % 2 == 0
        won = number % 4 < 2 if permuted else good
        words = ["look it up" if good else "guess", "then answer"]
        turns = [
            replace(
                turn,
                messages=({"role": "user", "content": "go"},),
                action=Action(word),
                observation=({"role": "tool", "content": "seen"},),
                rewards={"success": 1.0 if won else -1.0} if t == 1 else {},
                privileged={"answer": "42"},
                checklist=(),
            )
            for t, (turn, word) in enumerate(zip(episode.turns, words, strict=False))
        ]
        told = {"task_id": TASKS[number // 4], "kind": "k", "goal": "find it"}
        facts = {"initial_privileged": {"answer": "42"}, "initial_checklist": ()}
        done.append(replace(episode.with_turns(turns), **told, **facts, success=won))
    return done


VARIANTS: dict[str, dict[str, Any]] = {
    "discriminative, ensemble": {"loss": "hl_gauss", "ensemble": 2},
}
"""Kinds with options besides: the classifier has one plain head whatever V's are."""
# Without pretraining, texts hardly differ in features unless weights are wide.
READER = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}


@dataclass
class Ran:
    """One finished run: its folder, its rows, and what lived in it."""

    folder: Path
    rows: list[dict[str, Any]]
    session: Session
    before: dict[str, Any]
    """The baseline's state before training."""

    @property
    def losses(self) -> list[float]:
        """Of the network that the kind is about."""
        return [row[LOSS[self.session.recipe.rl.critic.kind]] for row in self.rows]


class Bench:
    """A tiny actor after SFT, trunks to choose from, and the command line."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.actor = tiny_llama(root / "actor")
        self.reader, self.pairs = tiny_llama(root / "reader", **READER), root / "pairs.jsonl"
        asked = [{"prompt": f"how many? {n}", "chosen": "3", "rejected": "no"} for n in range(8)]
        self.pairs.write_text("".join(json.dumps(row) + "\n" for row in asked))
        self.trunks = {
            "light": "light",
            "actor": "actor",
            "encoder": str(tiny_bert(root / "bert", **READER)),
            "model": str(tiny_qwen3(root / "qwen3")),
            "scratch": "scratch",
            "reward-model": "reward-model",
        }
        self.sft, self.reward = root / "sft", root / "reward"
        recipe = Recipe.model_validate(self._recipe({}))
        train_sft(recipe, RunRequest(self.sft))
        train_reward(recipe, RunRequest(self.reward, parents={"sft": self.sft}))

    def run(self, out: Path, *words: str, **rl: Any) -> Any:
        """``aac rl`` on a recipe; the command's result."""
        out.parent.mkdir(parents=True, exist_ok=True)
        file = out.parent / f"{out.name}.yaml"
        file.write_text(yaml.safe_dump(self._recipe(rl)))
        reward = ["--no-reward"]
        if (
            rl.get("critic", {}).get("trunk") == "reward-model"
        ):  # its trunk is asked for, not its scores
            reward = ["--reward", str(self.reward), "--set", "rl.rewards.reward_model=1e-9"]
        options = ["--sft", str(self.sft), "--output-dir", str(out), *reward, *words]
        return CliRunner().invoke(app, ["rl", str(file), *options])

    def critic(self, kind: str, trunk: str, **options: Any) -> dict[str, Any]:
        """A critic's section that learns within a few steps."""
        options = VARIANTS.get(kind, {}) | options
        kind, _, _ = kind.partition(", ")
        plan: dict[str, Any] = {"learning_rate": 2e-3, "steps": 8, "batch_size": 6}
        if kind in ("v", "q"):
            plan = {"learning_rate": 1e-2, "steps": 15, "batch_size": 16}
        elif trunk in ("light", "encoder"):
            plan["learning_rate"] = 5e-3
        if trunk in ("scratch", "reward-model"):
            plan |= {"learning_rate": 3e-3, "hidden_size": 32, "layers": 2}
        return plan | {"view": VIEW, "kind": kind, "trunk": self.trunks[trunk]} | options

    def _recipe(self, rl: dict[str, Any]) -> dict[str, Any]:
        small = {"episodes": EPISODES, "pool": {"max_episodes": EPISODES}, "iterations": 2}
        own = {
            "model": {"actor": str(self.actor)},
            "environment": {"name": "sql", "max_turns": 2},
            "reward": {"base": str(self.reader), "data": str(self.pairs)},
            "rl": merged(merged(RL, small), rl),
        }
        return merged(BASE, own)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """The rewritten world; ``permuted`` is read at every iteration."""
    settings = {"permuted": False}
    real = Player.collect

    def collect(self: Any, iteration: int, version: int) -> list[Trajectory]:
        return rewritten(real(self, iteration, version), **settings)

    monkeypatch.setattr(Player, "collect", collect)
    return settings


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Session, Any]]:
    """Every session with its baseline's state before it trains."""
    seen: list[tuple[Session, Any]] = []
    real = Session.train

    def train(self: Session) -> None:
        seen.append((self, copy.deepcopy(self.baseline.state_dict())))
        real(self)

    monkeypatch.setattr(Session, "train", train)
    return seen


def ran(bench: Bench, sessions: list[Any], out: Path, critic: dict[str, Any], **rl: Any) -> Ran:
    result = bench.run(out, critic=critic, **rl)
    assert result.exit_code == 0, result.output
    return Ran(out, rows_of(out), *sessions[-1])


def tensors(state: Any) -> list[torch.Tensor]:
    """All networks' weights of a baseline's state, optimizers left out."""
    if isinstance(state, torch.Tensor):
        return [state]
    if not isinstance(state, dict):
        return []
    return [t for key, part in state.items() if key != "optimizer" for t in tensors(part)]


def networks(run: Ran) -> list[tuple[Any, Any]]:
    """(the network that lived in the run, the one read back from disk)."""
    baseline: Any = run.session.baseline
    folder, kind = run.folder / "critic", run.session.recipe.rl.critic.kind
    if kind == "advantage":
        return [(baseline.critic.network, load_advantage(folder)[0])]
    if kind == "v":
        return [(baseline.critic.network, load_critic(folder)[0])]
    pairs = [(baseline.values.critic.network, load_critic(folder)[0])]
    if kind == "q":
        return [*pairs, (baseline.q.network, load_critic(folder / "q")[0])]
    judge = baseline.discriminator.network
    return [*pairs, (judge, load_critic(folder / "discriminator")[0])]


def output(network: Any, episode: Trajectory, *, actions: bool) -> torch.Tensor:
    views = action_views(episode) if actions else critic_views(episode)
    with torch.no_grad():
        if not hasattr(network, "reference"):
            values: torch.Tensor = network([network.prepare(views)])
            return values
        rows = network.rows(critic_views(episode)[:-1], [t.action.text for t in episode.turns])
        ratio: torch.Tensor = network.logprobs(rows) - network.reference_logprobs(rows)
        return ratio


CELLS = [
    ("v", "light"),
    ("v", "encoder"),
    ("q", "light"),
    ("q", "encoder"),
    ("q", "scratch"),
    ("q", "reward-model"),
    ("discriminative", "light"),
    ("discriminative", "encoder"),
    ("discriminative", "scratch"),
    ("discriminative", "reward-model"),
    ("discriminative, ensemble", "light"),
    ("advantage", "actor"),
    ("advantage", "model"),
]
DIAGONAL = [("q", "light"), ("discriminative", "encoder"), ("advantage", "actor")]
MATRIX = [pytest.param(*c, marks=() if c in DIAGONAL else pytest.mark.full) for c in CELLS]


@pytest.mark.parametrize(("kind", "trunk"), MATRIX)
def test_it_learns_and_comes_back_from_disk(
    kind: str, trunk: str, bench: Bench, world: Any, sessions: Any, tmp_path: Path
) -> None:
    run = ran(bench, sessions, tmp_path / "rl", bench.critic(kind, trunk), iterations=4)
    assert run.losses[-1] < 0.8 * run.losses[0]
    after = tensors(run.session.baseline.state_dict())
    assert not all(map(torch.equal, tensors(run.before), after))
    assert not torch.equal(weights(tmp_path / "rl"), weights(bench.sft))
    assert (tmp_path / "rl/critic/critic.json").is_file()
    assert list((tmp_path / "rl/critic").rglob("*.safetensors"))
    episode = read_trajectories(tmp_path / "rl/trajectories/00003.jsonl")[0]
    for number, (lived, read) in enumerate(networks(run)):
        now, again = (output(n, episode, actions=number == 1) for n in (lived, read))
        torch.testing.assert_close(now, again, rtol=0, atol=0)
        assert float(now.abs().max()) > 0
    everything = [value for row in run.rows for value in row.values()]
    assert all(isinstance(value, (int, float)) for value in everything)
    if kind == "advantage":
        assert "critic/explained_variance" not in run.rows[-1]
    if kind[0] == "q":
        assert run.rows[-1]["critic/q_explained_variance"] > 0.2


@pytest.mark.full
@pytest.mark.parametrize(("kind", "trunk"), CELLS)
def test_permuted_outcomes_remove_the_fall(
    kind: str,
    trunk: str,
    bench: Bench,
    world: Any,
    sessions: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world["permuted"] = True
    monkeypatch.setattr(rewarding, "read_rows", lambda _: [])  # preferences are not permuted
    run = ran(bench, sessions, tmp_path / "rl", bench.critic(kind, trunk), iterations=4)
    assert run.losses[-1] > 0.9 * run.losses[0]


@pytest.mark.parametrize(
    ("kind", "trunk"), [("q", "light"), ("discriminative", "light"), ("advantage", "actor")]
)
def test_an_interrupted_run_resumes_to_the_same_numbers(
    kind: str,
    trunk: str,
    bench: Bench,
    world: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warm_up = {"max_iterations": 1}
    critic = bench.critic(kind, trunk, steps=2, batch_size=4, warm_up=warm_up)
    options = {"critic": critic, "iterations": 3, "checkpoint_every": 1}
    assert bench.run(tmp_path / "whole", **options).exit_code == 0
    real = Player.collect

    def killed(self: Any, iteration: int, version: int) -> Any:
        if iteration == 2:
            raise KeyboardInterrupt
        return real(self, iteration, version)

    with monkeypatch.context() as patch:
        patch.setattr(Player, "collect", killed)
        assert bench.run(tmp_path / "cut", **options).exit_code == 130
    assert bench.run(tmp_path / "cut", **options).exit_code == 0
    files = sorted((tmp_path / "whole").rglob("*.safetensors"))
    assert len(files) >= 3
    for file in files:
        other = tmp_path / "cut" / file.relative_to(tmp_path / "whole")
        assert file.read_bytes() == other.read_bytes(), file
    cut, whole = rows_of(tmp_path / "cut"), rows_of(tmp_path / "whole")
    for mine, theirs in zip(cut, whole, strict=True):
        timeless = {k: v for k, v in theirs.items() if k[:5] != "time/"}
        assert {k: v for k, v in mine.items() if k[:5] != "time/"} == pytest.approx(
            timeless, rel=0, abs=0, nan_ok=True
        )


# ---- options


def bonus_of(run: Ran) -> float:
    return float(run.rows[-1]["critic/bonus"])


def test_weight_and_cap_of_the_bonus(
    bench: Bench, world: Any, sessions: Any, tmp_path: Path
) -> None:
    runs = {}
    for name, options in {
        "low": {"weight": 1e-4},
        "capped": {"weight": 1e4, "cap": 0.2},
        "higher cap": {"weight": 1e4, "cap": 0.4},
    }.items():
        critic = bench.critic("discriminative", "light", discriminator=options)
        runs[name] = ran(bench, sessions, tmp_path / name, critic)
        assert runs[name].rows[0]["critic/bonus"] == 0.0
    # two turns share the cap
    assert bonus_of(runs["capped"]) == pytest.approx(0.1)
    assert bonus_of(runs["higher cap"]) == pytest.approx(0.2)
    assert 0.0 < bonus_of(runs["low"]) < 0.01
    assert not torch.equal(weights(tmp_path / "low"), weights(tmp_path / "capped"))
    assert runs["low"].rows[-1]["critic/auc"] >= 0.5
    for episode in read_trajectories(tmp_path / "capped/trajectories/00001.jsonl"):
        paid = [turn.info[BONUS] for turn in episode.turns]
        assert sum(paid) == pytest.approx(0.0, abs=1e-6)
        assert sum(map(abs, paid)) == pytest.approx(0.2)


def critic_weights(folder: Path) -> bytes:
    return b"".join(f.read_bytes() for f in sorted((folder / "critic").rglob("*.safetensors")))


@pytest.mark.parametrize(
    ("kind", "trunk", "options"),
    [
        ("discriminative", "light", {"discriminator": {"privileged": False}}),
        ("q", "light", {"ensemble": 2}),
        ("advantage", "actor", {"length_normalised": False}),
        ("advantage", "actor", {"view": VIEW | {"privileged": False}}),
    ],
)
def test_an_option_changes_what_is_learnt(
    kind: str, trunk: str, options: Any, bench: Bench, world: Any, tmp_path: Path
) -> None:
    for name, more in {"plain": {}, "other": options}.items():
        critic = bench.critic(kind, trunk, steps=2, **more)
        assert bench.run(tmp_path / name, critic=critic, iterations=1).exit_code == 0
    assert critic_weights(tmp_path / "plain") != critic_weights(tmp_path / "other")


def test_each_task_is_played_several_times(bench: Bench, tmp_path: Path) -> None:
    out = tmp_path / "rl"
    options = {"critic": {"kind": "none"}, "iterations": 1, "episodes": 6}
    done = bench.run(out, episodes_per_task=3, **options)
    assert done.exit_code == 0, done.output
    episodes = read_trajectories(out / "trajectories/00000.jsonl")
    tasks = [e.task_id for e in episodes]
    assert tasks[:3] == tasks[:1] * 3 and tasks[3:] == tasks[3:4] * 3 and tasks[0] != tasks[3]
    assert len({json.dumps(e.turns[0].action_ids) for e in episodes[:3]}) > 1  # not one episode
    bad = bench.run(tmp_path / "bad", episodes_per_task=4, **options)
    assert bad.exit_code == 2
    assert "rl.episodes_per_task" in bad.stderr and "divides rl.episodes (6)" in bad.stderr


@pytest.mark.parametrize(
    ("critic", "words"),
    [
        ({"kind": "advantage", "trunk": "light"}, ("rl.critic.trunk", "light", "actor")),
        ({"kind": "advantage", "trunk": "encoder"}, ("rl.critic.trunk", "kind advantage takes")),
        ({"kind": "discriminative", "discriminator": {"cap": 1.5}}, ("discriminator.cap",)),
    ],
)
def test_what_cannot_work_is_refused(
    critic: dict[str, Any], words: tuple[str, ...], bench: Bench, tmp_path: Path
) -> None:
    if "trunk" in critic:
        critic = critic | {"trunk": bench.trunks[critic["trunk"]]}
    result = bench.run(tmp_path / "rl", critic=critic)
    assert result.exit_code == 2 and not (tmp_path / "rl").exists()
    text = " ".join(result.stderr.split())
    assert all(word in text for word in words), text


def test_kind_advantage_starts_from_the_actor(bench: Bench, world: Any, tmp_path: Path) -> None:
    out = tmp_path / "rl"
    critic = {"kind": "advantage", "view": VIEW, "steps": 1}
    assert bench.run(out, critic=critic, iterations=1).exit_code == 0
    assert torch.equal(weights(out / "critic/reference"), weights(bench.sft))
    assert not torch.equal(weights(out / "critic/model"), weights(bench.sft))
