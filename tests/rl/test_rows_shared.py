"""Rows shared out over processes: all of them, evenly by tokens, equally many pieces for each."""

from __future__ import annotations

import pytest
import torch

from stages.common.ranks import Ranks
from stages.rl.rows import FILLER, actor_rows, collate, counts, pieces, shares
from tests.rl.worlds import episode

LENGTHS = (40, 3, 5, 3, 4, 9, 3, 3, 4, 6)


def rows():
    episodes = [episode([([1] * length, [2, 3], 1.0)]) for length in LENGTHS]
    return actor_rows(episodes, [[1.0]] * len(episodes))


@pytest.mark.parametrize("size", [1, 2, 3, 16])
def test_every_row_is_somebodys_and_all_have_equally_many_pieces(size):
    every = [pieces(rows(), max_tokens=16, ranks=Ranks(rank, size)) for rank in range(size)]
    assert len({len(own) for own in every}) == 1
    held = [row.episode for own in every for piece in own if counts(piece) for row in piece]
    assert sorted(held) == list(range(len(LENGTHS)))


def test_one_process_has_the_microbatches_of_before_and_no_filler():
    assert all(counts(piece) for piece in pieces(rows(), max_tokens=16))


def test_tokens_are_shared_out_evenly():
    tokens = [sum(len(row.ids) for row in share) for share in shares(rows(), 2)]
    assert max(tokens) - min(tokens) <= min(LENGTHS) + 2
    assert sorted(len(share) for share in shares(rows()[:4], 2)) == [1, 3]


def test_a_filler_is_two_tokens_of_nothing():
    own = pieces(rows()[:1], max_tokens=16, ranks=Ranks(1, 2))
    ((filler,),) = own
    assert filler.episode == FILLER and not counts(own[0])
    batch = collate([filler])
    assert batch.ids.shape == (1, 2) and batch.mask.tolist() == [[False, True]]
    assert batch.first.tolist() == [[False, True]]
    for tensor in (batch.behaviour, batch.advantage, batch.reference, batch.returns):
        assert torch.equal(tensor, torch.zeros(1, 2))
