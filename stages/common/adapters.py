"""LoRA adapters through peft: attached, saved alone, loaded with their base, merged.

A folder of adapters names its base, which is always a whole model: training that starts from
adapters goes on with them (beside a frozen copy, where a reference is needed), so none ever stand
on others, and whatever is handed over needs only the base.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stages.common.errors import UsageError
from stages.common.files import read_json
from stages.common.manifest import ADAPTER_CONFIG

LEARNED, REFERENCE = "default", "reference"
"""Names of the adapters that learn, and of the frozen copy of those they started from."""
_LAYER = re.compile(r"\.(\d+)\.")


def attach(
    model: Any,
    lora: Any,
    *,
    base: str | Path,
    start: Path | None = None,
    heads: Sequence[str] = (),
    reference: bool = False,
) -> Any:
    """``model`` (of the folder or hub id ``base``) with adapters that learn, in float32.

    ``lora`` has rank, alpha, dropout, target_modules, layers (a recipe's section does). ``start``:
    a folder of adapters to go on from; ``reference`` keeps a frozen copy of them. ``heads``:
    modules that are trained and saved whole. UsageError for layers the model does not have, or
    adapters in ``start`` of another shape than the recipe's.
    """
    from peft import get_peft_model

    model.requires_grad_(False)
    whole = list(heads) or None
    config = _config(model, lora, whole)
    if start is not None:
        _check_shape(config, start)
    with _its_own_warnings():
        adapted = get_peft_model(model, config)
    for name in heads:  # a head in bfloat16 could not take up small steps
        adapted.get_submodule(f"base_model.model.{name}").modules_to_save[LEARNED].float()
    config.base_model_name_or_path = str(Path(base).resolve() if Path(base).is_dir() else base)
    if start is not None:
        _fill(adapted, start, LEARNED)
    if start is not None and reference:
        adapted.add_adapter(REFERENCE, copy.deepcopy(config))
        _fill(adapted, start, REFERENCE)
        adapted.set_adapter(LEARNED)
    return _rounded_once(adapted)


class _OutsideAutocast:
    """True where nothing else brings a layer's input to the type of its adapters."""

    def __bool__(self) -> bool:
        import torch

        return not any(map(torch.is_autocast_enabled, ("cpu", "cuda")))


def _rounded_once(model: Any) -> Any:
    """Adapters that leave their input as it is under autocast, which brings all to bfloat16.

    peft makes it float32 first: the same numbers, and a quarter of a training step on a CPU.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            module.cast_input_dtype_enabled = _OutsideAutocast()
    return model


def take_up(model: Any, folder: Path) -> None:
    """The adapters of ``folder`` in the place of those that learn; a frozen copy stays what it is.

    UsageError for a folder without adapters, or with others than the model's.
    """
    if not (folder / ADAPTER_CONFIG).is_file():
        raise UsageError(
            f"{folder} holds no adapters, but model.lora learns only these; name a run of this "
            "recipe, or leave model.lora out."
        )
    _check_shape(model.peft_config[LEARNED], folder)
    _fill(model, folder, LEARNED)


def merged(model: Any, folder: Path) -> Any:
    """The whole ``model`` with the adapters of ``folder`` merged into its weights."""
    from peft import LoraConfig, PeftModel

    config = LoraConfig.from_pretrained(str(folder))
    config.task_type = None  # an actor's adapters may also stand under a reward model's head
    with _its_own_warnings():
        adapted = PeftModel.from_pretrained(model, str(folder), config=config)
    return adapted.merge_and_unload().requires_grad_(True)


def saved_heads(folder: Path) -> list[str]:
    """Modules that the adapters in ``folder`` bring along whole."""
    return list(read_json(folder / ADAPTER_CONFIG).get("modules_to_save") or ())


def merged_copy(model: Any) -> Any:
    """A copy of a model; adapters, if it has any, are merged into it."""
    twin = copy.deepcopy(model)
    return twin.merge_and_unload(adapter_names=[LEARNED]) if has_adapters(model) else twin


def has_adapters(model: Any) -> bool:
    """Whether adapters stand anywhere in the module."""
    return any(".lora_A." in name for name, _ in model.named_parameters())


def keep_upper(model: Any, layers: int) -> None:
    """Only adapters of this many uppermost layers go on learning. UsageError if there are fewer."""
    _check_layers(model, layers, "rl.actor.lora_layers")
    for name, parameter in model.named_parameters():
        found = _LAYER.search(name)
        if found and int(found.group(1)) < model.config.num_hidden_layers - layers:
            parameter.requires_grad_(False)


@contextmanager
def as_started(model: Any) -> Iterator[None]:
    """Inside, the model is what it was before training: its adapters off, or the frozen copy of
    those it started from in their place."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        if REFERENCE in model.peft_config:
            model.set_adapter(REFERENCE)
            yield
            model.set_adapter(LEARNED)
        else:
            with model.disable_adapter():
                yield
    finally:
        for parameter, learns in flags:  # peft marks every active adapter as learning
            parameter.requires_grad_(learns)


def state_of(module: Any) -> dict[str, Any]:
    """All weights; of a module with adapters only what learns, since the rest lies on disk."""
    if not has_adapters(module):
        whole: dict[str, Any] = module.state_dict()
        return whole
    return {n: p.detach() for n, p in module.named_parameters() if p.requires_grad}


def restore(module: Any, state: dict[str, Any]) -> None:
    """Inverse of ``state_of``. Raises RuntimeError on weights that are not the module's."""
    result = module.load_state_dict(state, strict=not has_adapters(module))
    if result.unexpected_keys:
        raise RuntimeError(f"unknown weights {result.unexpected_keys[:3]}")


def save_adapters(model: Any, path: Path, state_dict: Any = None) -> None:
    """The adapters that learn, with their heads, in peft's format; the base stays where it is."""
    model.save_pretrained(
        path, selected_adapters=[LEARNED], state_dict=state_dict, save_embedding_layers=False
    )


@contextmanager
def _its_own_warnings() -> Iterator[None]:
    """peft reads names that transformers 5 has renamed; nothing a user can mend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _config(model: Any, lora: Any, heads: list[str] | None) -> Any:
    from peft import LoraConfig

    count, layers = model.config.num_hidden_layers, None
    if lora.layers is not None:
        _check_layers(model, lora.layers, "model.lora.layers")
        layers = list(range(count - lora.layers, count))
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=sorted(_targets(model, lora.target_modules)),
        layers_to_transform=layers,
        modules_to_save=heads,
        task_type="SEQ_CLS" if heads else "CAUSAL_LM",
    )


def _targets(model: Any, wanted: Sequence[str]) -> set[str]:
    """Ends of the names of the linear layers that carry adapters."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    inner = f"{model.base_model_prefix}."
    linear = {
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and name.startswith(inner)
    }
    for text in wanted:
        if not any(f".{name}".endswith(f".{text}") for name in linear):
            ends = sorted({name.rpartition(".")[2] for name in linear})
            raise UsageError(
                f"model.lora.target_modules has '{text}', at which no linear layer's name ends; "
                f"this model has {', '.join(ends)}."
            )
    return set(wanted) or {name.rpartition(".")[2] for name in linear}


def _check_layers(model: Any, layers: int, key: str) -> None:
    count = model.config.num_hidden_layers
    if layers > count:
        raise UsageError(f"{key} is {layers}, but the model has {count} layers; give fewer.")


def _check_shape(config: Any, start: Path) -> None:
    """UsageError unless the adapters on disk are shaped as the recipe says."""
    from peft import LoraConfig

    theirs = LoraConfig.from_pretrained(str(start))
    names: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "rank": ("r", int),
        "alpha": ("lora_alpha", float),
        "target_modules": ("target_modules", sorted),
        "layers": ("layers_to_transform", lambda x: x if x is None else len(x)),
    }
    for ours, (name, plain) in names.items():
        there, here = plain(getattr(theirs, name)), plain(getattr(config, name))
        if there != here:
            raise UsageError(
                f"The adapters of {start} have {ours} {there}, but model.lora.{ours} makes {here}; "
                "go on with the same shape, or merge them first with aac export."
            )


def _fill(model: Any, folder: Path, name: str) -> None:
    """The adapters of a folder become those called ``name``; fresh heads stay as they are."""
    from peft import get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict

    own = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    saved = load_peft_weights(str(folder), device="cpu")
    unknown = sorted(saved.keys() - own.keys())
    if unknown:
        raise UsageError(f"The adapters of {folder} do not fit this model: it has no {unknown[0]}.")
    set_peft_model_state_dict(model, {**own, **saved}, adapter_name=name)
