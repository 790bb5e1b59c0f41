"""The frozen trunk: what the encoder says is asked once, kept, shared, and never learned."""

from __future__ import annotations

import copy
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from stages.rl.critic.frozen import SCALE, FrozenTrunk
from stages.rl.critic.learner import CriticLearner, FitPlan
from stages.rl.critic.network import CriticNetwork
from stages.rl.critic.numbers import NUMBERS
from stages.rl.critic.views import ViewParts, critic_views
from tests.rl.worlds import episode


class Counting:
    """Length and first letter as an embedding; notes every text it is asked for."""

    size = 4

    def __init__(self) -> None:
        self.asked: list[str] = []

    def embed(self, texts: list[str]) -> np.ndarray:
        self.asked += texts
        return np.array([[len(t), ord(t[0]), 1.0, 0.0] for t in texts], dtype=np.float32) / 100


def played():  # type: ignore[no-untyped-def]
    """Three turns with facts."""
    whole = episode([([1], [3], 0.0), ([1, 3], [4], 0.0), ([1, 3, 4], [5], 1.0)])
    facts = {"gold_answer": "12", "remaining": "describe; query"}
    return replace(whole, initial_privileged=facts)


def test_the_encoder_is_no_part_of_weights_or_copies() -> None:
    encoder = Counting()
    network = CriticNetwork(FrozenTrunk(encoder, 8))
    assert not any("standing" in name for name in network.state_dict())
    twin = copy.deepcopy(network)
    assert twin.trunk._standing.encoder is encoder
    assert twin.trunk.join[0].weight is not network.trunk.join[0].weight
    torch.testing.assert_close(twin.trunk.directions, FrozenTrunk(encoder, 8).directions)


def test_fitting_asks_the_encoder_nothing_again() -> None:
    encoder = Counting()
    network = CriticNetwork(FrozenTrunk(encoder, 8))
    numbers = [network.prepare(critic_views(played()))]
    asked = len(encoder.asked)
    for _ in range(3):
        network.outputs(numbers).sum().backward()
    assert asked and len(encoder.asked) == asked
    assert network.trunk.join[0].weight.grad is not None
    assert network(numbers).shape == (4,)  # c_0 … c_3


def test_facts_are_asked_one_by_one_and_averaged() -> None:
    encoder = Counting()
    trunk = FrozenTrunk(encoder, 8)
    made = trunk.prepare(critic_views(played()))
    assert "gold answer: 12" in encoder.asked  # on its own
    each = [
        trunk._standing.rows([t])[0] for t in ("gold answer: 12", "remaining: describe", "query")
    ]
    read = torch.stack(each).mean(0) @ trunk.directions * SCALE
    width = trunk.directions.shape[1]  # goal, state, facts, newest exchange
    torch.testing.assert_close(made[0, NUMBERS + 2 * width : NUMBERS + 3 * width], read)


def test_lengths_and_angles_are_kept_as_far_as_they_can_be() -> None:
    """Orthogonal directions: no text is blown up, and the mean square is kept on average."""

    class Wide(Counting):
        size = 400

    trunk = FrozenTrunk(Wide(), 8)
    k = trunk.directions.shape[1]
    torch.testing.assert_close(trunk.directions.T @ trunk.directions, torch.eye(k))
    rows = torch.randn(500, 400, generator=torch.Generator().manual_seed(1))
    assert 0.9 < float((rows @ trunk.directions).square().mean()) < 1.1


def test_no_text_is_no_numbers() -> None:
    trunk = FrozenTrunk(Counting(), 8)
    rows = trunk._standing.rows(["", " ", "x"])
    assert rows[:2].abs().sum() == 0 and rows[2].abs().sum() > 0


@pytest.mark.parametrize("width", [8, 16])
def test_later_turns_change_no_earlier_feature(width: int) -> None:
    trunk = FrozenTrunk(Counting(), width).eval()
    whole = played()
    first = trunk([trunk.prepare(critic_views(whole))])
    cut = whole.with_turns(whole.turns[:2])
    again = trunk([trunk.prepare(critic_views(cut))])
    torch.testing.assert_close(first[:2], again[:2])  # c_2 of the cut one says that it ended


class Hashed:
    """Any text as a direction of its own, as far from every other as two tasks' words can be."""

    size = 64

    def embed(self, texts: list[str]) -> np.ndarray:
        rows = [np.random.default_rng(zlib.crc32(t.encode())).normal(size=64) for t in texts]
        return np.array([row / np.linalg.norm(row) for row in rows], dtype=np.float32)


def task_of_its_own(number: int):  # type: ignore[no-untyped-def]
    """Three turns of a task that no other episode has; a fact after the first tells how it ends."""
    won = number * 7919 % 13 < 6
    turns = [([1], [number], 0.0), ([1, 3], [4], 0.0), ([1, 3, 4], [5], float(won))]
    whole = replace(episode(turns), goal=f"task {number}")
    facts = {"gold_answer": f"words of {number}", "result_seen": won}
    return whole.with_turns([replace(t, privileged=facts) for t in whole.turns])


def test_sixty_episodes_teach_what_holds_for_others_and_not_themselves() -> None:
    """No task comes twice, so that whatever is learned by heart is wrong of the next ones."""
    torch.manual_seed(0)
    learner = CriticLearner(
        CriticNetwork(FrozenTrunk(Hashed(), 64)),
        plan=FitPlan(learning_rate=5e-3, steps=120),
        parts=ViewParts(),
        turn_rewards=lambda e: [t.rewards.get("success", 0.0) for t in e.turns],
    )
    seen, new = ([task_of_its_own(n) for n in range(k, k + 60)] for k in (0, 1000))
    rng = np.random.default_rng(0)
    learner.fit(lambda n: [seen[k] for k in rng.choice(60, n)], kind="monte_carlo")
    assert learner.surprise(new) > 0.45  # two views of three can know: at most two thirds
