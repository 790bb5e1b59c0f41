"""Bytes kept for the backward, against the tensors that a real forward saves."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from stages.memory.activations import activation_bytes, block_bytes, cache_bytes
from stages.memory.architecture import from_config
from stages.memory.strategies import Precision, precision_of

TOKENS = 56
SHAPE = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 160,
    "vocab_size": 96,
}
FLOAT32, AUTOCAST = precision_of("ddp", bf16=False), precision_of("ddp", bf16=True)
BF16 = precision_of("zero3", bf16=True)


def build(family: str, layers: int, kv_heads: int, dtype: torch.dtype, again: bool = False) -> Any:
    config = AutoConfig.for_model(
        family, **SHAPE, num_hidden_layers=layers, num_key_value_heads=kv_heads
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(dtype)
    if again:
        model.activation_checkpointing_enable({"use_reentrant": False})
    return model.train()


def saved(model: Any, autocast: bool = False) -> int:
    """Bytes of distinct storages that a forward keeps, weights and their casts left out."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    shapes = {tuple(p.shape) for p in model.parameters()} | {
        tuple(p.T.shape) for p in model.parameters() if p.dim() == 2
    }
    kept: dict[int, int] = {}
    alive = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and tuple(tensor.shape) not in shapes:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)  # or the next tensor could take its place
        return tensor

    context = torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
    ids = torch.randint(0, SHAPE["vocab_size"], (1, TOKENS))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), context:
        model(input_ids=ids, use_cache=False)
    return sum(kept.values())


def per_block(family: str, kv_heads: int, dtype: torch.dtype, autocast: bool = False) -> float:
    """The difference that one more block makes, per token."""
    two, three = (saved(build(family, n, kv_heads, dtype), autocast) for n in (2, 3))
    return (three - two) / TOKENS


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("precision", "dtype", "autocast"),
    [
        (FLOAT32, torch.float32, False),
        (BF16, torch.bfloat16, False),
        (AUTOCAST, torch.float32, True),
    ],
    ids=["float32", "bf16", "autocast"],
)
def test_a_block_keeps_what_the_plan_says(
    family: str, precision: Precision, dtype: torch.dtype, autocast: bool
):
    model = from_config(build(family, 1, 4, dtype).config.to_dict(), "x")
    measured = per_block(family, 4, dtype, autocast)
    assert block_bytes(model, precision) == pytest.approx(measured, rel=0.03)


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("bf16", [True, False])
def test_adapters_keep_what_the_plan_says(bf16: bool):
    peft = pytest.importorskip("peft")
    dtype, rank = torch.bfloat16 if bf16 else torch.float32, 4
    counts = []
    for layers in (2, 3):
        adapters = peft.LoraConfig(r=rank, target_modules="all-linear")
        model = peft.get_peft_model(build("llama", layers, 4, dtype), adapters)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
        counts.append(saved(model, autocast=bf16))
    model = from_config(build("llama", 1, 4, dtype).config.to_dict(), "x")
    planned = block_bytes(model, precision_of("ddp", bf16=bf16, rank=rank))
    assert planned == pytest.approx((counts[1] - counts[0]) / TOKENS, rel=0.05)


def test_checkpointing_keeps_the_stream_alone():
    model = from_config(build("llama", 5, 4, torch.float32).config.to_dict(), "x")
    two, four = (saved(build("llama", n, 4, torch.float32, again=True)) for n in (2, 4))
    stream = (four - two) / 2 / TOKENS
    assert stream == pytest.approx(4 * 64, rel=0.05)
    kept = activation_bytes(model, FLOAT32, TOKENS, checkpointing=True)
    assert kept < 0.5 * activation_bytes(model, FLOAT32, TOKENS, checkpointing=False)


def test_cache_is_that_of_the_real_model():
    model = build("qwen2", 3, 2, torch.float32).eval()
    ids = torch.randint(0, SHAPE["vocab_size"], (2, 10))
    with torch.no_grad():
        layers = model(input_ids=ids, use_cache=True).past_key_values.layers
    held = sum(t.numel() * t.element_size() for layer in layers for t in (layer.keys, layer.values))
    assert cache_bytes(from_config(model.config.to_dict(), "x"), 4, 20) == held
