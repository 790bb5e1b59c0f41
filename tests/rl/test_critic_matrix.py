"""Every kind of critic on every trunk learns in a real run, and only from the targets it is given.

A run here is one long warm-up: the actor stands still, so two runs of one recipe see the same
episodes, and the run's own pool is what the critic is measured on. One of the two is given its
targets in random order; a critic that fits anything but the targets falls into that trap.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.interaction.trajectory import Trajectory
from stages.rl import assembly
from stages.rl.advantages import explained_variance
from stages.rl.baselines import LearnedBaseline
from stages.rl.critic.heads import HistogramHead, ScalarHead
from stages.rl.critic.trunks import load_critic
from stages.rl.pool import read_trajectories
from tests.rl.test_run import Lab, merged
from tests.tiny_models import tiny_bert, tiny_llama

TRUNKS: dict[str, dict[str, Any]] = {
    "light": {"trunk": "light", "hidden_size": 16, "learning_rate": 1e-2},
    "scratch": {"trunk": "scratch", "hidden_size": 32, "layers": 2, "learning_rate": 3e-3},
    "encoder": {"trunk": "a folder, filled in", "learning_rate": 3e-3},
    "reward-model": {"trunk": "reward-model", "learning_rate": 3e-3},
}
"""A trunk that joins: its options here."""
KINDS: dict[str, dict[str, Any]] = {
    "v, mse": {"loss": "mse"},
    "v, huber": {"loss": "huber"},
    "v, hl_gauss": {"loss": "hl_gauss"},
    "v, mse, ensemble": {"loss": "mse", "ensemble": 2},
}
"""A kind that joins: its options here."""
MATRIX = [(trunk, kind) for trunk in TRUNKS for kind in KINDS]
DIAGONAL = [
    ("light", "v, hl_gauss"),
    ("scratch", "v, mse"),
    ("encoder", "v, mse, ensemble"),
    ("reward-model", "v, huber"),
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
            real = assembly.build_baseline

            def watched(*parts: Any, **more: Any) -> Any:
                built = real(*parts, **more)
                assert isinstance(built, LearnedBaseline)
                self.baseline, self.before = built, copy.deepcopy(built.critic.network)
                return built

            patch.setattr(assembly, "build_baseline", watched)
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
    return chosen | ({"trunk": str(bert)} if trunk == "encoder" else {})


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
