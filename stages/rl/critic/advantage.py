"""Kind ``advantage``: the log-ratio of a small language model, read as an advantage.

    A(c_t, a_t) = (1/L_t)·Σ_l [log π_θ(a_{t,l} | c_t, a_{t,<l}) − log π_0(a_{t,l} | c_t, a_{t,<l})]

The model reads the critic's view c_t as text, privileged facts included, and the action's L_t
tokens, both in its own tokenizer. π_0 is its initial copy, frozen, so that A starts at 0. It is
fitted by Bradley-Terry on pairs of finished episodes, compared within a task, else within a kind
of task (see ``contrast``):

    −log σ(Σ_t A(good episode) − Σ_t A(bad episode))

SWEET-RL, Zhou et al. 2025, arXiv:2503.15478, section 4: stronger there than a value head on the
same model; without 1/L_t it fell apart. A is used as the advantage as it is (whitened with all
others): there is no value, hence no GAE and no explained variance.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from stages.common.errors import UsageError
from stages.common.files import read_json, write_json
from stages.common.logprobs import at_actions, log_softmax
from stages.common.models import check_vocabulary, load_actor
from stages.common.moments import load_optimizer
from stages.common.seeding import keyed_generator
from stages.interaction.trajectory import Trajectory
from stages.rl.baselines import Judgement
from stages.rl.critic.cache import EpisodeCache
from stages.rl.critic.contrast import Contrasts, Outcome, auc, preference_loss
from stages.rl.critic.encoder import looks_only_back
from stages.rl.critic.learner import FitPlan, build_optimizer, refuse_non_finite
from stages.rl.critic.text import TokenizerReader, view_ids, view_texts
from stages.rl.critic.trunks import CONFIG
from stages.rl.critic.views import View, ViewParts, critic_views
from stages.rl.pool import ExperiencePool

ADVANTAGE_SAMPLES = 7
"""Place in random keys, so that no two uses share numbers."""
PROPOSED = "proposed: "
MODEL, REFERENCE = "model", "reference"

TokenRow = tuple[list[int], list[int]]
"""(context, action) token ids of one turn."""


def turn_logprobs(model: Any, rows: Sequence[TokenRow], *, length_normalised: bool) -> Tensor:
    """(N,) log π(action | context), per token (a mean) or whole (a sum); float32.

    Rows are padded on the right, where a causal model's actions never look.
    """
    ids = pad_sequence([torch.tensor([*c, *a]) for c, a in rows], batch_first=True)
    masks = [torch.tensor([False] * len(c) + [True] * len(a)) for c, a in rows]
    mask = pad_sequence(masks, batch_first=True)
    with at_actions(model.get_output_embeddings(), mask):
        logits = model(input_ids=ids, use_cache=False).logits[0]
    chosen = log_softmax(logits).gather(-1, ids[mask][:, None]).squeeze(-1)
    actions = chosen.split([len(a) for _, a in rows])
    return torch.stack([a.mean() if length_normalised else a.sum() for a in actions])


class LogRatio(nn.Module):
    """π_θ and its frozen beginning π_0, with the tokenizer that both read by."""

    def __init__(
        self, model: nn.Module, tokenizer: Any, *, max_tokens: int, length_normalised: bool = True
    ) -> None:
        super().__init__()
        self.model, self.tokenizer = model.eval(), tokenizer
        self._reader = TokenizerReader(tokenizer)
        self.reference = copy.deepcopy(model).eval().requires_grad_(False)
        self.max_tokens, self.length_normalised = max_tokens, length_normalised

    def rows(self, views: Sequence[View], actions: Sequence[str]) -> list[TokenRow]:
        """Token ids of each view and action; the view's history gives way to its budget."""
        return [self._row(view, action) for view, action in zip(views, actions, strict=True)]

    def logprobs(self, rows: Sequence[TokenRow]) -> Tensor:
        """(N,) of π_θ, with gradient."""
        return turn_logprobs(self.model, rows, length_normalised=self.length_normalised)

    def reference_logprobs(self, rows: Sequence[TokenRow]) -> Tensor:
        """(N,) of π_0."""
        with torch.no_grad():
            return turn_logprobs(self.reference, rows, length_normalised=self.length_normalised)

    def _row(self, view: View, action: str) -> TokenRow:
        spoken = self._ids(action)
        end = self.tokenizer.eos_token_id
        if end is not None:
            spoken.append(end)  # where an action stops is part of it
        config: Any = self.model.config
        limit = getattr(config, "max_position_embeddings", None) or self.max_tokens + len(spoken)
        asked = self._ids(PROPOSED)
        room = min(self.max_tokens, limit - len(spoken)) - len(asked)
        texts = view_texts(view)
        ids = dict(zip(texts, self._reader.ids(texts), strict=True))
        return [*view_ids(view, ids, room, frame=len(asked)), *asked], spoken

    def _ids(self, text: str) -> list[int]:
        (ids,) = self._reader.ids([text])
        return ids


def load_log_ratio(folder: str | Path, *, max_tokens: int, length_normalised: bool) -> LogRatio:
    """From a causal language model's folder. Raises UsageError for anything else."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = load_actor(folder, dtype="float32")
    except (OSError, ValueError, UsageError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"rl.critic.trunk is {folder}, from which no language model loads ({reason}); kind "
            "advantage takes actor, or the folder of a causal language model"
        ) from None
    check_vocabulary(model, tokenizer, folder)
    if not looks_only_back(model.base_model):
        raise UsageError(
            f"rl.critic.trunk is {folder}, which reads in both directions and so gives an action "
            "no probability; kind advantage takes actor, or a causal language model"
        )
    return LogRatio(model, tokenizer, max_tokens=max_tokens, length_normalised=length_normalised)


class AdvantageLearner:
    """A(c_t, a_t): own optimizer, rate and number of steps, on pairs of pooled episodes."""

    def __init__(
        self,
        network: LogRatio,
        *,
        plan: FitPlan,
        parts: ViewParts,
        turn_rewards: Callable[[Trajectory], list[float]],
    ) -> None:
        self.network, self.plan = network, plan
        self.optimizer = build_optimizer(plan, network.model.parameters())
        self._turn_rewards = turn_rewards
        self._rows = EpisodeCache(
            lambda e: network.rows(critic_views(e, parts)[:-1], [t.action.text for t in e.turns])
        )
        self._reference = EpisodeCache(lambda e: network.reference_logprobs(self._rows(e)))

    def advantages(self, episode: Trajectory) -> Tensor:
        """(T,) A of every turn, with gradient; π_0's share is computed once per episode."""
        return self.network.logprobs(self._rows(episode)) - self._reference(episode)

    def fit(self, episodes: Sequence[Trajectory], rng: np.random.Generator) -> dict[str, float]:
        """``plan.steps`` steps on pairs of finished episodes. Metrics."""
        finished = [e for e in episodes if e.terminated]
        contrasts = Contrasts([self._outcome(e) for e in finished])
        metrics = {"critic/pairs": float(len(contrasts))}
        if len(contrasts):
            losses = [self._step(finished, contrasts, rng) for _ in range(self.plan.steps)]
            metrics["critic/loss"] = sum(losses) / len(losses)
        self._rows.forget(episodes)
        self._reference.forget(episodes)
        return metrics

    def ranks(self, episodes: Sequence[Trajectory]) -> dict[str, float]:
        """AUC of ΣA on episodes it has not been fitted to: above against below the mean return."""
        returns = np.array([self._outcome(e).value for e in episodes])
        with torch.no_grad():
            sums = torch.cat([self._sums([e]) for e in episodes])
        above = torch.tensor(returns > returns.mean())
        area = auc(sums[above], sums[~above])
        return {} if np.isnan(area) else {"critic/auc": area}

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on; π_0 comes from its folder again."""
        model = self.network.model.state_dict()
        return {"model": model, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.network.model.load_state_dict(state["model"])
        load_optimizer(self.optimizer, state["optimizer"], "critic's")

    def _sums(self, episodes: Sequence[Trajectory]) -> Tensor:
        """(B,) ΣA of each episode, in one forward, with gradient."""
        flat = self.network.logprobs([row for e in episodes for row in self._rows(e)])
        parts = flat.split([len(e.turns) for e in episodes])
        references = [self._reference(e) for e in episodes]
        return torch.stack([(p - r).sum() for p, r in zip(parts, references, strict=True)])

    def _outcome(self, episode: Trajectory) -> Outcome:
        rewards = self._turn_rewards(episode)
        value = sum(r * self.plan.discount**t for t, r in enumerate(rewards))
        return Outcome(value, (("task", episode.task_id), ("kind", episode.kind)))

    def _step(
        self, episodes: Sequence[Trajectory], contrasts: Contrasts, rng: np.random.Generator
    ) -> float:
        """One optimizer step; gradients are added up pair by pair, which bounds the memory."""
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for good, bad in contrasts.draw(self.plan.batch_size, rng):
            sums = self._sums([episodes[good], episodes[bad]])
            loss = preference_loss(sums[:1], sums[1:]).sum() / self.plan.batch_size
            loss.backward()
            total += float(loss.detach())
        parameters = self.network.model.parameters()
        refuse_non_finite(nn.utils.clip_grad_norm_(parameters, self.plan.max_grad_norm))
        self.optimizer.step()
        return total


@dataclass(frozen=True)
class AdvantageCadence:
    """When the advantage model learns, and on how old episodes."""

    seed: int
    max_age: int
    warm_up_iterations: int


class AdvantageBaseline:
    """The model's A as the advantage; no value. The warm-up lasts its number of iterations."""

    gives_values = False

    def __init__(
        self, critic: AdvantageLearner, pool: ExperiencePool, cadence: AdvantageCadence
    ) -> None:
        self.critic, self.pool, self.cadence = critic, pool, cadence
        self.heard = 0

    @property
    def ready(self) -> bool:
        """True after the warm-up: until something is learnt every A is 0."""
        return self.heard > self.cadence.warm_up_iterations

    def listen(self, episodes: Sequence[Trajectory]) -> dict[str, float]:
        """How well it ranks new episodes that it has not been fitted to."""
        self.heard += 1
        return self.critic.ranks(episodes) | {"critic/warm": float(self.ready)}

    def judge(self, episodes: Sequence[Trajectory]) -> Judgement:
        """A of every turn, which is its review, too."""
        with torch.no_grad():
            rows = [self.critic.advantages(e) for e in episodes]
        advantages = pad_sequence(rows, batch_first=True)
        turns = [torch.ones(len(r), dtype=torch.bool) for r in rows]
        mask = pad_sequence(turns, batch_first=True)
        return Judgement(advantages, torch.zeros_like(advantages), advantages, mask)

    def learn(self, iteration: int, actor_version: int) -> dict[str, float]:
        """Its own number of steps on pairs of pooled episodes of bounded age."""
        oldest = actor_version - self.cadence.max_age
        young = [e for e in self.pool.episodes if e.actor_version >= oldest]
        rng = keyed_generator(self.cadence.seed, iteration, ADVANTAGE_SAMPLES)
        return self.critic.fit(young, rng) | {
            "critic/steps": float(self.critic.plan.steps),
            "critic/learning_rate": self.critic.plan.learning_rate,
            "pool/episodes": float(len(self.pool)),
        }

    def state_dict(self) -> dict[str, Any]:
        """The critic's state and where the warm-up stands."""
        return {"critic": self.critic.state_dict(), "heard": self.heard}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.critic.load_state_dict(state["critic"])
        self.heard = state["heard"]

    def save(self, folder: Path, options: dict[str, Any]) -> None:
        """π_θ and π_0 as plain Hugging Face folders, and the options that rebuild A."""
        network = self.critic.network
        for name, model in ((MODEL, network.model), (REFERENCE, network.reference)):
            saved: Any = model
            saved.save_pretrained(folder / name)
            network.tokenizer.save_pretrained(folder / name)
        write_json(folder / CONFIG, options)


def load_advantage(folder: Path) -> tuple[LogRatio, dict[str, Any]]:
    """Inverse of ``AdvantageBaseline.save``. Raises UsageError when the folder holds none."""
    if not (folder / CONFIG).is_file() or not (folder / MODEL).is_dir():
        raise UsageError(
            f"{folder} holds no advantage critic; give the critic/ folder of a run of that kind"
        )
    options = read_json(folder / CONFIG)
    network = load_log_ratio(
        folder / MODEL,
        max_tokens=options["view"]["max_tokens"],
        length_normalised=options["length_normalised"],
    )
    network.reference = load_actor(folder / REFERENCE, dtype="float32").requires_grad_(False)
    return network, options
