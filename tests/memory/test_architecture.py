"""Counts of weights against transformers' own models on the meta device, and published totals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from stages.common.errors import UsageError
from stages.memory.architecture import NAMED, architecture_of, from_config, named

SHAPE = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "vocab_size": 130,
    "head_dim": 16,
}


def on_meta(config: Any, auto: Any = AutoModelForCausalLM) -> int:
    with torch.device("meta"):
        model = auto.from_config(config)
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_weights_are_those_of_the_real_model(family: str, tied: bool):
    config = AutoConfig.for_model(family, **SHAPE, tie_word_embeddings=tied)
    counted = from_config(config.to_dict(), "x")
    assert counted.parameters == on_meta(config)
    config.num_labels = 1
    assert counted.trunk_parameters == on_meta(config, AutoModelForSequenceClassification)


@pytest.mark.parametrize(
    ("size", "published"),
    [
        ("135M", 134_515_008),
        ("0.5B", 494_032_768),
        ("7B", 7_615_616_512),
        ("13B", 13_015_864_320),
        ("70B", 70_553_706_496),
    ],
)
def test_named_sizes_have_the_published_number_of_weights(size: str, published: int):
    assert named(size).parameters == published
    assert named(size.lower()).parameters == published


def test_adapters_are_those_of_every_projection():
    model = from_config(AutoConfig.for_model("llama", **SHAPE).to_dict(), "x")
    query, key, rank = 4 * 16, 2 * 16, 8
    by_hand = (48 + query) + 2 * (48 + key) + (query + 48) + 2 * (48 + 80) + (80 + 48)
    assert model.adapter_parameters(rank) == 3 * rank * by_hand


def test_actor_by_folder_by_known_hub_id_and_not_at_all(tmp_path: Path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "llama", **SHAPE}))
    assert architecture_of(str(tmp_path)).layers == 3
    known = architecture_of("Qwen/Qwen2.5-7B-Instruct")
    assert (known.name, known.hidden) == ("Qwen/Qwen2.5-7B-Instruct", NAMED["7B"].hidden)
    with pytest.raises(UsageError, match="nobody/no-such is not on this machine; .* --model-size"):
        architecture_of("nobody/no-such")
    file.write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(UsageError, match="is of type gpt2; name a size near it"):
        architecture_of(str(tmp_path))
    file.write_text("{")
    with pytest.raises(UsageError, match="cannot be read as JSON"):
        architecture_of(str(tmp_path))
