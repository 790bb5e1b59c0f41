"""A forward written by hand for models built like Llama: Llama, Mistral, Qwen2 and Qwen3.

transformers' own spends most of a small model's time in Python. This one computes the same from
the same weights, read anew at every call, with no padding: the tokens of all rows lie one after
another, and keys and values go straight to where they stay (``Slots``). Linear layers that are
more than that (adapters, quantised weights, hooks) are called as the modules they are.

Shapes: T tokens in all, N heads, K heads of keys and values, S head size, H width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from stages.common.gemm import QuickLinear
from stages.interaction.slots import Slots

FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
FIXED_ROPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose angles do not depend on how long the text is."""
BLOCK = 32
"""Neighbouring slots that attend together, over as many columns as the longest of them has."""

Layer = Callable[[Tensor], Tensor]
Attend = Callable[[int, Tensor], Tensor]
"""(layer, queries (T, N, S)) to what they gather, (T, N · S)."""


def reads(model: Any) -> bool:
    """Whether a model is of a family, and of the plain kind, that is written out here."""
    model = unwrapped(model)
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        type(model).__name__ in FAMILIES
        and type(model).__module__.startswith("transformers.")
        and rope.get("rope_type") in FIXED_ROPES
        and rope.get("partial_rotary_factor", 1.0) == 1.0
        and set(getattr(config, "layer_types", None) or ()) <= {"full_attention"}
        and not _windowed(config)
    )


def unwrapped(model: Any) -> Any:
    """The model beneath a wrapper of adapters, which hands on whatever it is given."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _windowed(config: Any) -> bool:
    return bool(getattr(config, "sliding_window", None)) and not hasattr(config, "layer_types")


@dataclass(frozen=True)
class _Block:
    """One decoder layer's parts."""

    first_norm: Layer
    q: Layer
    k: Layer
    v: Layer
    q_norm: Layer | None
    k_norm: Layer | None
    out: Layer
    second_norm: Layer
    gate: Layer
    act: Layer
    up: Layer
    down: Layer

    @classmethod
    def of(cls, layer: Any) -> _Block:
        own, mlp = layer.self_attn, layer.mlp
        q_norm, k_norm = getattr(own, "q_norm", None), getattr(own, "k_norm", None)
        return cls(
            first_norm=_norm(layer.input_layernorm),
            q=_linear(own.q_proj),
            k=_linear(own.k_proj),
            v=_linear(own.v_proj),
            q_norm=_norm(q_norm) if q_norm is not None else None,
            k_norm=_norm(k_norm) if k_norm is not None else None,
            out=_linear(own.o_proj),
            second_norm=_norm(layer.post_attention_layernorm),
            gate=_linear(mlp.gate_proj),
            act=mlp.act_fn,
            up=_linear(mlp.up_proj),
            down=_linear(mlp.down_proj),
        )


class Llama:
    """The network of a model that ``reads`` says yes to, over slots of its own."""

    guard = torch.inference_mode

    def __init__(self, model: Any) -> None:
        model = unwrapped(model)
        decoder, config = model.get_decoder(), model.config
        self.slots = Slots(model.device)
        self._embed, self._rotary = decoder.embed_tokens, decoder.rotary_emb
        self._blocks = [_Block.of(layer) for layer in decoder.layers]
        self._norm, self._head = _norm(decoder.norm), _linear(model.get_output_embeddings())
        self._heads, self._groups = config.num_attention_heads, config.num_key_value_heads
        self._size = decoder.layers[0].self_attn.head_dim
        self._turns: tuple[Tensor, Tensor] | None = None

    def extend(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> Tensor:
        """(rows, vocabulary) logits after more tokens of these slots."""
        device, past = self.slots.device, self.slots.length[list(rows)]
        counts = np.array([len(ids) for ids in tokens])
        ends = counts.cumsum()
        columns = np.arange(ends[-1]) + np.repeat(past - ends + counts, counts)
        ids = np.fromiter((i for row in tokens for i in row), dtype=np.int64, count=ends[-1])
        parts = [
            _Part(row, slice(end - n, end), p, p + n, self._later(p, n))
            for row, end, n, p in zip(
                rows, ends.tolist(), counts.tolist(), past.tolist(), strict=True
            )
        ]

        def attend(layer: int, queries: Tensor) -> Tensor:
            found = [self._reach_back(layer, queries[part.span], part) for part in parts]
            return torch.cat(found)

        place = torch.as_tensor(np.repeat(rows, counts), device=device)
        hidden = self._layers(
            torch.as_tensor(ids, device=device),
            place,
            torch.as_tensor(columns, device=device),
            attend,
        )
        return self._logits(hidden[torch.as_tensor(ends - 1, device=device)])

    def step(self, ids: Tensor) -> Tensor:
        """(n, vocabulary) logits after one more token (n,) of the first n slots."""
        device, count = self.slots.device, len(ids)
        columns = torch.as_tensor(self.slots.length[:count], device=device)
        spans = []
        for start in range(0, count, BLOCK):
            end = min(start + BLOCK, count)
            width = int(self.slots.length[start:end].max()) + 1
            later = torch.arange(width, device=device) > columns[start:end, None]
            bias = torch.zeros(later.shape, dtype=self._embed.weight.dtype, device=device)
            bias.masked_fill_(later, -torch.inf)
            spans.append((slice(start, end), width, bias[:, None, None]))

        def attend(layer: int, queries: Tensor) -> Tensor:
            # One query per row, so that the heads of a group can stand as if they were tokens.
            grouped = queries.view(count, self._groups, -1, self._size)
            keys, values = self.slots.keys[layer], self.slots.values[layer]
            found = [
                functional.scaled_dot_product_attention(
                    grouped[span], keys[span, :, :width], values[span, :, :width], attn_mask=bias
                )
                for span, width, bias in spans
            ]
            return (found[0] if len(found) == 1 else torch.cat(found)).reshape(count, -1)

        place = torch.arange(count, device=device)
        return self._logits(self._layers(ids, place, columns, attend))

    def _layers(self, ids: Tensor, slots: Tensor, columns: Tensor, attend: Attend) -> Tensor:
        """(T, H) what the layers make of tokens at these slots and columns, all (T,)."""
        hidden = self._embed(ids)
        cos, sin = (table[columns][:, None] for table in self._tables())
        places = self.slots.places(slots, columns, self._groups)
        for number, block in enumerate(self._blocks):
            normed = block.first_norm(hidden)
            q = block.q(normed).view(len(ids), -1, self._size)
            k = block.k(normed).view(len(ids), -1, self._size)
            if block.q_norm is not None and block.k_norm is not None:
                q, k = block.q_norm(q), block.k_norm(k)
            both = torch.cat((q, k), dim=1)
            turned = both.roll(self._size // 2, -1)
            both.mul_(cos).addcmul_(turned, sin)
            v = block.v(normed).view(len(ids), -1, self._size)
            self.slots.write(number, both[:, self._heads :], v, places)
            hidden += block.out(attend(number, both[:, : self._heads]))
            normed = block.second_norm(hidden)
            hidden += block.down(block.act(block.gate(normed)).mul_(block.up(normed)))
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        return self._head(self._norm(hidden))

    def _tables(self) -> tuple[Tensor, Tensor]:
        """(columns, S) cosines and sines of the rotary embedding (arXiv:2104.09864), the sines of
        the first half negated: x · cos + roll(x) · sin turns x."""
        known = 0 if self._turns is None else self._turns[0].shape[0]
        if self._turns is None or known < self.slots.columns:
            columns = torch.arange(self.slots.columns, device=self.slots.device)
            cos, sin = self._rotary(self._embed.weight[:1], columns[None])
            sign = torch.ones_like(sin[0])
            sign[:, : self._size // 2] = -1
            self._turns = cos[0], sin[0] * sign
        return self._turns

    def _later(self, past: int, count: int) -> Tensor | None:
        """(count, past + count) bias against what comes later; None: plainly causal."""
        if past == 0:
            return None
        shape = (count, past + count)
        bias = torch.full(
            shape, -torch.inf, dtype=self._embed.weight.dtype, device=self.slots.device
        )
        return bias.triu_(past + 1)

    def _reach_back(self, layer: int, queries: Tensor, part: _Part) -> Tensor:
        """(n, N · S) what a row's new tokens gather from it, themselves included."""
        keys = self.slots.keys[layer][part.row, None, :, : part.width]
        values = self.slots.values[layer][part.row, None, :, : part.width]
        found = functional.scaled_dot_product_attention(
            queries.transpose(0, 1)[None],
            keys,
            values,
            attn_mask=part.later,
            is_causal=part.later is None,
            enable_gqa=self._heads != self._groups,
        )
        return found[0].transpose(0, 1).reshape(len(queries), -1)


@dataclass(frozen=True)
class _Part:
    """One row's share of the tokens of a forward."""

    row: int
    span: slice
    past: int
    width: int
    later: Tensor | None


def _linear(module: Any) -> Layer:
    """The module, without a module's overhead where it is nothing but its weights."""
    called: Layer = module
    return module.forward if type(module) in (nn.Linear, QuickLinear) and _bare(module) else called


def _norm(module: Any) -> Layer:
    """RMS norm, in one call where weights are float32 (elsewhere roundings would differ)."""
    if module.weight.dtype == torch.float32 and _bare(module):
        shape = tuple(module.weight.shape)
        return lambda x: functional.rms_norm(x, shape, module.weight, module.variance_epsilon)
    called: Layer = module
    return called


def _bare(module: nn.Module) -> bool:
    hooked = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    return not hooked
