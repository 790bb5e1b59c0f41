"""Pairs of good and bad, and how well scores tell them apart."""

import numpy as np
import pytest
import torch

from stages.rl.critic.contrast import Contrasts, Outcome, auc, preference_loss


def test_pairs_come_from_the_most_specific_group_with_two_outcomes():
    outcomes = [
        Outcome(1.0, ("state a", "task a", "kind")),  # same state, other outcome: 1
        Outcome(0.0, ("state a", "task a", "kind")),
        Outcome(1.0, ("state b", "task a", "kind")),  # alone in its state: task
        Outcome(1.0, ("state c", "task c", "kind")),  # alone in its task: kind
        Outcome(0.5, ("state d", "task d", "other kind")),  # nothing to compare with
    ]
    contrasts = Contrasts(outcomes)
    assert len(contrasts) == 4
    pairs = set(contrasts.draw(500, np.random.default_rng(0)))
    assert pairs == {(0, 1), (2, 1), (3, 1)}


def test_outcomes_that_hardly_differ_make_no_pair():
    close = [Outcome(0.5, ("t",)), Outcome(0.52, ("t",))]
    assert len(Contrasts(close)) == 0 and len(Contrasts(close, min_margin=0.01)) == 2


@pytest.mark.parametrize("ties", [False, True])
def test_auc_is_the_share_of_pairs_in_the_right_order(ties):
    rng = np.random.default_rng(1)
    good, bad = rng.normal(0.5, 1, size=13), rng.normal(0, 1, size=7)
    if ties:
        good, bad = good.round(), bad.round()
    share = np.mean([1.0 if g > b else 0.5 if g == b else 0.0 for g in good for b in bad])
    assert auc(torch.tensor(good), torch.tensor(bad)) == pytest.approx(share, rel=1e-12)


def test_auc_at_its_ends():
    assert auc(torch.tensor([2.0, 3.0]), torch.tensor([1.0])) == 1.0
    assert auc(torch.tensor([1.0]), torch.tensor([2.0, 3.0])) == 0.0
    assert auc(torch.tensor([1.0]), torch.tensor([1.0])) == 0.5
    assert np.isnan(auc(torch.tensor([]), torch.tensor([1.0])))


def test_preference_loss_by_hand():
    good = torch.tensor([0.0, 2.0, -1.0], dtype=torch.float64)
    bad = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    expected = [np.log(2), np.log(1 + np.exp(-1.5)), np.log(1 + np.exp(2.0))]
    losses = preference_loss(good, bad)
    torch.testing.assert_close(losses, torch.tensor(expected, dtype=torch.float64))
    with pytest.raises(ValueError, match="alike"):
        preference_loss(good, bad[:2])
