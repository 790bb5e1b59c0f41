"""Sampling replies: the rollout engine, transformers' ``generate``, and a plain loop of forwards.

All sample the same number of tokens in every row after the same prompts. The plain loop knows
beforehand when each row ends and does nothing but forwards and draws: it is the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.bench.measure import interleaved, middle, ratios, require_same_work
from stages.bench.models import SHAPES, random_actor
from stages.bench.results import Bound, Result, Section
from stages.bench.setting import Setting, Tell
from stages.bench.worlds import Prompts
from stages.interaction.generation import Request

Ids = list[int]


@dataclass(frozen=True)
class Work:
    """One batch of replies."""

    size: str
    batch: int
    aim: float
    tokens: int = 32
    """Most of a reply."""
    ragged: bool = False
    """Replies stop by themselves, after a third of ``tokens`` in the mean."""

    @property
    def other(self) -> str:
        """Who is compared with: the loop where it has what it needs to be the limit."""
        return "plain loop" if self.ragged else "generate()"


WORKS = (
    Work("0.15 M", 16, 1.5),
    Work("0.15 M", 64, 1.5),
    Work("1.2 M", 16, 1.5),
    Work("1.2 M", 64, 1.5),
    Work("135 M", 16, 1.2, tokens=16),
    Work("0.15 M", 64, 0.8, ragged=True),
    Work("1.2 M", 64, 0.8, ragged=True),
)
QUICK = (Work("0.15 M", 4, 1.5, tokens=8), Work("0.15 M", 4, 0.8, tokens=8, ragged=True))

NOTE = (
    "Replies of up to 32 tokens (16 at 135 M) to prompts of 24 to 64, random Llamas in float32 "
    "whose distribution is sampled as it is. The engine goes from messages to tokens, log-probs and"
    " text; `generate()` and the plain loop begin with padded tensors and give tokens alone. The "
    "loop knows beforehand when each row ends, drops it there, and does nothing but forwards and "
    "draws: it is the limit. Ragged replies end at random, after a third of the longest in the "
    "mean. Proved: same prompts, same number of tokens in every row."
)


def measure(setting: Setting, tell: Tell) -> Section:
    """The engine against both."""
    results = []
    for work in QUICK if setting.quick else WORKS:
        tell(f"{work.size} weights, batch of {work.batch}, against {work.other}")
        results.append(_compare(setting, work))
    return Section("Rollouts", NOTE, "ratio", results)


def _compare(setting: Setting, work: Work) -> Result:
    folder = setting.fresh(f"rollouts-{work.size}-{work.batch}-{work.ragged}")
    prepare(folder, work)
    name, entry = work.other, "Loop" if work.ragged else "Generate"
    with setting.side("stages.bench.rollouts:Ours", folder=folder, work=work) as ours:
        ours()
        given = {"folder": folder, "rows": ours.ask("prompts"), "lengths": ours.ask("lengths")}
        with setting.side(f"stages.bench.rollouts:{entry}", **given) as theirs:
            taken = interleaved({"aac": ours, name: theirs}, setting.repeats)
    proof = require_same_work(taken, ("tokens",))
    return Result(
        f"{work.size} weights, batch of {work.batch}{', ragged' if work.ragged else ''}",
        {side: proof["tokens"] / middle(times) for side, times in taken.items()},
        "tokens/s",
        ratios(taken[name], taken["aac"]),
        aim=Bound(work.aim),
        proof=proof,
    )


def prepare(folder: Path, work: Work) -> None:
    """The actor on disk."""
    chance = 3.0 / work.tokens if work.ragged else 0.0
    random_actor(SHAPES[work.size], folder, stop_chance=chance)


class Ours:
    """The rollout engine, from messages to tokens, log-probs and text."""

    def __init__(self, folder: Path, work: Work) -> None:
        from stages.common.models import load_actor, load_tokenizer
        from stages.common.seeding import set_threads
        from stages.interaction.native import NativePolicy

        set_threads(None)
        self.tokenizer = load_tokenizer(folder)
        model = load_actor(folder)
        limit = work.tokens  # nothing of the batch before is to be known again
        self.policy = NativePolicy(model, self.tokenizer, max_new_tokens=limit, reuse=False)
        self.requests = [
            Request([{"role": "user", "content": text}], (), (0, 0, number, 0))
            for number, text in enumerate(prompts(work.batch))
        ]

    def __call__(self) -> dict[str, Any]:
        """One batch; the same each time, as its random numbers are keyed."""
        self.replies = self.policy.generate(self.requests)
        return {"tokens": sum(self.lengths())}

    def lengths(self) -> list[int]:
        """Tokens of each row of the latest batch."""
        return [len(reply.ids) for reply in self.replies]

    def prompts(self) -> list[Ids]:
        """Token ids of each row's prompt."""
        return [list(reply.prompt_ids) for reply in self.replies]


class Generate:
    """``model.generate`` on tensors that are ready, for rows that end where they are told to."""

    def __init__(self, folder: Path, rows: Sequence[Ids], lengths: Sequence[int]) -> None:
        from transformers import GenerationConfig

        self.model, self.ids, self.mask = _loaded(folder, rows)
        self.lengths = torch.tensor(lengths)
        self.settings = GenerationConfig(
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max(lengths),
            pad_token_id=0,
        )

    def __call__(self) -> dict[str, Any]:
        """One batch."""
        width = self.ids.shape[1]
        over = _EndAt(width + self.lengths)
        made = self.model.generate(
            input_ids=self.ids,
            attention_mask=self.mask,
            generation_config=self.settings,
            stopping_criteria=[over],
        )
        steps = made.shape[1] - width
        return {"tokens": int(self.lengths.clamp(max=steps).sum())}


class _EndAt:
    """Says of each row whether it is as long as it is to become."""

    def __init__(self, ends: Tensor) -> None:
        self.ends = ends

    def __call__(self, ids: Tensor, _: Any, **__: Any) -> Tensor:
        return ids.shape[1] >= self.ends


class Loop:
    """Forwards with a cache and draws; rows leave the batch at their end."""

    def __init__(self, folder: Path, rows: Sequence[Ids], lengths: Sequence[int]) -> None:
        self.model, self.ids, self.mask = _loaded(folder, rows)
        self.lengths = lengths

    def __call__(self) -> dict[str, Any]:
        """One batch."""
        return {"tokens": Decoding(self.model, self.ids, self.mask).run(self.lengths)}


class Decoding:
    """A batch whose prompts have been read; no draw has been made yet."""

    @torch.no_grad()
    def __init__(self, model: Any, ids: Tensor, mask: Tensor) -> None:
        """``ids``, ``mask``: (B, T), padded on the left."""
        from transformers import DynamicCache

        self.model, self.mask = model, mask
        self.cache: Any = DynamicCache(config=model.config)
        self.positions = (mask.cumsum(1) - 1).clamp(min=0)
        self._read(ids)

    @torch.no_grad()
    def run(self, lengths: Sequence[int]) -> int:
        """Draw as many tokens for each row; how many that are."""
        left, tokens = torch.tensor(lengths), 0
        while True:
            new = torch.multinomial(self.logits.softmax(-1), 1)
            tokens, left = tokens + len(new), left - 1
            if not left.all():
                new, left = self._leave(new, left)
            if not len(left):
                return tokens
            self.mask = torch.cat([self.mask, self.mask.new_ones(len(new), 1)], 1)
            self.positions = self.positions[:, -1:] + 1
            self._read(new)

    def _leave(self, new: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
        going = left.nonzero().squeeze(1)
        self.cache.batch_select_indices(going)
        self.mask, self.positions = self.mask[going], self.positions[going]
        return new[going], left[going]

    def _read(self, new: Tensor) -> None:
        output = self.model(
            input_ids=new,
            attention_mask=self.mask,
            position_ids=self.positions,
            past_key_values=self.cache,
            logits_to_keep=1,
        )
        self.logits: Tensor = output.logits[:, -1]


def prompts(count: int) -> list[str]:
    """Random words."""
    world = Prompts()
    return [world.reset(seed)[0] for seed in range(count)]


def left_padded(rows: Sequence[Ids]) -> tuple[Tensor, Tensor]:
    """(ids, mask), both (B, longest)."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


def _loaded(folder: Path, rows: Sequence[Ids]) -> tuple[Any, Tensor, Tensor]:
    """The model as transformers loads it, and the prompts."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    model.generation_config.eos_token_id = None
    return model, *left_padded(rows)
