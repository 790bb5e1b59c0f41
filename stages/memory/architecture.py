"""A decoder-only model's shape, from its config alone: no weights, no torch.

Counts are those of the Llama family (RMSNorm, rotary positions, gated MLP), to which Llama,
Mistral and Qwen belong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stages.common.errors import UsageError

_FAMILY = ("llama", "mistral", "qwen2", "qwen3", "smollm3")


@dataclass(frozen=True)
class Architecture:
    """What memory and time depend on."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    tied: bool = False
    """Input and output embeddings are one matrix."""
    head_size: int = 0
    """Width of one head; 0: hidden / heads."""
    biases: bool = False
    """Query, key and value projections have biases (Qwen 2)."""
    head_norms: bool = False
    """Queries and keys are normalised per head (Qwen 3)."""

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.head_size or self.hidden // self.heads

    @property
    def projections(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of the seven linear layers of a block: q, k, v, o, gate, up, down."""
        query, key = self.heads * self.head_width, self.kv_heads * self.head_width
        h, i = self.hidden, self.intermediate
        return ((h, query), (h, key), (h, key), (query, h), (h, i), (h, i), (i, h))

    @property
    def block_parameters(self) -> int:
        """Weights of one block: projections, biases, norms."""
        linear = sum(inputs * outputs for inputs, outputs in self.projections)
        biases = sum(outputs for _, outputs in self.projections[:3]) if self.biases else 0
        norms = 2 * self.hidden + (2 * self.head_width if self.head_norms else 0)
        return linear + biases + norms

    @property
    def embedding_parameters(self) -> int:
        """Weights of one embedding matrix."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All weights; tied ones count once."""
        trunk = self.layers * self.block_parameters + self.hidden
        return trunk + self.embedding_parameters * (1 if self.tied else 2)

    @property
    def trunk_parameters(self) -> int:
        """Weights of a reward model on this trunk: one embedding, a head with one output."""
        return self.layers * self.block_parameters + 2 * self.hidden + self.embedding_parameters

    def adapter_parameters(self, rank: int) -> int:
        """Weights of LoRA adapters of this rank on every projection of every block."""
        return self.layers * rank * sum(sum(shape) for shape in self.projections)


def _qwen(name: str, *shape: int, tied: bool = False) -> Architecture:
    hidden, layers, heads, kv_heads, intermediate, vocabulary = shape
    return Architecture(
        name, hidden, layers, heads, kv_heads, intermediate, vocabulary, tied, biases=True
    )


NAMED = {
    "135M": Architecture(
        "HuggingFaceTB/SmolLM2-135M", 576, 30, 9, 3, 1536, 49152, tied=True, head_size=64
    ),
    "0.5B": _qwen("Qwen/Qwen2.5-0.5B", 896, 24, 14, 2, 4864, 151936, tied=True),
    "1.5B": _qwen("Qwen/Qwen2.5-1.5B", 1536, 28, 12, 2, 8960, 151936, tied=True),
    "3B": _qwen("Qwen/Qwen2.5-3B", 2048, 36, 16, 2, 11008, 151936, tied=True),
    "7B": _qwen("Qwen/Qwen2.5-7B", 3584, 28, 28, 4, 18944, 152064),
    "13B": Architecture("meta-llama/Llama-2-13b", 5120, 40, 40, 40, 13824, 32000),
    "14B": _qwen("Qwen/Qwen2.5-14B", 5120, 48, 40, 8, 13824, 152064),
    "32B": _qwen("Qwen/Qwen2.5-32B", 5120, 64, 40, 8, 27648, 152064),
    "70B": Architecture("meta-llama/Llama-3.1-70B", 8192, 80, 64, 8, 28672, 128256),
}
"""Sizes that ``aac plan --model-size`` knows, each with the model whose config it is."""


def named(size: str) -> Architecture:
    """The architecture of a named size. UsageError for another name."""
    found = {name.lower(): shape for name, shape in NAMED.items()}.get(size.lower())
    if found is None:
        raise UsageError(
            f"--model-size {size} is not known; expected one of {', '.join(NAMED)}, or leave it "
            "out to plan for the recipe's model.actor."
        )
    return found


def architecture_of(actor: str) -> Architecture:
    """The shape of ``model.actor``: a folder's config.json, a known hub id, or one in the cache.

    Nothing is downloaded. UsageError if its config is not on this machine, or of another family.
    """
    file = Path(actor) / "config.json"
    if file.is_file():
        return from_config(_read(file), actor)
    plain = actor.lower().removesuffix("-instruct")
    for shape in NAMED.values():
        if shape.name.lower() == plain:
            return replace(shape, name=actor)
    cached = None if Path(actor).is_dir() else _cached(actor)
    if cached is None:
        raise UsageError(
            f"the config of {actor} is not on this machine; give a model folder with a "
            f"config.json, download it first, or name a size with --model-size "
            f"({', '.join(NAMED)})."
        )
    return from_config(_read(cached), actor)


def from_config(config: Mapping[str, Any], name: str) -> Architecture:
    """From the content of a config.json. UsageError for a model of another family."""
    family = str(config.get("model_type"))
    if family not in _FAMILY:
        raise UsageError(
            f"aac plan counts models of the Llama family ({', '.join(_FAMILY)}), but {name} is of "
            f"type {family}; name a size near it with --model-size ({', '.join(NAMED)})."
        )
    heads = int(config["num_attention_heads"])
    return Architecture(
        name=name,
        hidden=int(config["hidden_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        intermediate=int(config["intermediate_size"]),
        vocabulary=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        head_size=int(config.get("head_dim") or 0),
        biases=family == "qwen2" or bool(config.get("attention_bias")),
        head_norms=family == "qwen3",
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read as JSON: {error}.") from error
    return content


def _cached(actor: str) -> Path | None:
    """The config of a hub id that was downloaded before."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(actor, "config.json")
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None
