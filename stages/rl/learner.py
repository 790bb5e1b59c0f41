"""The actor learns here: one clipped-PPO update on rows, with entropy, KL and SFT mixing.

The loss is a sum over action tokens divided by one number per optimizer step: the action tokens
of the whole minibatch, over all processes and accumulation steps. No per-turn or per-episode
mean: 1/T per episode is not the policy gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from stages.common.errors import RunError
from stages.common.gemm import fitting
from stages.common.logprobs import chosen_and_entropy, chosen_logprobs, log_softmax
from stages.interaction.trajectory import Trajectory
from stages.rl import kl as divergence
from stages.rl.losses import (
    capped_ratio,
    clip_count,
    clipped_surrogate,
    effective_share,
    entropy,
)
from stages.rl.lower import KnownBelow
from stages.rl.rows import (
    ActorRow,
    RowBatch,
    actor_rows,
    collate,
    counts,
    pieces,
    refuse_relabelled,
)
from stages.rl.tally import Tally
from stages.rl.trl_adapter import TrlPPOSetup

KlLoss = Literal["k2", "full", "in_reward"]
LogitsOf = Callable[..., Tensor]
"""(ids, action mask, below=...) -> (n, V) logits at the n action tokens."""


@dataclass(frozen=True)
class Objective:
    """The coefficients of one update."""

    clip_range: float
    kl_coef: float
    kl_loss: KlLoss
    entropy_coef: float
    sft_coef: float
    temperature: float
    max_grad_norm: float
    sft_temperature: float = 1.0
    """Of the SFT loss: 1 for rows others wrote, that of sampling for the actor's own."""
    vf_coef: float = 0.0
    """Weight of the loss of a value head on the actor's trunk, where there is one."""


class ActorLearner:
    """Epochs and minibatches over the rows of one rollout.

    ``sft_rows`` gives, once an update, the rows that SFT mixing draws from. ``importance_cap``:
    a rounded copy of the actor, or another engine, samples; what it samples otherwise than the
    actor would is made up for by weights cut off there.
    """

    def __init__(
        self,
        setup: TrlPPOSetup,
        *,
        epochs: int,
        minibatch_episodes: int,
        microbatch_tokens: int,
        importance_cap: float | None = None,
        sft_rows: Callable[[], Sequence[ActorRow]] = list,
    ) -> None:
        self.setup, self.epochs, self.importance_cap = setup, epochs, importance_cap
        self.minibatch_episodes, self.microbatch_tokens = minibatch_episodes, microbatch_tokens
        self.sft_rows = sft_rows
        self.ranks = setup.ranks
        self._referred: dict[float, dict[tuple[bytes, bytes], Tensor]] = {}
        """By temperature and text: log π_ref of this iteration's actions."""
        self._below = KnownBelow(setup.lower_states, max_tokens=microbatch_tokens)

    def with_reference(self, rows: Sequence[ActorRow], temperature: float) -> list[ActorRow]:
        """The rows, by length, with log π_ref filled in: computed once per iteration, whoever asks
        for it and however many epochs it is used in."""
        known = self._referred.setdefault(temperature, {})
        new = [row for row in rows if row.text not in known]
        for row, chosen in self._scored(new, self.setup.reference_logits, temperature):
            known[row.text] = chosen
        done = []
        for row in sorted(rows, key=lambda row: len(row.ids)):
            reference = torch.zeros_like(row.behaviour)
            reference[row.mask] = known[row.text]
            done.append(replace(row, reference=reference))
        return done

    def with_rounding(
        self, rows: Sequence[ActorRow], temperature: float
    ) -> tuple[list[ActorRow], dict[str, float]]:
        """The rows with the log-probs the actor itself gives, and weights for what the rounded copy
        sampled instead; how far the two are apart. As they are where the actor itself sampled.
        """
        if self.importance_cap is None:
            return list(rows), {}
        done, gaps = [], []
        self.setup.model.eval()
        for row, own in self._scored(rows, self.setup.actor_logits, temperature):
            gap = own - row.behaviour[row.mask]
            behaviour, weight = torch.zeros_like(row.behaviour), torch.zeros_like(row.weight)
            behaviour[row.mask], weight[row.mask] = own, capped_ratio(gap, cap=self.importance_cap)
            done.append(replace(row, behaviour=behaviour, weight=weight))
            gaps.append(gap)
        apart = torch.cat(gaps)
        return done, {
            "sampling/logprob_gap": float(apart.abs().mean()),
            "sampling/effective_size": effective_share(apart),
        }

    def turn_log_ratios(self, episodes: Sequence[Trajectory], temperature: float) -> list[Tensor]:
        """Σ_tokens (log π − log μ) of every turn, (T,) per episode, by the actor as it is now.

        Raises RunError for a turn without the log-probs μ it was sampled with.
        """
        refuse_unscored(episodes)
        rows = actor_rows(episodes, [[0.0] * len(e.turns) for e in episodes])
        sums = [torch.zeros(len(e.turns)) for e in episodes]
        self.setup.model.eval()
        for row, now in self._scored(rows, self.setup.actor_logits, temperature):
            per_token = now - row.behaviour[row.mask]
            sums[row.episode].index_add_(0, row.turn[row.mask], per_token)
        return sums

    def with_logprobs(self, episodes: Sequence[Trajectory], temperature: float) -> list[Trajectory]:
        """The episodes with every action token's log π by the actor as it is now."""
        rows = actor_rows(episodes, [[0.0] * len(e.turns) for e in episodes])
        turns = [list(e.turns) for e in episodes]
        self.setup.model.eval()
        for row, now in self._scored(rows, self.setup.actor_logits, temperature):
            turn_of, own = row.turn[row.mask], turns[row.episode]
            for t in turn_of.unique().tolist():
                own[t] = replace(own[t], logprobs=tuple(now[turn_of == t].tolist()))
        return [e.with_turns(own) for e, own in zip(episodes, turns, strict=True)]

    def surprise(self, rows: Sequence[ActorRow]) -> float:
        """Mean −log π per action token at temperature 1, by the actor as it is now."""
        self.setup.model.eval()
        scored = [now for _, now in self._scored(rows, self.setup.actor_logits, 1.0)]
        return -float(torch.cat(scored).double().mean())

    def _scored(
        self, rows: Sequence[ActorRow], logits_of: LogitsOf, temperature: float
    ) -> Iterator[tuple[ActorRow, Tensor]]:
        """Every row with the log-probs of its action tokens, (n,), without gradient.

        Each process scores its share of the rows and is told the rest.
        """
        places = {id(row): i for i, row in enumerate(rows)}
        found: dict[int, Tensor] = {}
        for piece in self._pieces(rows):
            batch = collate(piece, self.setup.accelerator.device)
            with torch.no_grad():
                logits = logits_of(batch.ids, batch.mask, below=batch.below)
                flat = chosen_logprobs(logits, batch.ids[batch.mask], temperature)
            scored = zip(piece, flat.cpu().split([r.actions for r in piece]), strict=True)
            found |= {places[id(row)]: chosen for row, chosen in scored if counts(piece)}
        for part in self.ranks.everyone(found):
            found |= part
        for i in sorted(found, key=lambda i: (len(rows[i].ids), i)):
            yield rows[i], found[i]

    def _pieces(self, rows: Sequence[ActorRow]) -> list[list[ActorRow]]:
        most = fitting(self.microbatch_tokens, self.setup.accelerator.device)
        return pieces(rows, max_tokens=most, ranks=self.ranks)

    def with_drift(self, episodes: Sequence[Trajectory], temperature: float) -> list[Trajectory]:
        """The episodes with Σ_tokens (log π − log π_ref) noted on each turn (``in_reward``)."""
        nothing = [[0.0] * len(e.turns) for e in episodes]
        rows, _ = self.with_rounding(actor_rows(episodes, nothing), temperature)
        rows = self.with_reference(rows, temperature)
        drift = [[0.0] * len(e.turns) for e in episodes]
        for row in rows:
            per_token = divergence.k1(row.behaviour, row.reference)
            for t in row.turn[row.mask].unique().tolist():
                drift[row.episode][t] = float(per_token[row.turn == t].sum())
        noted = []
        for episode, sums in zip(episodes, drift, strict=True):
            turns = zip(episode.turns, sums, strict=True)
            noted.append(
                episode.with_turns(
                    [replace(t, info={**t.info, "kl_to_reference": x}) for t, x in turns]
                )
            )
        return noted

    def update(
        self, rows: Sequence[ActorRow], objective: Objective, rng: np.random.Generator
    ) -> dict[str, float]:
        """All epochs of one iteration. Returns means per action token and the gradient norm.

        Raises RunError before a non-finite gradient reaches the weights.
        """
        tally, norms = Tally(), []
        self.setup.model.eval()
        rows, rounding = self.with_rounding(self._on_lower(rows), objective.temperature)
        rows = self.with_reference(rows, objective.temperature)
        imitated = self.sft_rows() if objective.sft_coef > 0 else []
        self.setup.model.train()
        for _ in range(self.epochs):
            for minibatch in self._minibatches(rows, rng):
                losses = self.ppo_losses(minibatch, objective, tally)
                if imitated:
                    drawn = rng.integers(len(imitated), size=len(minibatch))
                    chosen = self._on_lower([imitated[i] for i in drawn])
                    losses += self.sft_losses(chosen, objective, tally)
                norms.append(self._descend(losses, objective.max_grad_norm))
        self.setup.model.eval()
        self._referred.clear()
        self._below.keep(imitated)
        means = {
            name if "/" in name else f"actor/{name}": value
            for name, value in tally.over(self.ranks).means().items()
        }
        means |= rounding
        if any(row.relabelled for row in imitated):
            means["hindsight/imitated"] = float(np.mean([row.relabelled for row in imitated]))
        return means | {
            "actor/kl": kl_to_reference(rows),
            "actor/grad_norm": float(np.mean(norms)),
            "actor/updates": len(norms),
            "actor/temperature": objective.temperature,
            "actor/entropy_coef": objective.entropy_coef,
            "actor/learning_rate": float(self.setup.optimizer.param_groups[0]["lr"]),
        }

    def _on_lower(self, rows: Sequence[ActorRow]) -> Sequence[ActorRow]:
        """The rows with their states below, where layers stand still and one process learns:
        several each read a share of the rows, and would have to pass states on."""
        known = self.setup.lower is not None and self.ranks.size == 1
        return self._below(rows) if known else rows

    def _minibatches(
        self, rows: Sequence[ActorRow], rng: np.random.Generator
    ) -> Iterator[list[ActorRow]]:
        """Drawn by episode: the turns of an episode stay together."""
        order = rng.permutation(sorted({r.episode for r in rows}))
        # Of like size: a lone last episode would weigh as much as a whole minibatch.
        for part in np.array_split(order, -(-len(order) // self.minibatch_episodes)):
            chosen = set(part.tolist())
            yield [r for r in rows if r.episode in chosen]

    def ppo_losses(
        self, minibatch: Sequence[ActorRow], objective: Objective, tally: Tally
    ) -> list[Callable[[], Tensor]]:
        """This process's part of one minibatch's loss, piece by piece, each still to be computed.

        Summed over action tokens and divided by one number: that of the whole minibatch, over all
        pieces and processes. The loss of a value head speaks of turns, so its number is theirs.
        """
        refuse_relabelled(minibatch)
        divisor = max(sum(r.actions for r in minibatch), 1)
        turns = max(sum(int(r.first.sum()) for r in minibatch), 1)

        def loss_of(piece: list[ActorRow]) -> Tensor:
            batch = collate(piece, self.setup.accelerator.device)
            logits, values = self.setup.actor_logits_and_values(
                batch.ids, batch.mask, batch.first, below=batch.below
            )
            loss, sums = ppo_loss(logits, batch, objective, self._full_reference(batch, objective))
            loss = loss / divisor
            if not counts(piece):
                return _nothing(loss, values)
            tally.add(logits.shape[0], **sums)
            if values is not None and self.setup.value_head is not None:
                errors = self.setup.value_head.loss(values, batch.returns[batch.first])
                tally.add_apart("critic/loss", errors.sum(), len(errors))
                loss = loss + objective.vf_coef * errors.sum() / turns
            return loss

        return [partial(loss_of, piece) for piece in self._pieces(minibatch)]

    def _full_reference(self, batch: RowBatch, objective: Objective) -> Tensor | None:
        """log π_ref over the whole vocabulary, only where the KL loss needs it."""
        if objective.kl_loss != "full":
            return None
        logits = self.setup.reference_logits(batch.ids, batch.mask, below=batch.below)
        return log_softmax(logits, objective.temperature)

    def sft_losses(
        self, chosen: Sequence[ActorRow], objective: Objective, tally: Tally
    ) -> list[Callable[[], Tensor]]:
        """β·L_SFT: cross-entropy on as many rows to imitate as the minibatch has (F18)."""
        divisor = max(sum(r.actions for r in chosen), 1)

        def loss_of(piece: list[ActorRow]) -> Tensor:
            batch = collate(piece, self.setup.accelerator.device)
            logits, values = self.setup.actor_logits_and_values(
                batch.ids, batch.mask, batch.first, below=batch.below
            )
            chosen = batch.ids[batch.mask]
            loss = -chosen_logprobs(logits, chosen, objective.sft_temperature).sum()
            if not counts(piece):
                return _nothing(loss, values)
            tally.add_apart("sft_loss", loss, len(chosen))
            return objective.sft_coef * loss / divisor + _nothing(loss, values)

        return [partial(loss_of, piece) for piece in self._pieces(chosen)]

    def _descend(self, losses: Sequence[Callable[[], Tensor]], max_grad_norm: float) -> float:
        """One optimizer step on the sum of the losses; the gradient's norm."""
        for left, loss in zip(range(len(losses))[::-1], losses, strict=True):
            self.setup.descent.accumulate(loss, last=left == 0)
        norm = self.setup.descent.step(max_grad_norm)
        if not math.isfinite(norm):
            raise RunError(
                f"the actor's gradient is {norm}: nothing was written into the weights; "
                "lower rl.actor.learning_rate or look at the rewards of the last iteration"
            )
        return norm


def _nothing(loss: Tensor, values: Tensor | None) -> Tensor:
    """0 with a gradient of 0 for all that learns: DDP and ZeRO wait for everything's."""
    return 0.0 * (loss if values is None else loss + values.sum())


def refuse_unscored(episodes: Sequence[Trajectory]) -> None:
    """RunError when a turn has not one behaviour log-prob for each of its action tokens."""
    for episode in episodes:
        for turn in episode.turns:
            if not turn.action_ids or len(turn.logprobs) != len(turn.action_ids):
                raise RunError(
                    f"turn {turn.index} of an episode of task {episode.task_id} in the pool has "
                    f"{len(turn.logprobs)} behaviour log-probs for {len(turn.action_ids)} action "
                    "tokens, and V-trace needs one for each; set rl.critic.off_policy to none, or "
                    "keep episodes that were not sampled out of the pool"
                )


def kl_to_reference(rows: Sequence[ActorRow]) -> float:
    """KL(π‖π_ref) per action token of the policy that sampled the rows, by k3.

    Taken before any update: later the tokens are no longer samples of π, and k3's exponential
    would blow up on the very tokens that were unlearned.
    """
    per_token = [divergence.k3(r.behaviour, r.reference)[r.mask] for r in rows]
    return float(torch.cat(per_token).mean())


def ppo_loss(
    logits: Tensor, batch: RowBatch, objective: Objective, log_reference: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Summed over the action tokens: clipped surrogate − entropy bonus + KL.

    Args:
        logits: (n, V) that chose the batch's n action tokens, row by row.
        batch: rows; ``mask`` selects the n positions.
        log_reference: (n, V), needed by ``kl_loss="full"`` only.

    Returns:
        The scalar loss and sums for the log.
    """
    chosen, full = batch.ids[batch.mask], None
    if log_reference is not None:
        full = log_softmax(logits, objective.temperature)
        logprobs, bonus = full.gather(-1, chosen[:, None]).squeeze(-1), entropy(full)
    else:
        logprobs, bonus = chosen_and_entropy(
            logits, chosen, objective.temperature, learns=objective.entropy_coef > 0
        )
    behaviour, reference = batch.behaviour[batch.mask], batch.reference[batch.mask]
    surrogate = batch.weight[batch.mask] * clipped_surrogate(
        logprobs, behaviour, batch.advantage[batch.mask], clip_range=objective.clip_range
    )
    loss = (surrogate - objective.entropy_coef * bonus).sum()
    if objective.kl_loss == "k2":
        loss = loss + objective.kl_coef * divergence.k2(logprobs, reference).sum()
    elif full is not None and log_reference is not None:
        loss = loss + objective.kl_coef * divergence.full(full, log_reference).sum()
    now = logprobs.detach()
    return loss, {
        "policy_loss": surrogate.sum(),
        "approx_kl": divergence.k3(behaviour, now).sum(),
        "entropy": bonus.sum(),
        "clip_fraction": clip_count(now, behaviour, clip_range=objective.clip_range),
    }
