"""The frozen trunk: what the encoder says is asked once, kept, shared, and never learned."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from stages.rl.critic.frozen import FrozenTrunk
from stages.rl.critic.network import CriticNetwork
from stages.rl.critic.views import critic_views
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
    assert twin.trunk.embed.weight is not network.trunk.embed.weight


def test_fitting_asks_the_encoder_nothing_again() -> None:
    encoder = Counting()
    network = CriticNetwork(FrozenTrunk(encoder, 8))
    numbers = [network.prepare(critic_views(played()))]
    asked = len(encoder.asked)
    for _ in range(3):
        network.outputs(numbers).sum().backward()
    assert asked and len(encoder.asked) == asked
    assert network.trunk.embed.weight.grad is not None
    assert network(numbers).shape == (4,)  # c_0 … c_3


def test_facts_are_asked_one_by_one_and_averaged() -> None:
    encoder = Counting()
    trunk = FrozenTrunk(encoder, 8)
    made = trunk.prepare(critic_views(played()))
    assert "gold answer: 12" in encoder.asked  # on its own
    each = [
        trunk._standing.rows([t])[0] for t in ("gold answer: 12", "remaining: describe", "query")
    ]
    torch.testing.assert_close(made.privileged.rows[0], torch.stack(each).mean(0))


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
