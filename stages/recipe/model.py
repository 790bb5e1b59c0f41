"""The recipe's actor: where it starts from, what of it learns, in which precision."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from stages.recipe.section import Section


class LoraSection(Section):
    """Low-rank adapters (Hu et al. 2021, arXiv:2106.09685): they alone learn, in float32."""

    rank: int = Field(16, ge=1)
    """Width r of the adapters."""
    alpha: float = Field(32.0, gt=0)
    """Their output is scaled by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Before the adapters, in SFT and the reward model; never in RL, whose ratios it would blur."""
    target_modules: tuple[str, ...] = ()
    """Linear layers with adapters, by the ends of their names; none: all but the output layer."""
    layers: int | None = Field(None, ge=1)
    """Only this many of the uppermost layers get adapters; none: all."""
    quantize: Literal["none", "4bit"] = "none"
    """4bit: the base in 4-bit NF4 (QLoRA, arXiv:2305.14314); needs bitsandbytes and a GPU."""


class ModelSection(Section):
    """The actor's starting point."""

    actor: str = Field(min_length=1)
    """Hugging Face folder or hub id of the causal language model to start from."""
    dtype: Literal["float32", "bfloat16", "auto"] = "auto"
    """Type to compute in; auto is float32 on a CPU and bfloat16 on a GPU. What learns is kept in
    float32 all the same: bfloat16 weights cannot take up steps as small as AdamW's."""
    frozen: tuple[str, ...] = ()
    """Parameters kept fixed in every stage: any whose name contains one of these texts."""
    lora: LoraSection | None = None
    """Train adapters over the frozen model instead of all its weights; {} takes the defaults."""
    activation_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, a third more time."""
    chat_template: Path | None = None
    """A jinja file that replaces the tokenizer's chat template."""
