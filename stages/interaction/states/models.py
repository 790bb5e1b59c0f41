"""The models behind state processors, loaded once a process and frozen."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from stages.common.errors import UsageError
from stages.common.libraries import quiet_libraries
from stages.interaction.states.embedders import HashingEmbedder, SentenceEncoder
from stages.interaction.states.extraction import load_extractor
from stages.interaction.states.options import (
    ACTOR,
    HASHING,
    RULES,
    FactsOptions,
    MemoryOptions,
    SummaryOptions,
)
from stages.interaction.states.writers import ModelWriter, RulesWriter, SummaryWriter


def summary_writer(options: SummaryOptions) -> SummaryWriter:
    """Rules, or the model of a folder or hub id. Raises UsageError for one that does not load."""
    if options.writer == RULES:
        return RulesWriter()
    if options.writer == ACTOR:
        raise UsageError(
            "state.summary.writer = actor means the frozen actor that a stage starts from, and "
            "here is none; name a model's folder, or write by rules."
        )
    return _writer(options.writer, _stamp(options.writer), options.max_tokens)


def extractor(options: FactsOptions) -> Any:
    """The extraction model of a recipe, None without one. UsageError for one that is no such."""
    if options.model is None:
        return None
    return _extractor(options.model, _stamp(options.model), options.questions)


def embedder(options: MemoryOptions) -> Any:
    """Hashed words, or a sentence encoder. Raises UsageError for one that does not load."""
    if options.embedder == HASHING:
        return HashingEmbedder()
    return _encoder(options.embedder, _stamp(options.embedder))


@lru_cache(maxsize=2)
def _writer(source: str, stamp: int, max_tokens: int) -> SummaryWriter:
    import torch

    from stages.common.models import load_actor, load_tokenizer
    from stages.interaction.native import NativePolicy

    with quiet_libraries(None):
        tokenizer = load_tokenizer(source)
        model = load_actor(source, tokenizer=tokenizer).requires_grad_(False)
        model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    policy = NativePolicy(model, tokenizer, max_new_tokens=max_tokens, reuse=False)
    return ModelWriter(policy, _identity(source))


@lru_cache(maxsize=2)
def _extractor(source: str, stamp: int, questions: tuple[str, ...]) -> Any:
    return _loaded(
        "state.facts.model", source, lambda name: load_extractor(source, name, questions)
    )


@lru_cache(maxsize=2)
def _encoder(source: str, stamp: int) -> Any:
    return _loaded("state.memory.embedder", source, lambda name: SentenceEncoder(source, name))


def _loaded(key: str, source: str, load: Any) -> Any:
    try:
        with quiet_libraries(None):
            return load(_identity(source))
    except (OSError, ValueError, ImportError) as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UsageError(
            f"{key} = {source} could not be loaded ({why}); give the folder of a Hugging Face "
            "model with safetensors weights, or a hub id that can be reached."
        ) from error


def _identity(source: str) -> str:
    """Which model it was: its name, and for a folder the beginning of its content's hash."""
    from stages.common.manifest import content_hash

    folder = Path(source)
    return f"{source}@{content_hash(folder)[:12]}" if folder.is_dir() else source


def _stamp(source: str) -> int:
    """Changes when a folder is written anew, so that no stale model is served."""
    folder = Path(source)
    files = folder.glob("*.safetensors") if folder.is_dir() else ()
    return max((file.stat().st_mtime_ns for file in files), default=0)
