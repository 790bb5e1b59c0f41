"""An actor from disk, ready to play: weights, tokenizer, and the state it was trained with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.common.console import warn
from stages.common.errors import HandoffError
from stages.common.libraries import quiet_libraries
from stages.common.manifest import Manifest, content_hash, read_manifest
from stages.common.model_folder import check_model_folder
from stages.common.run_folder import MANIFEST
from stages.interaction.generation import Policy
from stages.interaction.rollout import Reviewer
from stages.interaction.states import StateOptions
from stages.interaction.states.base import CountTokens
from stages.interaction.states.options import ACTOR


@dataclass(frozen=True)
class LoadedActor:
    """A policy with what belongs to it."""

    policy: Policy
    count_tokens: CountTokens
    """Length of a prompt by its own tokenizer and template."""
    state: Any
    """The state configuration it is to be served with."""
    reviewer: Reviewer | None = None
    """Its critic, where the state shows reviews."""
    parameters: int = 0
    """How large it is."""


def load_player(folder: str | Path, *, model: Any, sampling: Any, state: Any) -> LoadedActor:
    """Load the actor of a Hugging Face folder or hub id for playing (on the GPU if there is one).

    ``model`` has ``chat_template`` and ``dtype``, ``sampling`` has ``temperature`` and
    ``max_new_tokens`` (sections of a recipe do). The state it was trained with, if its manifest
    tells, goes before ``state``. Raises UsageError for a folder that holds no actor.
    """
    check_model_folder(folder, writes=True)
    import torch

    from stages.common.chat import encode_prompt
    from stages.common.models import count_parameters, load_actor, load_tokenizer
    from stages.common.precision import computed_in
    from stages.interaction.native import NativePolicy

    with quiet_libraries(None):
        tokenizer = load_tokenizer(folder, model.chat_template)
        actor = load_actor(folder, dtype=computed_in(model.dtype), tokenizer=tokenizer)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    policy = NativePolicy(
        actor.to(device).eval(),
        tokenizer,
        temperature=sampling.temperature,
        max_new_tokens=sampling.max_new_tokens,
    )
    return LoadedActor(
        policy=policy,
        count_tokens=lambda messages: len(encode_prompt(tokenizer, messages)),
        state=served_state(Path(folder), state),
        parameters=count_parameters(actor),
    )


def served_state(folder: Path, state: Any) -> StateOptions:
    """The state configuration in the actor's manifest, else ``state``; says so if they differ.

    Where the actor's summaries are written by its own frozen self, that is named. Raises
    HandoffError if it is gone.
    """
    wanted = StateOptions.of(state)
    if not (folder / MANIFEST).is_file():
        return wanted.written_by(folder)
    manifest = read_manifest(folder)
    recorded: Mapping[str, Any] = manifest.state
    served = _recorded(folder, recorded, wanted) if recorded else wanted
    if served.summary is not None and served.summary.writer == ACTOR:
        return served.written_by(_frozen_actor(folder, manifest))
    return served


def _recorded(folder: Path, recorded: Mapping[str, Any], wanted: StateOptions) -> StateOptions:
    """What the manifest says; a warning if a person wants something else."""
    served = StateOptions.of(recorded)
    if served != wanted:
        names = [n for n, v in vars(served).items() if v != getattr(wanted, n)]
        warn(
            f"{folder} was trained with another state ({', '.join(f'state.{n}' for n in names)});"
            " it is shown the one it was trained with."
        )
    return served


def _frozen_actor(folder: Path, manifest: Manifest) -> Path:
    """The SFT actor that wrote the summaries in training: the folder itself after stage 1."""
    parent = manifest.parents.get("sft")
    if parent is None:
        return folder
    for place in (Path(parent["path"]), folder.parent / "sft"):
        if place.is_dir() and content_hash(place) == parent["hash"]:
            return place
    raise HandoffError(
        f"the summaries of {folder} are written by the SFT actor it was trained from "
        f"(state.summary.writer = actor), but {parent['path']} is gone or was altered; bring it "
        "back, there or as sft/ beside it."
    )
