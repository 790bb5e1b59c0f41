"""What ZeRO does to a model, told from its parameters: is it partitioned, and may it play?"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from stages.common.errors import RunError
from stages.common.ranks import Ranks, launched

CONFIG = "ACCELERATE_DEEPSPEED_CONFIG_FILE"
"""Where accelerate's launcher tells its processes of the DeepSpeed configuration."""
PlayMode = Literal["auto", "rollout", "layer"]


def zero_section() -> dict[str, Any]:
    """ZeRO's part of the DeepSpeed configuration that was launched with; {}: there is none."""
    file = os.environ.get(CONFIG, "none")
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false") != "true" or not Path(file).is_file():
        return {}
    section: dict[str, Any] = json.loads(Path(file).read_text("utf-8")).get("zero_optimization", {})
    return section


def zero_stage() -> int:
    """The ZeRO stage that was asked for; 0: none."""
    return int(zero_section().get("stage", 0))


def offloads_to(device: str) -> bool:
    """Whether the optimizer's state lives on ``device`` (cpu, nvme)."""
    return bool(zero_section().get("offload_optimizer", {}).get("device") == device)


def mode() -> str:
    """How the processes share the work: one, ddp, zero2, ...; a checkpoint remembers it."""
    return f"zero{zero_stage()}" if zero_stage() else "ddp" if launched() else "one"


def is_sharded(model: nn.Module) -> bool:
    """Whether ZeRO-3 has partitioned the model's parameters."""
    return any(hasattr(p, "ds_id") for p in model.parameters())


def is_whole(model: nn.Module) -> bool:
    """Whether this process holds all of every parameter now (ZeRO-3 may have gathered them)."""
    parameters: Iterable[Any] = model.parameters()
    return all(p.numel() == getattr(p, "ds_numel", p.numel()) for p in parameters)


def held_share(model: nn.Module) -> float:
    """Bytes of the model's parameters that this process holds now, as a share of the whole."""
    held = whole = 0
    parameters: Iterable[Any] = model.parameters()
    for p in parameters:
        own = p.data.numel() if not hasattr(p, "ds_id") else p.data.numel() + p.ds_tensor.numel()
        held += own * p.element_size()
        whole += getattr(p, "ds_numel", p.numel()) * p.element_size()
    return held / max(whole, 1)


def check_partitioned(model: nn.Module, ranks: Ranks) -> None:
    """RunError if ZeRO-3 was asked for but every process still holds the whole model.

    Small parameters may stay whole (``stage3_param_persistence_threshold``), so up to half of
    what partitioning saves may be missing.
    """
    if zero_stage() != 3 or ranks.size == 1:
        return
    share, least = held_share(model), 1 / ranks.size
    if share > least + 0.5 * (1 - least):
        raise RunError(
            f"ZeRO-3 was asked for, but this process holds {share:.0%} of the model's bytes where "
            f"about {least:.0%} is its share: the parameters are not partitioned; lower "
            "stage3_param_persistence_threshold in the DeepSpeed configuration (0 for tiny models),"
            " or launch with zero2."
        )


def play_ready(model: Any, accelerator: Any, ranks: Ranks, how: PlayMode) -> Any:
    """A context in which the policy inside a ZeRO-3 ``model`` may generate on each process.

    rollout: parameters are whole for the length of the block, gathered once. layer: each forward
    gathers and frees layer by layer, slower and in all processes at once. auto: rollout if the
    whole takes at most half of what memory is free everywhere.
    """
    policy = accelerator.unwrap_model(model).policy
    if how == "layer" or (how == "auto" and ranks.anyone(not _fits(policy))):
        return in_step(policy, ranks)
    from trl.models.utils import unwrap_model_for_generation

    return unwrap_model_for_generation(model, accelerator)


def _fits(model: nn.Module) -> bool:
    whole = sum(getattr(p, "ds_numel", p.numel()) * p.element_size() for p in model.parameters())
    return whole <= 0.5 * free_memory()


def free_memory() -> float:
    """Bytes that this process may still take: of its GPU, else its share of the machine's."""
    if torch.cuda.is_available():
        return float(torch.cuda.mem_get_info()[0])
    import psutil

    return psutil.virtual_memory().available / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


@contextmanager
def in_step(model: nn.Module, ranks: Ranks) -> Iterator[None]:
    """Every forward of a partitioned model inside is made by all processes at once.

    A process that has come to the end goes on with empty forwards until all have.
    """
    if ranks.size == 1 or not is_sharded(model):
        yield
        return
    done = False

    def announce(*_: Any) -> None:
        if not done:
            ranks.anyone(True)

    hook = model.register_forward_pre_hook(announce)
    try:
        yield
        done = True
        nothing = torch.zeros((1, 1), dtype=torch.long, device=_device(model))
        while ranks.anyone(False):
            with torch.no_grad():
                model(input_ids=nothing, use_cache=False)
    finally:
        hook.remove()


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
