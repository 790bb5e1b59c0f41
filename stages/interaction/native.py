"""Sampling from a Hugging Face causal model: batched continuously, log-probs in the same pass.

A row's tokens depend on its prompt and its key, not on the rows beside it (up to float rounding).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.common.chat import stop_ids
from stages.common.seeding import keyed_generator
from stages.common.sharding import is_whole
from stages.interaction.batch import Asked, Batch, Seat
from stages.interaction.generation import Generation, Key, Request, Rounds, Session
from stages.interaction.network import Network, context_length, evaluating, network_kind
from stages.interaction.padded import decode_padded
from stages.interaction.replies import Sampled, prompt_ids, replies

PATIENCE = 0.2
"""Replies are given out once so large a share of the rows has ended: to read on costs a forward."""


class NativePolicy:
    """A ``Policy`` that samples from ``model``, whose weights it reads anew at every call.

    ``temperature`` is that of sampling and of the recorded log-probs (also of greedy replies).
    ``reuse``: keep keys and values from one ``generate`` to the next; by default on a CPU only,
    as memory is dear elsewhere. A session keeps those of an episode for as long as it lasts.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        temperature: float = 1.0,
        max_new_tokens: int = 96,
        reuse: bool | None = None,
    ) -> None:
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        self.model = model
        self.tokenizer = tokenizer
        self.temperature = temperature
        self.limit = max_new_tokens
        self.stops = stop_ids(tokenizer, getattr(model, "generation_config", None))
        self.context = context_length(model.config)
        self._reuse = model.device.type == "cpu" if reuse is None else reuse
        self._kinds: dict[bool, Callable[[Any], Network] | None] = {}
        self._kept: tuple[bool, NativeSession] | None = None

    def at(self, temperature: float, max_new_tokens: int | None = None) -> NativePolicy:
        """The same model sampled at another temperature, and to another limit if given."""
        other = NativePolicy(
            self.model,
            self.tokenizer,
            temperature=temperature,
            max_new_tokens=max_new_tokens or self.limit,
            reuse=self._reuse,
        )
        other._kinds = self._kinds
        return other

    def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        """One reply per request, in order."""
        kept, self._kept = self._kept, None
        with evaluating(self.model):
            network = self._network()
            if network is None:
                return self._padded(requests, greedy)
            if kept is None or kept[0] != greedy:
                kept = greedy, NativeSession(self, network, greedy)
            found = kept[1].round(requests)
        if self._reuse:
            self._kept = kept
        return found

    def session(self, *, greedy: bool = False) -> Session:
        """Decisions batched continuously; the model is in evaluation mode until it is closed."""
        with ExitStack() as stack:
            stack.enter_context(evaluating(self.model))
            network = self._network()
            if network is None:
                return Rounds(self, greedy)
            return NativeSession(self, network, greedy, closing=stack.pop_all())

    def asked(self, request: Request, prompt: Sequence[int], greedy: bool) -> Asked:
        """What is to be sampled; a row's random numbers are keyed by its own key alone."""
        limit = min(self.limit, self.context - len(prompt))
        draws = None if greedy else keyed_generator(*request.key).random(limit)
        return Asked(prompt, limit, draws)

    def _network(self) -> Network | None:
        """One with slots of its own; None for a model that has none."""
        whole = is_whole(self.model)
        if whole not in self._kinds:
            self._kinds[whole] = network_kind(self.model)
        kind = self._kinds[whole]
        return None if kind is None else kind(self.model)

    def _padded(self, requests: Sequence[Request], greedy: bool) -> list[Generation]:
        """One reply per request from a model that has no network."""
        prompts = [prompt_ids(self.tokenizer, request) for request in requests]
        answers = [Generation(prompt, overflow=True) for prompt in prompts]
        fit = [i for i, prompt in enumerate(prompts) if len(prompt) < self.context]
        if fit:
            asked = [self.asked(requests[i], prompts[i], greedy) for i in fit]
            sampled = decode_padded(self.model, asked, self.stops, self.temperature)
            shown = [prompts[i] for i in fit]
            made = replies(self.tokenizer, shown, sampled, stops=self.stops)
            for i, reply in zip(fit, made, strict=True):
                answers[i] = reply
        return answers


@dataclass(frozen=True)
class _Pending:
    """A decision under way."""

    episode: Key
    seat: Seat
    prompt: Sequence[int]


class NativeSession:
    """A ``Session`` in one batch. An episode keeps its seat until it leaves."""

    def __init__(
        self,
        policy: NativePolicy,
        network: Network,
        greedy: bool,
        *,
        closing: ExitStack | None = None,
    ) -> None:
        """``closing``: what is to be left when the session closes."""
        self._policy, self._greedy, self._closing = policy, greedy, closing
        self._batch = Batch(
            network,
            stops=policy.stops,
            temperature=policy.temperature,
            limit=policy.limit,
            greedy=greedy,
        )
        self._seats: dict[Key, Seat] = {}
        self._pending: dict[int, _Pending] = {}
        self._ready: dict[int, Generation] = {}
        self._count, self._weights = 0, -1

    def ask(self, requests: Sequence[Request]) -> list[int]:
        """Begin decisions; the numbers under which they will be answered."""
        self._drop_what_is_stale()
        numbers = list(range(self._count, self._count + len(requests)))
        self._count += len(requests)
        begun = list[tuple[Seat, Asked]]()
        for number, request in zip(numbers, requests, strict=True):
            prompt = prompt_ids(self._policy.tokenizer, request)
            if len(prompt) >= self._policy.context:
                self._ready[number] = Generation(prompt, overflow=True)
                continue
            episode = request.key[:-1]
            seat = self._seats.pop(episode, None) or self._batch.seat()
            self._pending[number] = _Pending(episode, seat, prompt)
            begun.append((seat, self._policy.asked(request, prompt, self._greedy)))
        if begun:
            seats, asked = zip(*begun, strict=True)
            self._batch.begin(seats, asked)
        return numbers

    def answers(self, least: int = 1) -> list[tuple[int, Generation]]:
        """Replies that have ended: at least so many and a fifth of the rows, or all."""
        wanted = max(least, math.ceil(PATIENCE * self._batch.held))
        ended = len(self._pending) - self._batch.going + len(self._ready)
        self._batch.run(max(wanted - ended, 0))
        self._collect()
        found, self._ready = self._ready, {}
        return sorted(found.items())

    def leave(self, episode: Key) -> None:
        """The episode asks no more: its seat is free."""
        seat = self._seats.pop(episode, None)
        if seat is not None:
            self._batch.leave(seat)

    def close(self) -> None:
        """Free what is held, and leave the model as it was."""
        del self._batch
        if self._closing is not None:
            self._closing.close()

    def round(self, requests: Sequence[Request]) -> list[Generation]:
        """Replies to these requests, in order; of other episodes nothing is kept."""
        others = self._seats.keys() - {request.key[:-1] for request in requests}
        numbers = self.ask(requests)  # before they leave: what they know may be of use
        for episode in others:
            self._batch.leave(self._seats.pop(episode))
        found = dict(self.answers(len(numbers)))
        return [found[number] for number in numbers]

    def _collect(self) -> None:
        """Replies that have ended become ready."""
        ended = [n for n, one in self._pending.items() if self._batch.ended(one.seat)]
        if not ended:
            return
        pending = [self._pending.pop(number) for number in ended]
        sampled: list[Sampled] = [self._batch.reply(one.seat) for one in pending]
        prompts = [one.prompt for one in pending]
        made = replies(self._policy.tokenizer, prompts, sampled, stops=self._policy.stops)
        self._ready |= dict(zip(ended, made, strict=True))
        for one in pending:
            if one.episode in self._seats:
                self._batch.leave(one.seat)
            else:
                self._seats[one.episode] = one.seat

    def _drop_what_is_stale(self) -> None:
        weights = sum(parameter._version for parameter in self._policy.model.parameters())
        if weights != self._weights:
            self._weights = weights
            self._batch.forget()


@dataclass(frozen=True)
class Job:
    """One batched decoding."""

    prompts: Sequence[Sequence[int]]
    limits: Sequence[int]
    """Most new tokens of each row."""
    uniforms: np.ndarray | None
    """(rows, at least max(limits)) numbers in [0, 1) for inverse-CDF sampling; None: greedy."""
    stops: Sequence[int]
    temperature: float

    def asked(self) -> list[Asked]:
        """Row by row."""
        rows = range(len(self.prompts))
        draws = [None if self.uniforms is None else self.uniforms[row] for row in rows]
        return [Asked(*row) for row in zip(self.prompts, self.limits, draws, strict=True)]


def decode(model: Any, job: Job) -> list[Sampled]:
    """Sample every row of a job to its stop token or limit."""
    kind, asked = network_kind(model), job.asked()
    if kind is None:
        return decode_padded(model, asked, job.stops, job.temperature)
    batch = Batch(
        kind(model),
        stops=job.stops,
        temperature=job.temperature,
        limit=max(job.limits),
        greedy=job.uniforms is None,
    )
    seats = [batch.seat() for _ in asked]
    batch.begin(seats, asked)
    batch.run(len(asked))
    return [batch.reply(seat) for seat in seats]
