"""Networks that decode: ids in, logits of the last position out, keys and values in slots.

``network_kind`` finds the fastest that says what the model itself says; it is tried out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from stages.common.sharding import is_whole
from stages.interaction import llama
from stages.interaction.slots import Slots

NO_LIMIT = 2**31
"""Context of a model that sets none."""


class Network(Protocol):
    """A model over slots of its own. Who calls it says afterwards how long the rows now are."""

    slots: Slots

    def guard(self) -> AbstractContextManager[Any]:
        """Under which it is to be called."""
        ...

    def extend(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> Tensor:
        """(rows, vocabulary) logits after more tokens of these slots."""
        ...

    def step(self, ids: Tensor) -> Tensor:
        """(n, vocabulary) logits after one more token (n,) of the first n slots."""
        ...


class AnyNetwork:
    """transformers' own forward, for every model whose layers keep keys and values alone."""

    guard = torch.no_grad  # not inference_mode: what ZeRO-3 gathers inside is trained on later

    def __init__(self, model: Any) -> None:
        self.slots = Slots(model.device)
        self._model = model
        config = getattr(model.config, "text_config", model.config)
        self._window = getattr(config, "sliding_window", None)
        kinds = set(getattr(config, "layer_types", None) or ())
        self._mixed = "sliding_attention" in kinds and len(kinds) > 1
        self._cache_name, _ = cache_name(model)
        layers = DynamicCache(config=model.config).layers
        self._view = _View(self.slots, len(layers))

    def extend(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> Tensor:
        """(rows, vocabulary) logits after more tokens of these slots."""
        ids, starts = left_padded(tokens)
        past = self.slots.length[list(rows)]
        columns = np.arange(ids.shape[1]) - starts[:, None] + past[:, None]
        real = np.arange(ids.shape[1]) >= starts[:, None]
        index = torch.as_tensor(rows, device=self.slots.device)
        return self._forward(ids, columns, real, index)

    def step(self, ids: Tensor) -> Tensor:
        """(n, vocabulary) logits after one more token (n,) of the first n slots."""
        columns = self.slots.length[: len(ids), None]
        real = np.ones_like(columns, dtype=bool)
        return self._forward(ids.numpy(force=True)[:, None], columns, real, slice(0, len(ids)))

    def _forward(
        self, ids: np.ndarray, columns: np.ndarray, real: np.ndarray, rows: Tensor | slice
    ) -> Tensor:
        """All (rows, tokens); only ``real`` tokens are kept, at their ``columns``."""
        device = self.slots.device
        width = int(columns.max()) + 1
        place = torch.as_tensor(np.maximum(columns, 0), device=device)
        self._view.point(rows, place, torch.as_tensor(real, device=device), width)
        output = self._model(
            input_ids=torch.as_tensor(ids, device=device),
            attention_mask=self._masks(place, width),
            position_ids=place,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: self._view},
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def _masks(self, place: Tensor, width: int) -> Any:
        """Additive, (rows, 1, tokens, columns): a token sees its row's columns up to its own, of
        those the last few where layers have a window."""
        span = torch.arange(width, device=place.device)
        seen = span <= place[:, None, :, None]
        if not self._window:
            return self._bias(seen)
        near = seen & (span > place[:, None, :, None] - self._window)
        if not self._mixed:
            return self._bias(near)
        return {"full_attention": self._bias(seen), "sliding_attention": self._bias(near)}

    def _bias(self, seen: Tensor) -> Tensor:
        bias = torch.zeros(seen.shape, dtype=self._model.dtype, device=seen.device)
        return bias.masked_fill_(~seen, torch.finfo(bias.dtype).min)


class _View(Cache):
    """What transformers' layers take for their cache: some slots for the length of a forward."""

    def __init__(self, slots: Slots, layers: int) -> None:
        self._slots = slots
        super().__init__(layers=[_ViewLayer(self, number) for number in range(layers)])

    def point(self, rows: Tensor | slice, place: Tensor, real: Tensor, width: int) -> None:
        """At these slots, for tokens that go to columns ``place`` where ``real``."""
        slots = torch.arange(self._slots.count, device=place.device)[rows]
        self.rows, self.real, self.width = rows, real, width
        self._at = slots[:, None].expand_as(place)[real], place[real]
        self._places: dict[int, Tensor] = {}

    def update_layer(self, number: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new states (rows, heads, tokens, size); all that the rows now hold."""
        heads = keys.shape[1]
        if heads not in self._places:
            self._places[heads] = self._slots.places(*self._at, heads)
        new = [states.transpose(1, 2)[self.real] for states in (keys, values)]
        self._slots.write(number, new[0], new[1], self._places[heads])
        held = self._slots.keys[number], self._slots.values[number]
        found = [buffer[self.rows][:, :, : self.width] for buffer in held]
        return found[0], found[1]


class _ViewLayer(DynamicLayer):
    def __init__(self, view: _View, number: int) -> None:
        super().__init__()
        self._whole, self._number = view, number
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return self._whole.update_layer(self._number, key_states, value_states)

    def get_seq_length(self) -> int:
        """Columns before the new ones, where a model asks (masks and positions are given)."""
        return int(self._whole.width - self._whole.real.shape[1])


def network_kind(model: Any) -> Callable[[Any], Network] | None:
    """What makes the fastest network that agrees with the model; None: its cache is not made of
    keys and values alone. A model that is partitioned now is only ever called as a whole."""
    kinds: list[Callable[[Any], Network]] = []
    if is_whole(model) and llama.reads(model):
        kinds.append(llama.Llama)
    if _keeps_keys(model):
        kinds.append(AnyNetwork)
    return next((kind for kind in kinds if _agrees(kind(model), model)), None)


def keeps_some_keys(model: Any) -> bool:
    """Whether any of the model's layers attends to what came before, rather than keep a state."""
    layers = DynamicCache(config=model.config).layers
    return any(isinstance(layer, DynamicLayer) for layer in layers)


def _keeps_keys(model: Any) -> bool:
    """Whether rows of a cache can be told apart, and positions be given."""
    layers = DynamicCache(config=model.config).layers
    plain = all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)
    positions = "position_ids" in cache_name(model)[1] and not getattr(model.config, "alibi", False)
    return bool(plain and layers and positions)


@torch.no_grad()
def _agrees(network: Network, model: Any) -> bool:
    """Whether it says what the model says of two rows: read, read on after a cut, stepped."""
    config = getattr(model.config, "text_config", model.config)
    ids = [[(7 * k + 3) % config.vocab_size for k in range(n)] for n in (9, 5)]
    slots = network.slots
    slots.reserve(2, 16)
    try:
        with network.guard():
            network.extend([0, 1], [row[:-2] for row in ids])
            slots.length[:] = [len(row) - 3 for row in ids]
            network.extend([1, 0], [row[-3:-1] for row in ids[::-1]])
            slots.length[:] = [len(row) - 1 for row in ids]
            found = network.step(torch.tensor([row[-1] for row in ids], device=slots.device))
        told = [model(input_ids=torch.tensor([row], device=slots.device)) for row in ids]
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError, KeyError):
        return False
    expected = torch.stack([output.logits[0, -1] for output in told]).float()
    spread = expected.abs().max()
    return bool((found.float() - expected).abs().max() <= _tolerance(model) * spread)


def _tolerance(model: Any) -> float:
    """Of the largest logit. Layers quantised as they run round by what stands beside a row."""
    rounded = any(hasattr(module, "_packed_params") for module in model.modules())
    return 1e-4 if model.dtype == torch.float32 and not rounded else 0.05


def cache_name(model: Any) -> tuple[str, Mapping[str, Any]]:
    """Under which name a model's forward takes its cache, and all that it takes."""
    parameters = inspect.signature(llama.unwrapped(model).forward).parameters
    return "cache" if "cache" in parameters else "past_key_values", parameters


def left_padded(prompts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(ids (rows, longest prompt), columns where the rows begin); padding ids are 0."""
    width = max(len(prompt) for prompt in prompts)
    ids = np.zeros((len(prompts), width), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = prompt
    return ids, np.array([width - len(prompt) for prompt in prompts])


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """The model in evaluation mode (no dropout), and afterwards as it was."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


def context_length(config: Any) -> int:
    """Most tokens a prompt and its reply may have together; very many if the model sets none."""
    inner = getattr(config, "text_config", config)
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        if isinstance(length := getattr(inner, name, None), int) and length > 0:
            return length
    return NO_LIMIT
