"""A run's adapters merged into their base: a plain Hugging Face folder that needs no peft."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from stages.common.errors import UsageError
from stages.common.files import write_json
from stages.common.manifest import (
    Manifest,
    adapter_base,
    content_hash,
    file_hashes,
    read_manifest,
)
from stages.common.run_folder import HELD_OUT, MANIFEST, ROWS

KEPT = ("summary.json", "critic", ROWS, HELD_OUT)
"""What goes along besides the model, where there is some of it."""


def export(run: Path, output: Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Merge the adapters of a finished run into ``output``, which appears whole or not at all.

    Weights are merged in float32 and kept in the base's type. The manifest goes along with the new
    files' hashes, so that the folder stands for the run in every command. Raises HandoffError for
    an unfinished run, UsageError for one without adapters or an output that is there already.
    """
    manifest = read_manifest(run)
    if adapter_base(run) is None:
        raise UsageError(f"{run} holds a whole model already, with no adapters to merge; copy it.")
    if output.exists() and not overwrite:
        raise UsageError(f"{output} is there already; pass --overwrite or another --output-dir.")
    if output.resolve() in (run.resolve(), *run.resolve().parents):
        raise UsageError(f"{output} holds the run itself; give another --output-dir.")
    writing = output.with_name(f".{output.name}.partial")
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir(parents=True)
    try:
        dtype = _write(run, writing, manifest)
        _put(writing, output)
    finally:
        shutil.rmtree(writing, ignore_errors=True)
    return {"folder": str(output), "base": adapter_base(run), "dtype": dtype}


def _write(run: Path, folder: Path, manifest: Manifest) -> str:
    from stages.common.models import (
        load_actor,
        load_reward_model,
        load_tokenizer,
        save_folder,
        stored_dtype,
    )

    load = load_reward_model if manifest.stage == "reward" else load_actor
    dtype = stored_dtype(str(adapter_base(run)))
    model = load(run, dtype=dtype)
    card = f"Merged from {run.name} of the aac recipe {manifest.recipe.get('name', '')}."
    save_folder(model, load_tokenizer(run), folder, card=card)
    for name in KEPT:
        if (run / name).is_dir():
            shutil.copytree(run / name, folder / name)
        elif (run / name).is_file():
            shutil.copyfile(run / name, folder / name)
    merged = replace(
        manifest, files=file_hashes(folder), content_hash=content_hash(folder), base={}
    )
    write_json(folder / MANIFEST, merged.to_json())
    return dtype


def _put(writing: Path, output: Path) -> None:
    """Rename into place; what was there goes only once the new folder is whole."""
    old = output.with_name(f".{output.name}.replaced")
    shutil.rmtree(old, ignore_errors=True)
    if output.exists():
        os.replace(output, old)
    os.replace(writing, output)
    shutil.rmtree(old, ignore_errors=True)
