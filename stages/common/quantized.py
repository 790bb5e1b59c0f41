"""A frozen base in 4 bits under adapters that learn (QLoRA, Dettmers et al. 2023,
arXiv:2305.14314), by bitsandbytes."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from stages.common.errors import UsageError


def loading_options(quantize: str) -> dict[str, Any]:
    """What ``from_pretrained`` is to be told; {} for ``none``.

    UsageError without bitsandbytes or an NVIDIA GPU.
    """
    if quantize == "none":
        return {}
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UsageError(
            f"model.lora.quantize = {quantize} needs the package bitsandbytes, which is not "
            "installed; pip install 'aac[qlora]', or set it to none."
        )
    if not torch.cuda.is_available():
        raise UsageError(
            f"model.lora.quantize = {quantize} needs an NVIDIA GPU, and this machine shows none; "
            "set it to none."
        )
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return {"quantization_config": config, "device_map": {"": torch.cuda.current_device()}}


def ready_to_train(model: Any, quantize: str) -> Any:
    """The loaded base, its norms in float32 if it is quantised."""
    if quantize == "none":
        return model
    from peft import prepare_model_for_kbit_training

    return prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
