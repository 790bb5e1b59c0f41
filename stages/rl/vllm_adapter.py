"""Rollouts by vLLM: every name of TRL's generation class in one file, with a contract test.

TRL's ``VLLMGeneration`` starts the engine (in this process, or as the client of a server), gathers
sharded weights into it, and samples from token ids. KV and prefix caching are vLLM's own. Its
kernels and its type differ from the learner's, so the learner corrects for what it sampled.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from stages.common.adapters import has_adapters, merged_copy
from stages.common.errors import RunError, UsageError
from stages.common.ranks import ALONE, Ranks
from stages.interaction.generation import Generation, Request
from stages.interaction.replies import Sampled, prompt_ids, replies

_FILLER = [0]
"""Prompt of a row that nobody reads: TRL's collective calls want as many rows of each process."""


def check_vllm(options: Any, processes: int) -> None:
    """UsageError where vLLM cannot play. ``options``: the recipe's ``rl.generation``."""
    if options.engine != "vllm":
        return
    if importlib.util.find_spec("vllm") is None:
        raise UsageError(
            "rl.generation.engine = vllm needs the package vllm, which is not installed; "
            "pip install 'aac[vllm]', or set it to native."
        )
    if not torch.cuda.is_available():
        raise UsageError(
            "rl.generation.engine = vllm needs a GPU, and this machine shows none; "
            "set it to native."
        )
    if processes % options.vllm.tensor_parallel:
        raise UsageError(
            f"rl.generation.vllm.tensor_parallel = {options.vllm.tensor_parallel} does not divide "
            f"the {processes} launched processes; launch a multiple of it, or set it to 1."
        )


def start_engine(
    options: Any, actor: Any, *, accelerator: Any, tokenizer: Any, length: int | None
) -> Any:
    """TRL's class around ``actor``, sampling by temperature only, over the whole vocabulary.

    ``options``: the recipe's ``rl.generation.vllm``; ``length``: most tokens of a sequence.
    UsageError if the server cannot be reached.
    """
    from trl.generation.vllm_generation import VLLMGeneration

    try:
        return VLLMGeneration(
            model=actor,
            accelerator=accelerator,
            processing_class=tokenizer,
            mode=options.mode,
            server_base_url=f"http://{options.host}:{options.port}",
            tensor_parallel_size=options.tensor_parallel,
            gpu_memory_utilization=options.gpu_memory_utilization,
            max_model_length=length,
            repetition_penalty=1.0,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            logprobs=0,
        )
    except OSError as error:  # of requests, of the host's name
        if options.mode != "server":
            raise
        raise UsageError(
            f"rl.generation.vllm names the server {options.host}:{options.port}, which does not "
            f"answer ({error}); start vllm serve there, or set mode to colocate."
        ) from None


class VllmEngine:
    """TRL's class as a function from prompts to samples, on any number of processes."""

    def __init__(self, trl: Any, actor: Any, stops: Sequence[int], ranks: Ranks = ALONE) -> None:
        """``trl``: a ``VLLMGeneration``. ``stops``: the tokens that end a reply, and no others."""
        self.stops = stops
        self._trl, self._actor = trl, actor
        trl.generation_kwargs = {"stop_token_ids": list(stops), "ignore_eos": True}
        collective = trl.mode == "server" or trl.tensor_parallel_size > 1
        self._ranks = ranks if collective else ALONE

    def synchronise(self) -> None:
        """The engine's weights become the actor's; all processes at once."""
        # TRL would merge adapters into the base and take them out again, which rounds the base.
        adapted = has_adapters(self._actor)
        self._trl.model = merged_copy(self._actor) if adapted else self._actor
        try:
            with torch.no_grad():
                self._trl.sync_weights()
        finally:
            self._trl.model = self._actor

    def sample(
        self, prompts: Sequence[list[int]], limits: Sequence[int], temperature: float
    ) -> list[Sampled]:
        """One sample per prompt, in order, to a stop token or to its limit of new tokens.

        Greedy at temperature 0. RunError if the engine does not give back what it was asked for.
        """
        done = self._answered(prompts, [(temperature, limit) for limit in limits]) or {}
        return [done[i] for i in range(len(prompts))]

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Inside, collective calls are made by all processes at once.

        A process that has come to the end goes on with empty calls until all have.
        """
        yield
        while self._answered([], []) is not None:
            pass

    def _answered(
        self, prompts: Sequence[list[int]], wanted: Sequence[tuple[float, int]]
    ) -> dict[int, Sampled] | None:
        """Samples by row, where (temperature, limit) of all rows may differ; None: nobody asks."""
        everyones = {kind for own in self._ranks.everyone(set(wanted)) for kind in own}
        done: dict[int, Sampled] = {}
        for kind in sorted(everyones):
            rows = [i for i, own in enumerate(wanted) if own == kind]
            most = max(self._ranks.everyone(len(rows)))
            asked = [prompts[i] for i in rows] + [_FILLER] * (most - len(rows))
            done |= zip(rows, self._called(asked, *kind), strict=False)
        return done if everyones else None

    def _called(self, prompts: list[list[int]], temperature: float, limit: int) -> list[Sampled]:
        self._trl.temperature, self._trl.max_completion_length = temperature, limit
        seen, ids, logprobs, places = self._trl.generate(
            prompts=prompts, images=None, num_generations=1
        )
        if [list(prompt) for prompt in seen] != prompts or len(ids) != len(prompts):
            raise RunError("vLLM answered other prompts than it was asked")
        if not all(ids):
            raise RunError("vLLM gave back a reply without a token")
        rows = zip(ids, logprobs, places, strict=True)
        return [Sampled(list(row), list(map(_own, row, lp, at))) for row, lp, at in rows]


def _own(token: int, logprobs: Sequence[float | None], ids: Sequence[int]) -> float:
    """The sampled token's log-prob among those that are given of its place."""
    found = dict(zip(ids, logprobs, strict=True)).get(token)
    if found is None:
        raise RunError(f"vLLM sampled token {token} and gave no log-prob of it")
    return found


class VllmPolicy:
    """A ``Policy`` that samples from the engine's weights, whatever they are.

    Random numbers are vLLM's own: they are not keyed by episode and turn.
    """

    def __init__(
        self,
        engine: VllmEngine,
        tokenizer: Any,
        *,
        context: int,
        temperature: float = 1.0,
        max_new_tokens: int = 96,
    ) -> None:
        """``context``: most tokens a prompt and its reply may have together."""
        self._engine, self._tokenizer, self._context = engine, tokenizer, context
        self._temperature, self._limit = temperature, max_new_tokens

    def at(self, temperature: float, max_new_tokens: int | None = None) -> VllmPolicy:
        """The same engine sampled at another temperature, and to another limit if given."""
        return VllmPolicy(
            self._engine,
            self._tokenizer,
            context=self._context,
            temperature=temperature,
            max_new_tokens=max_new_tokens or self._limit,
        )

    def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        """One reply per request, in order; log-probs of greedy ones are at temperature 1."""
        prompts = [prompt_ids(self._tokenizer, request) for request in requests]
        answers = [Generation(prompt, overflow=True) for prompt in prompts]
        rows = [i for i, prompt in enumerate(prompts) if len(prompt) < self._context]
        asked = [prompts[i] for i in rows]
        limits = [min(self._limit, self._context - len(prompt)) for prompt in asked]
        sampled = self._engine.sample(asked, limits, 0.0 if greedy else self._temperature)
        made = replies(self._tokenizer, asked, sampled, stops=self._engine.stops)
        for i, reply in zip(rows, made, strict=True):
            answers[i] = reply
        return answers


class VllmSampler:
    """Gives the policy that plays an actor version; the engine's weights follow the actor's."""

    def __init__(
        self,
        engine: VllmEngine,
        policy: VllmPolicy,
        timed: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """``timed``: wraps each synchronisation."""
        self.playing = engine.in_step
        self._engine, self._policy, self._timed = engine, policy, timed
        self._version: int | None = None

    def policy(self, version: int) -> VllmPolicy:
        """The policy of actor version ``version``; all processes ask at once."""
        if version != self._version:
            with self._timed():
                self._engine.synchronise()
            self._version = version
        return self._policy
