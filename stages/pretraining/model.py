"""A small stock Llama whose first two layers start out able to copy.

From an ordinary random start the attention circuit behind copying ("what followed this word
last time?") does not form within an hour at this size. Here it is written into the initial
weights: a head that looks at the previous token, and heads that look for tokens whose
predecessor equals the current one (Olsson et al. 2022, arXiv:2209.11895, "induction heads").
Nothing else is special: any library loads the result as a ``LlamaForCausalLM``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

WIDTH, LAYERS, HEADS, INNER = 128, 3, 4, 320
POSITIONS = 1024
ROPE_THETA = 1e6

_EMBEDDING_STD = 0.1
_CONSTANT = 0.3
"""Value of embedding dimension 0 for every token: what the previous-token head works with."""
_SLOW_PAIR = 6
"""Rotary pairs from here on turn too slowly to matter within a dialogue: used for content."""


def build(vocabulary: int, *, bos: int, eos: int, pad: int, seed: int) -> LlamaForCausalLM:
    """A new model with the copy circuit in place."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=True,
        bos_token_id=bos,
        eos_token_id=eos,
        pad_token_id=pad,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        _plain(model)
        _copy_circuit(model)
    return model


def _plain(model: LlamaForCausalLM) -> None:
    """Ordinary random weights, the residual branches scaled down with depth."""
    std = 0.5 / math.sqrt(WIDTH)
    for name, weight in model.named_parameters():
        if "embed_tokens" in name:
            # Rows of one length: the constant keeps its size through the normalisation.
            weight[:, 0] = 0.0
            weight[:, 1:].normal_()
            weight *= _EMBEDDING_STD * math.sqrt(WIDTH) / weight.norm(dim=1, keepdim=True)
            weight[:, 0] = _CONSTANT
        elif weight.dim() == 2:
            branch = name.endswith(("o_proj.weight", "down_proj.weight"))
            weight.normal_(0.0, std / math.sqrt(2 * LAYERS) if branch else std)


def _copy_circuit(model: LlamaForCausalLM) -> None:
    size = WIDTH // HEADS
    # What is written for the second layer shares no direction with what is read and copied.
    write, read, *values = _frame(4 * size - 1).split(size)
    values = [values[0], torch.cat([values[1], read[:1]])]
    first, second = (model.model.layers[i].self_attn for i in (0, 1))
    _previous_token(first, size, read, write)
    for head in (0, 1):
        rows = slice(head * size, (head + 1) * size)
        slow = [*range(_SLOW_PAIR, size // 2), *range(size // 2 + _SLOW_PAIR, size)]
        part = slice(0, len(slow)) if head == 0 else slice(size - len(slow), size)
        query, key = torch.zeros(size, WIDTH), torch.zeros(size, WIDTH)
        query[slow], key[slow] = 2.2 * read[part], 2.2 * write[part]
        second.q_proj.weight[rows], second.k_proj.weight[rows] = query, key
        value = values[head]
        second.v_proj.weight[rows], second.o_proj.weight[:, rows] = value, 0.7 * value.T


def _previous_token(attention: Any, size: int, read: Tensor, write: Tensor) -> None:
    """Head 0: keys are a constant, queries the same one turned back by one position."""
    half, fast = size // 2, 5
    speed = ROPE_THETA ** (-torch.arange(fast) / half)
    query, key = torch.zeros(size, WIDTH), torch.zeros(size, WIDTH)
    key[:fast, 0] = 2.8
    query[:fast, 0], query[half : half + fast, 0] = 2.8 * speed.cos(), -2.8 * speed.sin()
    attention.q_proj.weight[:size], attention.k_proj.weight[:size] = query, key
    attention.v_proj.weight[:size], attention.o_proj.weight[:, :size] = read, 0.2 * write.T


def _frame(count: int) -> Tensor:
    """``count`` orthonormal rows that ignore the constant dimension."""
    q, _ = torch.linalg.qr(torch.randn(WIDTH - 1, count))
    return torch.cat([torch.zeros(count, 1), q.T], dim=1)
