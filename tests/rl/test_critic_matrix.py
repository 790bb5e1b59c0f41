"""Every kind of critic on every trunk learns in a real run, and only from the targets it is given.

A run here is one long warm-up: the actor stands still, so two runs of one recipe see the same
episodes, and the run's own pool is what the critic is measured on. One of the two is given its
targets in random order; a critic that fits anything but the targets falls into that trap.
"""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from aacli.app import app
from stages.common.errors import UsageError
from stages.interaction.trajectory import Trajectory
from stages.rl import rewarding, session
from stages.rl.advantages import explained_variance
from stages.rl.baselines import Cadence, LearnedBaseline
from stages.rl.critic import assembly
from stages.rl.critic.encoder import EncoderTrunk
from stages.rl.critic.ensemble import Ensemble
from stages.rl.critic.heads import HistogramHead, ScalarHead
from stages.rl.critic.trunks import build_network, fitting_weights, load_critic, save_critic
from stages.rl.pool import ExperiencePool, read_trajectories
from tests.rl.test_run import Lab, merged, rows_of
from tests.tiny_models import tiny_bert, tiny_llama

TRUNKS: dict[str, dict[str, Any]] = {
    "light": {"trunk": "light", "hidden_size": 16, "learning_rate": 1e-2},
    "scratch": {"trunk": "scratch", "hidden_size": 32, "layers": 2, "learning_rate": 3e-3},
    "encoder": {"trunk": "a folder, filled in", "learning_rate": 1e-2},
    # It fits fast. Permuted within a batch of B, targets still tell 1/B of an episode's own return,
    # of which it would learn up to 2/B of the variance: so B is larger.
    "frozen": {
        "trunk": "a folder",
        "frozen": True,
        "hidden_size": 16,
        "learning_rate": 1e-2,
        "batch_size": 24,
    },
    "reward-model": {"trunk": "reward-model", "learning_rate": 3e-3},
}
"""A trunk that joins: its options here."""
KINDS: dict[str, dict[str, Any]] = {
    "v, mse": {"loss": "mse"},
    "v, huber": {"loss": "huber"},
    "v, hl_gauss": {"loss": "hl_gauss", "steps": 30},
    "v, mse, ensemble": {"loss": "mse", "ensemble": 2},
}
"""A kind that joins: its options here."""
MATRIX = [(trunk, kind) for trunk in TRUNKS for kind in KINDS]
DIAGONAL = [
    ("light", "v, hl_gauss"),
    ("scratch", "v, mse"),
    ("encoder", "v, mse, ensemble"),
    ("reward-model", "v, huber"),
    ("frozen", "v, hl_gauss"),
]
CASES = [
    pytest.param(*case, marks=[] if case in DIAGONAL else [pytest.mark.full]) for case in MATRIX
]
WARMING = {
    "iterations": 2,
    "episodes": 8,
    "evaluation_episodes": 1,
    "rewards": {"reward_model": 2.0},
    "critic": {
        "steps": 20,
        "batch_size": 6,
        "view": {"privileged": False, "state": False, "max_tokens": 96},
        # little text: what counts here is that it is read and learned from
        "warm_up": {"max_iterations": 2, "min_explained_variance": 2.0},
    },
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"), tiny_llama)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("bert"))


class Watched:
    """A real run, with a hand on its critic: before the first step and after the last."""

    def __init__(self, lab: Lab, out: Path, critic: dict[str, Any], **rl: Any) -> None:
        self.out = out
        with pytest.MonkeyPatch.context() as patch:
            real = session.build_baseline

            def watched(*parts: Any, **more: Any) -> Any:
                built = real(*parts, **more)
                assert isinstance(built, LearnedBaseline)
                self.baseline, self.before = built, copy.deepcopy(built.critic.network)
                return built

            patch.setattr(session, "build_baseline", watched)
            self.rows = lab.rl(out, **merged(merged(WARMING, {"critic": critic}), rl))
        self.learner = self.baseline.critic

    @property
    def pool(self) -> list[Trajectory]:
        files = sorted((self.out / "pool").glob("*.jsonl"))
        return [episode for file in files for episode in read_trajectories(file)]

    def figures(self, network: Any) -> tuple[float, float]:
        """The network's own loss on the pool, and its explained variance there."""
        numbers = [self.learner._numbers(e) for e in self.pool]
        with torch.no_grad():
            output, values = network.outputs(numbers), network(numbers)
            now = self.learner.padded(
                self.pool, values.split([len(e.turns) + 1 for e in self.pool])
            )
            _, returns = now.gae(discount=1.0, gae_lambda=1.0)
            acted = torch.cat([torch.arange(len(e.turns) + 1) < len(e.turns) for e in self.pool])
            loss = network.loss(output[acted], returns[now.mask]).mean()
        return float(loss), explained_variance(now.values, returns, now.mask)


def options(trunk: str, kind: str, bert: Path) -> dict[str, Any]:
    chosen = TRUNKS[trunk] | KINDS[kind]
    return chosen | ({"trunk": str(bert)} if trunk in ("encoder", "frozen") else {})


@pytest.mark.parametrize(("trunk", "kind"), CASES)
def test_every_kind_learns_on_every_trunk(
    trunk: str, kind: str, lab: Lab, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    critic = options(trunk, kind, bert)
    done = Watched(lab, tmp_path / "true", critic)
    moved = done.learner.network.state_dict()
    assert any(not torch.equal(moved[k], v) for k, v in done.before.state_dict().items())

    loss, explained = done.figures(done.learner.network)
    assert loss <= 0.8 * done.figures(done.before)[0]
    assert explained >= 0.2  # 20 % below the best constant, which any mean would reach

    saved, _ = load_critic(tmp_path / "true" / "critic")
    numbers = [done.learner._numbers(e) for e in done.pool]
    with torch.no_grad():
        torch.testing.assert_close(saved(numbers), done.learner.network(numbers))
    assert not list((tmp_path / "true" / "critic").rglob("*.bin"))

    for head in (ScalarHead, HistogramHead):
        monkeypatch.setattr(head, "loss", shuffling(head.loss))
    shuffled = Watched(lab, tmp_path / "shuffled", critic)
    monkeypatch.undo()
    assert [e.turns for e in shuffled.pool] == [e.turns for e in done.pool]
    assert shuffled.figures(shuffled.learner.network)[1] < 0.1


def shuffling(real: Any) -> Any:
    def loss(self: Any, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return real(self, output, targets[torch.randperm(len(targets))])

    return loss


def test_reward_model_trunk_is_the_reward_models_before_the_first_step(
    lab: Lab, tmp_path: Path
) -> None:
    done = Watched(lab, tmp_path / "rl", TRUNKS["reward-model"] | {"steps": 1}, iterations=1)
    assert isinstance(done.before.trunk, EncoderTrunk)
    file = load_file(lab.reward / "model.safetensors")
    trunk = {
        f"model.{name}": weight for name, weight in done.before.trunk.encoder.state_dict().items()
    }
    assert set(trunk) == {name for name in file if name.startswith("model.")}
    for name, weight in trunk.items():
        torch.testing.assert_close(weight, file[name].float(), rtol=0, atol=0)
    moved = done.learner.network.trunk.encoder.state_dict()
    assert any(
        not torch.equal(moved[k], v) for k, v in done.before.trunk.encoder.state_dict().items()
    )
    scorer = rewarding.build_rewarding(lab.recipe(rl=WARMING).rl, lab.reward).scorer
    assert scorer is not None  # what scores stays what it was
    torch.testing.assert_close(scorer.model.model.norm.weight, file["model.norm.weight"].float())


def test_a_reward_model_trunk_needs_a_reward_model(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"trunk is reward-model but this run has no") as caught:
        lab.rl(tmp_path / "rl", critic={"trunk": "reward-model"})
    assert "\n" not in str(caught.value) and not (tmp_path / "rl").exists()


def test_actor_and_critic_of_other_families_optimizers_rates_and_steps(
    lab: Lab, bert: Path, tmp_path: Path
) -> None:
    own = {"trunk": str(bert), "optimizer": "sgd", "learning_rate": 0.05, "steps": 3}
    own |= {"view": {"privileged": False, "max_tokens": 200}, "warm_up": {"max_iterations": 0}}
    done = Watched(lab, tmp_path / "rl", own, iterations=1)
    row, manifest = done.rows[0], json.loads((tmp_path / "rl/manifest.json").read_text())
    assert (row["critic/steps"], row["critic/learning_rate"]) == (3, 0.05)
    assert (row["actor/updates"], row["actor/learning_rate"]) == (4, 1e-3)
    assert manifest["recipe"]["rl"]["critic"]["optimizer"] == "sgd"
    assert type(done.learner.optimizer) is torch.optim.SGD
    actor = json.loads((tmp_path / "rl/config.json").read_text())
    critic = json.loads((tmp_path / "rl/critic/encoder/config.json").read_text())
    assert (actor["model_type"], critic["model_type"]) == ("llama", "bert")
    assert actor["vocab_size"] != critic["vocab_size"]
    assert (tmp_path / "rl/critic/encoder/tokenizer.json").is_file()


@pytest.mark.parametrize("name", ["adam", "sgd", "rmsprop"])
def test_every_optimizer_takes_the_critic_elsewhere(name: str, lab: Lab, tmp_path: Path) -> None:
    quick = {"hidden_size": 8, "steps": 2}
    plain = Watched(lab, tmp_path / "adamw", quick, iterations=1)
    other = Watched(lab, tmp_path / name, quick | {"optimizer": name}, iterations=1)
    assert type(other.learner.optimizer).__name__.lower() == name
    start, adamw, there = (
        n.state_dict() for n in (plain.before, plain.learner.network, other.learner.network)
    )
    assert all(
        torch.equal(a, b)
        for a, b in zip(start.values(), other.before.state_dict().values(), strict=True)
    )
    assert any(not torch.equal(there[k], start[k]) for k in start)
    assert any(not torch.equal(there[k], adamw[k]) for k in start)


def test_an_ensemble_disagrees_and_says_so(lab: Lab, tmp_path: Path) -> None:
    done = Watched(lab, tmp_path / "rl", {"ensemble": 3, "learning_rate": 1e-2})
    assert [row["critic/disagreement"] > 0 for row in done.rows] == [False, True]
    assert isinstance(done.learner.network, Ensemble)


def test_returns_outside_the_range_are_counted_and_said_once(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = {"loss": "hl_gauss", "value_range": [-0.2, 0.2], "bins": 5, "hidden_size": 8}
    done = Watched(lab, tmp_path / "rl", narrow)
    assert [row["critic/clipped_targets"] > 0.3 for row in done.rows] == [True, True]
    assert capsys.readouterr().err.count("outside rl.critic.value_range") == 1
    wide = Watched(lab, tmp_path / "wide", {"loss": "hl_gauss", "hidden_size": 8}, iterations=1)
    assert wide.rows[0]["critic/clipped_targets"] == 0
    assert "value_range" not in capsys.readouterr().err


# ---- another run's critic to start from


class Command:
    """``aac rl`` by the words a person types, with the lab's parents."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder

    def __call__(self, out: str, critic: dict[str, Any], *words: Any) -> Any:
        over = merged(WARMING, {"critic": {"hidden_size": 16, "learning_rate": 1e-2} | critic})
        file = self.folder / f"{out}.yaml"
        file.write_text(json.dumps(self.lab.recipe(rl=over).model_dump(mode="json")))
        parents = ["--sft", self.lab.sft, "--reward", self.lab.reward]
        place = ["--output-dir", self.folder / out]
        typed = ["rl", file, *parents, *place, *words]
        return CliRunner().invoke(app, [str(word) for word in typed])


@pytest.fixture(scope="module")
def earlier(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The critic of a run that did nothing but warm up."""
    out = tmp_path_factory.mktemp("earlier") / "rl"
    Watched(lab, out, {"hidden_size": 16, "learning_rate": 1e-2})
    return out / "critic"


def test_a_warm_start_takes_weights_and_may_pass_the_gate_at_once(
    lab: Lab, earlier: Path, tmp_path: Path
) -> None:
    command = Command(lab, tmp_path)
    gate = {"warm_up": {"max_iterations": 2, "min_explained_variance": 0.0}}
    assert command("fresh", gate, "--set", "rl.iterations=1").exit_code == 0
    started = command("warm", gate, "--set", "rl.iterations=1", "--warm-start", earlier)
    assert started.exit_code == 0, started.output
    (fresh,), (warm,) = rows_of(tmp_path / "fresh"), rows_of(tmp_path / "warm")
    assert (fresh["critic/warm"], warm["critic/warm"]) == (0, 1)
    assert warm["critic/explained_variance"] > 0.2
    assert "actor/updates" in warm and "actor/updates" not in fresh
    manifest = json.loads((tmp_path / "warm/manifest.json").read_text())
    assert f"critic {earlier}" in manifest["data"]


def test_a_warm_start_is_weights_only(lab: Lab, earlier: Path, tmp_path: Path) -> None:
    recipe = lab.recipe(rl=merged(WARMING, {"critic": {"hidden_size": 16}}))
    rewards = rewarding.build_rewarding(recipe.rl, lab.reward)
    pool = ExperiencePool(tmp_path / "pool", max_episodes=4)
    baseline = assembly.build_baseline(
        recipe, rewards, pool, sft=lab.sft, turn_log_ratios=lambda _: []
    )
    assembly.warm_start(recipe, baseline, earlier)
    saved = load_critic(earlier)[0].state_dict()
    assert isinstance(baseline, LearnedBaseline)
    for network in (baseline.critic.network, baseline.critic.target):
        assert all(torch.equal(v, saved[k]) for k, v in network.state_dict().items())
    assert not baseline.critic.optimizer.state


@pytest.mark.parametrize(
    ("critic", "named"),
    [
        ({"hidden_size": 8}, "rl.critic.hidden_size = 16, this recipe 8"),
        ({"loss": "huber"}, "rl.critic.loss = mse, this recipe huber"),
        ({"trunk": "scratch", "layers": 1}, "rl.critic.trunk = light, this recipe scratch"),
        ({"ensemble": 2}, "rl.critic.ensemble = 1, this recipe 2"),
        ({"kind": "none"}, "kind none and trunk light, which cannot take it"),
    ],
)
def test_a_critic_built_otherwise_is_refused(
    critic: dict[str, Any], named: str, lab: Lab, earlier: Path, tmp_path: Path
) -> None:
    result = Command(lab, tmp_path)("rl", critic, "--warm-start", earlier)
    assert result.exit_code == 2 and result.stdout == ""
    assert named in result.stderr and result.stderr.count("\n") == 1
    assert not (tmp_path / "rl").exists()


def test_a_folder_without_a_critic_is_refused(lab: Lab, tmp_path: Path) -> None:
    result = Command(lab, tmp_path)("rl", {}, "--warm-start", lab.sft, "--dry-run")
    assert result.exit_code == 2 and "holds no critic.json" in result.stderr


def test_a_critic_on_another_encoder_is_refused(lab: Lab, bert: Path, tmp_path: Path) -> None:
    critic = lab.recipe(rl={"critic": {"trunk": str(bert)}}).rl.critic
    save_critic(build_network(critic), tmp_path / "critic", critic.model_dump(mode="json"))
    other = critic.model_copy(update={"trunk": str(lab.actor)})
    with pytest.raises(UsageError, match="another encoder"):
        fitting_weights(build_network(other), other, tmp_path / "critic")
    copied = critic.model_copy(update={"trunk": str(shutil.copytree(bert, tmp_path / "moved"))})
    assert fitting_weights(build_network(copied), copied, tmp_path / "critic")


# ---- the gate


class Seer:
    """A critic that says what explained variance it is told to."""

    def __init__(self, *explained: float) -> None:
        self.left = list(explained)

    def surprise(self, episodes: Any) -> float:
        return self.left.pop(0)

    def remarks(self, episodes: Any) -> dict[str, float]:
        return {}

    def warm_start(self, weights: Any) -> None:
        pass


def gate(*explained: float, limit: int = 3, started: bool = False) -> list[bool]:
    """Whether the actor may move, after each look at new episodes."""
    cadence = Cadence(
        seed=0,
        discount=1.0,
        gae_lambda=1.0,
        target="td_lambda",
        max_age=1,
        warm_up_iterations=limit,
        min_explained_variance=0.0,
    )
    seer: Any = Seer(*explained)
    baseline = LearnedBaseline(seer, None, cadence)  # type: ignore[arg-type]
    if started:
        baseline.start_from({})
    return [baseline.listen([])["critic/warm"] == 1 and baseline.ready for _ in explained]


def test_the_gate_opens_when_unseen_episodes_are_explained() -> None:
    assert gate(0.9, 0.1, -1.0) == [False, True, True]  # the first look is at an unfitted critic
    assert gate(0.0, -0.2, 0.3) == [False, False, True]
    assert gate(0.9, started=True) == [True]
    assert gate(-0.9, 0.5, started=True) == [False, True]


def test_the_gate_opens_at_the_limit_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    nan = float("nan")
    assert gate(nan, nan, nan, limit=2) == [False, False, True]
    (line,) = capsys.readouterr().err.splitlines()
    assert "its limit, 2 iterations," in line and "undefined as the returns do not vary" in line
    assert gate(0.0, -0.5, limit=1) == [False, True]
    assert "is -0.50, not above 0" in capsys.readouterr().err
    assert gate(0.0, 0.5, limit=1) == [False, True]
    assert gate(0.0, limit=0) == [True]
    assert capsys.readouterr().err == ""
