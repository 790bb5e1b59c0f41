"""The critic that shares the actor's trunk (F25): a head on the actor's own last hidden state.

V(S_t) is read at the last prompt token of turn t, before any action token, so it sees what the
actor sees and nothing else. The head learns in the actor's own backward and optimizer step
(``learner``: loss + vf_coef · (V − G)²) toward G = A + V, taken before the update with the
values of the actor that acted. In the warm-up the actor stands still and only the head is fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stages.common.chat import encode_prompt, extend_prompt
from stages.common.errors import UsageError
from stages.common.files import read_json, write_json
from stages.common.seeding import keyed_generator
from stages.interaction.trajectory import Trajectory, Turn
from stages.rl.advantages import explained_variance
from stages.rl.baselines import Cadence, CriticBaseline
from stages.rl.critic.heads import ScalarHead
from stages.rl.critic.learner import Padded, padded, refuse_non_finite
from stages.rl.critic.trunks import CONFIG, WEIGHTS
from stages.rl.pool import ExperiencePool
from stages.rl.rows import actor_rows, collate, counts, pieces
from stages.rl.trl_adapter import TrlPPOSetup


class SharedHead(ScalarHead):
    """Values of the actor's states, in float32 whatever the actor's type.

    ``detach``: its loss stops at the head and never reaches the trunk.
    """

    def __init__(self, width: int, *, detach: bool = False) -> None:
        super().__init__(width)
        self.detach = detach

    def forward(self, features: Tensor) -> Tensor:
        """(n, H) states to the head's n outputs."""
        return super().forward((features.detach() if self.detach else features).float())


class SharedCritic:
    """Values of episodes by head and trunk, and the fit of the head alone."""

    def __init__(
        self,
        setup: TrlPPOSetup,
        *,
        turn_rewards: Callable[[Trajectory], list[float]],
        discount: float,
        microbatch_tokens: int,
    ) -> None:
        if setup.value_head is None:
            raise ValueError("the set-up has no value head; hand it one as value_head")
        self.setup, self.head = setup, setup.value_head
        self._turn_rewards, self._discount = turn_rewards, discount
        self._microbatch_tokens = microbatch_tokens
        self._states: dict[int, tuple[Trajectory, Tensor]] = {}

    @property
    def learning_rate(self) -> float:
        """The head's, now: it falls as the actor's does."""
        rate: float = self.setup.optimizer.param_groups[-1]["lr"]
        return rate

    def values(self, episodes: Sequence[Trajectory]) -> list[Tensor]:
        """V(S_0) … V(S_{T−1}) of each episode, and V(S_T) where it was cut, else 0."""
        states = self.states(episodes)
        with torch.no_grad():
            found = self.head.value(self.head(torch.cat(states))).cpu()
        values = []
        for episode, own in zip(episodes, found.split([len(s) for s in states]), strict=True):
            values.append(torch.cat([own, own.new_zeros(len(episode.turns) + 1 - len(own))]))
        return values

    def states(self, episodes: Sequence[Trajectory]) -> list[Tensor]:
        """(T, H) hidden states of each episode, (T + 1, H) where it was cut, without gradient.

        Kept until ``forget``: the trunk stands still between a rollout and the update on it.
        """
        new = list({id(e): e for e in episodes if id(e) not in self._states}.values())
        found = zip(new, self._read(new), strict=True)
        self._states |= {id(episode): (episode, states) for episode, states in found}
        return [self._states[id(e)][1] for e in episodes]

    def forget(self) -> None:
        """The trunk may move now: read every state anew."""
        self._states = {}

    def padded(self, episodes: Sequence[Trajectory], values: Sequence[Tensor]) -> Padded:
        """Rewards, values and mask as (B, N), with the bootstrap of truncated episodes."""
        return padded(episodes, values, self._turn_rewards)

    def surprise(self, episodes: Sequence[Trajectory]) -> float:
        """Explained variance of Monte-Carlo returns."""
        now = self.padded(episodes, self.values(episodes))
        return explained_variance(now.values, self._whole_returns(now), now.mask)

    def fit(
        self,
        episodes: Sequence[Trajectory],
        rng: np.random.Generator,
        *,
        steps: int,
        batch_size: int,
        max_grad_norm: float,
    ) -> float:
        """``steps`` of plain regression on Monte-Carlo returns of ``batch_size`` episodes drawn
        with replacement; the trunk stands still. The mean loss.

        The optimizer is the actor's: its parameters have no gradient here, so it passes them over.
        """
        now = self.padded(episodes, self.values(episodes))
        returns = [g[m] for g, m in zip(self._whole_returns(now), now.mask, strict=True)]
        # S_T of a cut episode is read only to bootstrap
        states = [s[: len(g)] for s, g in zip(self.states(episodes), returns, strict=True)]
        losses = []
        for _ in range(steps):
            drawn = rng.integers(len(episodes), size=batch_size)
            outputs = self.head(torch.cat([states[i] for i in drawn]))
            targets = torch.cat([returns[i] for i in drawn]).to(outputs.device)
            loss = self.head.loss(outputs, targets).mean()
            self.setup.accelerator.backward(loss)
            head, clip = self.head.parameters(), self.setup.accelerator.clip_grad_norm_
            refuse_non_finite(clip(head, max_grad_norm))
            self.setup.optimizer.step()
            self.setup.optimizer.zero_grad(set_to_none=True)
            losses.append(float(loss.detach()))
        return sum(losses) / max(len(losses), 1)

    def state_dict(self) -> dict[str, Any]:
        """The head; trunk and optimizer are the actor's and are saved with it."""
        return self.head.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.head.load_state_dict(state)

    def _whole_returns(self, now: Padded) -> Tensor:
        return now.gae(discount=self._discount, gae_lambda=1.0)[1]

    def _read(self, episodes: Sequence[Trajectory]) -> list[Tensor]:
        """By the same forward as in training, with the output layer at the turns' starts only.

        Each process reads its share of the rows and is told the rest.
        """
        shown = [self._with_last_state(e) for e in episodes]
        device, ranks = self.setup.accelerator.device, self.setup.ranks
        rows = actor_rows(shown, [[0.0] * len(e.turns) for e in shown])
        mine: dict[tuple[int, int], Tensor] = {}
        self.setup.model.eval()
        for piece in pieces(rows, max_tokens=self._microbatch_tokens, ranks=ranks):
            batch = collate(piece, device)
            read: list[Tensor] = []
            with torch.no_grad():
                self.setup.actor_logits(batch.ids, batch.first, read.append)
            turns = [(row.episode, t) for row in piece for t in row.turn[row.first].tolist()]
            if counts(piece):
                mine |= zip(turns, read[0].cpu(), strict=True)
        found: list[dict[int, Tensor]] = [{} for _ in shown]
        for part in ranks.everyone(mine):
            for (episode, t), state in part.items():
                found[episode][t] = state
        return [torch.stack([states[t] for t in sorted(states)]).to(device) for states in found]

    def _with_last_state(self, episode: Trajectory) -> Trajectory:
        """A cut episode with one more turn, whose prompt is the state it was cut in."""
        if not episode.truncated or episode.terminated:
            return episode
        ids = next_prompt(self.setup.processing_class, episode.turns[-1])
        # One token stands in for the action: attention is causal, so it is never read.
        after = replace(episode.turns[-1], prompt_ids=ids, action_ids=(0,), logprobs=(0.0,))
        return episode.with_turns([*episode.turns, after])


class SharedBaseline(CriticBaseline):
    """GAE over turns with V(S_t) of the shared trunk; its cadence is the actor's own.

    Every new episode is judged before the update in which head and trunk learn from it. The
    warm-up fits the head on the episodes of the actor that stands still, from the pool.
    """

    critic: SharedCritic

    def __init__(
        self,
        critic: SharedCritic,
        pool: ExperiencePool,
        cadence: Cadence,
        *,
        steps: int,
        batch_size: int,
        max_grad_norm: float,
    ) -> None:
        """``steps``, ``batch_size`` (episodes) and ``max_grad_norm``: of the warm-up."""
        super().__init__(critic, cadence)
        self.pool = pool
        self._steps, self._batch_size, self._max_grad_norm = steps, batch_size, max_grad_norm

    def learn(self, iteration: int, actor_version: int) -> dict[str, float]:
        """The head alone while it warms up; later the actor's update does it."""
        figures = {
            "critic/learning_rate": self.critic.learning_rate,
            "pool/episodes": float(len(self.pool)),
        }
        if not self.warm:
            figures["critic/loss"] = self.critic.fit(
                [e for e in self.pool.episodes if e.actor_version == actor_version],
                keyed_generator(self.cadence.seed, iteration, 1),
                steps=self._steps,
                batch_size=self._batch_size,
                max_grad_norm=self._max_grad_norm,
            )
            figures["critic/steps"] = float(self._steps)
        self.critic.forget()
        return figures

    def save(self, folder: Path, options: dict[str, Any]) -> None:
        """The head; its trunk is the actor beside it."""
        save_head(self.critic.head, folder, options)


def next_prompt(tokenizer: Any, turn: Turn) -> tuple[int, ...]:
    """The state after a turn in its plainest form: its prompt, its action, what came back."""
    reply = {"role": "assistant", "content": turn.action.text}
    messages = [*turn.messages, reply, *turn.observation]
    ids = extend_prompt(
        tokenizer,
        previous_messages=turn.messages,
        previous_ids=turn.prompt_ids,
        action_text=turn.action.text,
        action_ids=turn.action_ids,
        messages=messages,
    )
    return tuple(encode_prompt(tokenizer, messages) if ids is None else ids)


def save_head(head: ScalarHead, folder: Path, options: dict[str, Any]) -> None:
    """The head as safetensors; its trunk is the actor beside it."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous() for k, v in head.state_dict().items()}, folder / WEIGHTS)
    write_json(folder / CONFIG, options)


def load_head(folder: Path) -> SharedHead:
    """Inverse of ``save_head``. Raises UsageError when the folder holds no such head."""
    from safetensors.torch import load_file

    options = read_json(folder / CONFIG)
    if options["trunk"] != "shared":
        raise UsageError(
            f"{folder} holds a critic with a trunk of its own ({options['trunk']}), expected the "
            "head of one that shares the actor's; give the critic/ folder of such a run"
        )
    weights = load_file(folder / WEIGHTS)
    head = SharedHead(weights["linear.weight"].shape[1], detach=options["detach"])
    head.load_state_dict(weights)
    return head
