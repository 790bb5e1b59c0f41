"""The actor learns from a static pool: what was done there, weighed by how good it was, and KL.

Summed over action tokens and divided by their number, as in PPO:

    −w_t·log π(a_t | S_t) + β_KL·Σ_v π(v)(log π(v) − log π_ref(v))

No ratio is taken, so nobody need know how likely an action was for whoever took it. The KL is that
over the whole vocabulary: the pool's tokens are no samples of π, from which k2 would estimate it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from torch import Tensor

from stages.common.logprobs import log_softmax
from stages.interaction.trajectory import Trajectory
from stages.rl import kl as divergence
from stages.rl.learner import ActorLearner
from stages.rl.offline.losses import weighted_likelihood
from stages.rl.rows import ActorRow, actor_rows, collate, counts
from stages.rl.tally import Tally


@dataclass(frozen=True)
class Imitation:
    """The coefficients of one iteration."""

    kl_coef: float
    temperature: float
    max_grad_norm: float


class ImitationLearner(ActorLearner):
    """Weighted maximum likelihood, through the same rows, pieces and descent as PPO."""

    def imitate(
        self, minibatches: Iterable[Sequence[ActorRow]], objective: Imitation
    ) -> dict[str, float]:
        """One optimizer step per minibatch. Returns means per action token.

        Raises RunError before a non-finite gradient reaches the weights.
        """
        tally, norms = Tally(), []
        self.setup.model.train()
        for rows in minibatches:
            if rows:
                losses = self._losses(rows, objective, tally)
                norms.append(self._descend(losses, objective.max_grad_norm))
        self.setup.model.eval()
        means = {f"actor/{name}": x for name, x in tally.over(self.ranks).means().items()}
        return means | {
            "actor/grad_norm": float(np.mean(norms)) if norms else 0.0,
            "actor/updates": float(len(norms)),
            "actor/learning_rate": float(self.setup.optimizer.param_groups[0]["lr"]),
        }

    def _losses(
        self, minibatch: Sequence[ActorRow], objective: Imitation, tally: Tally
    ) -> list[Callable[[], Tensor]]:
        """This process's part of a minibatch's loss, piece by piece, each still to be computed."""
        divisor = sum(r.actions for r in minibatch)

        def loss_of(piece: list[ActorRow]) -> Tensor:
            batch = collate(piece, self.setup.accelerator.device)
            log_policy = log_softmax(
                self.setup.actor_logits(batch.ids, batch.mask), objective.temperature
            )
            log_reference = log_softmax(
                self.setup.reference_logits(batch.ids, batch.mask), objective.temperature
            )
            chosen = log_policy.gather(-1, batch.ids[batch.mask][:, None]).squeeze(-1)
            imitation = weighted_likelihood(chosen, batch.advantage[batch.mask]).sum()
            drift = divergence.full(log_policy, log_reference).sum()
            loss = (imitation + objective.kl_coef * drift) / divisor
            if not counts(piece):
                return 0.0 * loss
            tally.add(len(chosen), imitation_loss=imitation, kl=drift, likelihood=chosen.sum())
            return loss

        return [partial(loss_of, piece) for piece in self._pieces(minibatch)]


def weighted_rows(
    episodes: Sequence[Trajectory], weights: Sequence[Sequence[float]]
) -> list[ActorRow]:
    """Rows of all turns with tokens, the weight of each in the place of its advantage.

    Log-probs of whoever sampled them are left out, known or not: no ratio is taken.
    """
    bare = [
        e.with_turns([replace(t, logprobs=(0.0,) * len(t.action_ids)) for t in e.turns])
        for e in episodes
    ]
    return [row for row in actor_rows(bare, weights) if row.actions]
