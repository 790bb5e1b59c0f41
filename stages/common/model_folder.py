"""What is wrong with a model folder, told from its files alone: no torch, and nothing is loaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from stages.common.errors import UsageError, kind_of
from stages.common.files import read_json
from stages.common.manifest import ADAPTER_CONFIG, adapter_base

CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_NO_ACTOR = re.compile(
    "For(MaskedLM|SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice)$"
)
"""Architectures that some causal class would load, with a head that was never trained to write."""


def check_model_folder(path: str | Path, *, writes: bool = False) -> None:
    """UsageError in one sentence unless a local folder is a whole Hugging Face model.

    It has a config, weights as safetensors, every shard that its index names, and no file is cut;
    ``writes``: it is to act, so an encoder or a scorer will not do. Hub ids pass; of adapters the
    base is looked at, too.
    """
    folder = Path(path)
    if not str(path) or not folder.is_dir():
        return
    if (folder / ADAPTER_CONFIG).is_file():
        _check_weights(folder)
        check_model_folder(base_of(folder) or "", writes=writes)
        return
    if not any(folder.iterdir()):
        raise UsageError(f"{folder} is an empty folder; expected a Hugging Face model in it.")
    _check_config(folder, writes)
    _check_weights(folder)


def base_of(folder: str | Path) -> str | None:
    """The model that the adapters in ``folder`` need, None without adapters; UsageError if gone."""
    base = adapter_base(folder)
    if base is None:
        return None
    looks_local = Path(base).is_absolute() or base.startswith(".")
    if looks_local and not Path(base).is_dir():
        raise UsageError(
            f"The adapters of {folder} need the model {base}, which is not there; put it back, or "
            f"name its new place in {Path(folder) / ADAPTER_CONFIG}."
        )
    return base


def refuse_pickles(folder: Path) -> None:
    """UsageError for a folder whose weights are no safetensors, or that has none."""
    if not folder.is_dir() or any(folder.glob("*.safetensors")):
        return
    found = sorted(p.name for pattern in _PICKLES for p in folder.glob(pattern))
    if found:
        raise UsageError(
            f"{folder} holds only pickled weights ({found[0]}), which can run code when loaded; "
            "save the model again as safetensors."
        )
    raise UsageError(f"{folder} holds no weights; expected *.safetensors files in it.")


def _check_config(folder: Path, writes: bool) -> None:
    config = folder / CONFIG
    if not config.is_file():
        raise UsageError(
            f"{folder} has no {CONFIG}, so it is no Hugging Face model folder; give one that has."
        )
    content = read_json(config)
    if not isinstance(content, dict) or not content.get("model_type"):
        given = "no model_type" if isinstance(content, dict) else kind_of(content)
        raise UsageError(
            f"{config} holds {given}, expected the config of a Hugging Face model; restore it."
        )
    names = [str(name) for name in content.get("architectures") or ()]
    encodes = bool(content.get("is_encoder_decoder"))
    if writes and (encodes or any(_NO_ACTOR.search(name) for name in names)):
        raise UsageError(
            f"{folder} holds a {' '.join(names) or content['model_type']}, expected a causal "
            "language model (a decoder that writes text); name one as the actor."
        )


def _check_weights(folder: Path) -> None:
    named = _named_shards(folder / _INDEX)
    missing = sorted(name for name in named if not (folder / name).is_file())
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UsageError(
            f"{folder} lacks the weights file {missing[0]}{more}, which {_INDEX} names; copy the "
            "model again, with all its files."
        )
    refuse_pickles(folder)
    for file in sorted(folder.glob("*.safetensors")):
        _check_whole(file)


def _check_whole(file: Path) -> None:
    """The header is read and compared with the file's size; no tensor is."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy"):
            return
    except (SafetensorError, OSError) as error:
        raise UsageError(
            f"{file} is cut short or is no safetensors file ({error}); copy the model again."
        ) from None


def _named_shards(index: Path) -> set[str]:
    """The files that an index says the weights lie in; none without an index."""
    content: Any = read_json(index) if index.is_file() else {}
    names = content.get("weight_map", {}) if isinstance(content, dict) else None
    if not isinstance(names, dict):
        raise UsageError(f"{index} holds no weight_map; copy the model again.")
    return set(map(str, names.values()))
