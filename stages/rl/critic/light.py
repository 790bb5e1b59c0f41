"""The light trunk: hashed words pooled per exchange, recurrent over turns.

Made for two cores: token-level critics over whole transcripts cost more than the actor there.
Its "tokenizer" is a stable hash of lower-cased words, so it needs no files and shares nothing
with the actor. One pass over an episode reads c_0 … c_T.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from stages.rl.critic.views import View

BUCKETS = 4096
NUMBERS = 7
_WORD = re.compile(r"[A-Za-z]+|\d+|[<>=*]+")


def words(text: str) -> list[str]:
    """Lower-cased words, numbers and comparison signs of a text."""
    return _WORD.findall(text.lower())


@lru_cache(maxsize=2**16)
def bucket(word: str) -> int:
    """Stable bucket of a word in [0, BUCKETS); ``hash()`` would differ between processes."""
    return zlib.crc32(word.encode()) % BUCKETS


@dataclass(frozen=True)
class Bags:
    """Several texts as one bag of buckets each: flat ids, and how many each text has of them."""

    ids: Tensor
    lengths: Tensor

    def __len__(self) -> int:
        """How many texts."""
        return self.lengths.shape[0]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Bags:
        """One bag per text."""
        bags = [[bucket(w) for w in words(t)] for t in texts]
        ids = torch.tensor([i for b in bags for i in b], dtype=torch.long)
        return cls(ids, torch.tensor([len(b) for b in bags]))


class Texts(Protocol):
    """Several texts as numbers, of a kind that the trunk which made them can embed."""

    def __len__(self) -> int:
        """How many texts."""
        ...


@dataclass(frozen=True)
class Episode:
    """An episode's views as numbers, made once and kept with the episode in the pool."""

    goal: Texts
    exchanges: Texts
    state: Texts
    privileged: Texts
    actions: Texts
    numbers: Tensor
    remembers: bool
    """Whether the views hold the history."""

    @property
    def views(self) -> int:
        """T + 1."""
        return self.numbers.shape[0]


class LightTrunk(nn.Module):
    """GRU over exchanges; the view's other parts join in one hidden layer.

    forward: list of ``Episode`` -> (sum of views, width) features, episodes one after the other.
    """

    def __init__(self, hidden_size: int = 96, *, actions: bool = False) -> None:
        """``actions``: the views hold a proposed action that is to be judged."""
        super().__init__()
        self.width = hidden_size
        self._actions = actions
        words_alone = nn.EmbeddingBag(BUCKETS, hidden_size, mode="mean")
        nn.init.normal_(words_alone.weight, std=0.3)
        self.embed: nn.Module = words_alone
        self.recur = nn.GRU(hidden_size, hidden_size, batch_first=True)
        parts = 7 if actions else 5
        self.join = nn.Sequential(nn.Linear(parts * hidden_size + NUMBERS, hidden_size), nn.GELU())

    def prepare(self, views: Sequence[View]) -> Episode:
        """Turn the T + 1 views of one episode into numbers."""
        last = views[-1]
        return Episode(
            goal=self._texts([last.goal]),
            exchanges=self._texts([f"{e.action} {e.result}" for e in last.history] or [""]),
            state=self._texts([f"{v.state} {v.checklist}" for v in views]),
            privileged=self._facts([v.privileged for v in views]),
            actions=self._texts([v.action for v in views]),
            numbers=torch.tensor([_numbers(v) for v in views]),
            remembers=len(last.history) == len(views) - 1,
        )

    def _texts(self, texts: Sequence[str]) -> Texts:
        """What ``_embed`` reads of texts."""
        return Bags.of(texts)

    def _facts(self, texts: Sequence[str]) -> Texts:
        """The same of privileged facts."""
        return Bags.of(texts)

    def forward(self, episodes: Sequence[Episode]) -> Tensor:
        """Features of all views of the episodes, (sum of views, width)."""
        counts = torch.tensor([e.views for e in episodes])
        names = ["goal", "exchanges", "state", "privileged", *["actions"] * self._actions]
        parts = [[getattr(e, name) for e in episodes] for name in names]
        # All texts in one look-up: its gradient is as large as the table, however many they are.
        rows = self._embed([texts for part in parts for texts in part])
        sizes = [sum(map(len, part)) for part in parts]
        goals, exchanges, state, facts, *proposed = rows.split(sizes)
        seen = self._histories(episodes, counts, goals, exchanges)
        goal = torch.repeat_interleave(goals, counts, dim=0)
        numbers = torch.cat([e.numbers for e in episodes])
        # The product lets the head see how far the history agrees with the privileged facts.
        known = [goal, seen, state, facts, seen * facts]
        known += [part for p in proposed for part in (p, p * facts)]
        features: Tensor = self.join(torch.cat([*known, numbers], dim=-1))
        return features

    def _embed(self, texts: Sequence[Any]) -> Tensor:
        """(sum of texts, width)."""
        lengths = torch.cat([t.lengths for t in texts])
        ids = torch.cat([t.ids for t in texts])
        embedded: Tensor = self.embed(ids, lengths.cumsum(0) - lengths)
        return embedded

    def _histories(
        self, episodes: Sequence[Episode], counts: Tensor, goals: Tensor, exchanges: Tensor
    ) -> Tensor:
        """Memory before each action: row t has read exchanges 0 … t−1 and nothing later."""
        sizes = torch.tensor([len(e.exchanges) for e in episodes])
        ends = sizes.cumsum(0)[:, None]
        # Padding repeats the last exchange: nobody looks at what is remembered after it.
        places = torch.min(ends - sizes[:, None] + torch.arange(int(sizes.max())), ends - 1)
        read = exchanges.index_select(0, places.flatten()).unflatten(0, places.shape)
        hidden, _ = self.recur(read, goals[None])
        memory = torch.cat([goals[:, None], hidden], dim=1)
        # Of each view its episode, and its turn where the views hold the history, else 0.
        owner = torch.repeat_interleave(torch.arange(len(episodes)), counts)
        turn = torch.arange(len(owner)) - (counts.cumsum(0) - counts)[owner]
        turn = turn * torch.tensor([e.remembers for e in episodes])[owner]
        return memory.flatten(0, 1).index_select(0, owner * memory.shape[1] + turn)


def _numbers(view: View) -> list[float]:
    return [
        view.turn / 10,
        view.turns_left / 10,
        view.tokens_left / 1000,
        *agreement(view),
        1.0 if view.history and "error" in view.history[-1].result.lower() else 0.0,
    ]


def agreement(view: View) -> list[float]:
    """Of the words of the facts, which share the newest action has, and which all that was done and
    seen; of those of the goal, which share the newest action has. A proposed action is the newest.
    """
    facts, goal = set(words(view.privileged)), set(words(view.goal))
    acted = view.action or (view.history[-1].action if view.history else "")
    last = set(words(acted))
    seen = {w for e in view.history for w in words(f"{e.action} {e.result}")}
    return [_share(facts, last), _share(facts, seen), _share(goal, last)]


def _share(wanted: set[str], have: set[str]) -> float:
    return len(wanted & have) / len(wanted) if wanted else 0.0
