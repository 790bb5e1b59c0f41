"""The manifest: what a finished run was made from, and proof that nobody changed it since.

Stages meet only through folders on disk. ``verify_parent`` is what a stage calls before it spends
compute: it compares the folder with what the folder's own manifest recorded.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from stages.common.console import warn
from stages.common.errors import HandoffError, UsageError
from stages.common.files import file_hash, read_json
from stages.common.run_folder import MANIFEST

SCHEMA_VERSION = 1
_PACKAGES = ("aac", "torch", "transformers", "trl", "accelerate", "datasets", "deepspeed")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)
_STAGE_OF = {"start": "rl"}
"""What made a parent that is not named after its stage."""
_TEMPLATE_FILE = "chat_template.jinja"
ADAPTER_CONFIG = "adapter_config.json"
_MODEL_FILES = ("config.json", "generation_config.json", ADAPTER_CONFIG)
# Parts of tokenizer.json that calls to pad or cut change, and that say nothing about the mapping
# from text to ids.
_TOKENIZER_STATE = ("padding", "truncation")


@dataclass(frozen=True)
class Manifest:
    """All that a later stage, or a person in a year, needs to know about a finished run."""

    stage: str
    recipe: Mapping[str, Any]
    """The resolved recipe."""
    recipe_hash: str
    seed: int
    versions: Mapping[str, str]
    base_model: str
    """What the recipe started from."""
    content_hash: str
    """Of ``files``: one text that names this very checkpoint."""
    files: Mapping[str, str]
    """SHA-256 of each weight, config, tokenizer and template file."""
    tokenizer_hash: str
    chat_template_hash: str
    state: Mapping[str, Any]
    """Configuration of the state processor: serving must show the same prompts."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of the data, by name."""
    parents: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Earlier stages: ``{name: {"path", "hash"}}``; ``changed`` where one is no longer as used."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Final figures."""
    base: Mapping[str, str] = field(default_factory=dict)
    """``{"path", "hash"}`` of the whole model that the folder's adapters need; {}: none needed."""
    score: Mapping[str, float] | None = None
    """A reward model's ``{"mean", "std"}`` over the SFT actor's turns."""
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        """A JSON-able dictionary; ``from_json`` is its inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Manifest:
        """Rebuild from ``to_json`` output. Raises KeyError or TypeError on foreign rows."""
        known = {item.name for item in fields(cls)}
        return cls(**{name: value for name, value in row.items() if name in known})

    def with_score(self, mean: float, std: float) -> Manifest:
        """The same manifest with a reward model's score statistics."""
        return replace(self, score={"mean": float(mean), "std": float(std)})


def build_manifest(
    folder: Path,
    stage: str,
    *,
    recipe: Mapping[str, Any],
    parents: Mapping[str, Path] | None = None,
    used: Mapping[str, str] | None = None,
    data: Mapping[str, str] | None = None,
    metrics: Mapping[str, Any] | None = None,
) -> Manifest:
    """Describe a folder whose weights are saved. ``recipe`` is ``Recipe.model_dump(mode="json")``.

    ``data`` maps names to fingerprints (``fingerprint``). ``used``: content hashes of the parents
    when the run began; a parent that has changed since is told, and so in the manifest. Parents
    without one must hold a manifest now.
    """
    files = file_hashes(folder)
    return Manifest(
        stage=stage,
        recipe=recipe,
        recipe_hash=fingerprint(recipe),
        seed=int(recipe.get("seed", 0)),
        versions=versions(),
        base_model=str(recipe.get("model", {}).get("actor", "")),
        content_hash=fingerprint(files),
        files=files,
        tokenizer_hash=tokenizer_hash(folder),
        chat_template_hash=chat_template_hash(folder),
        state=dict(recipe.get("state", {})),
        data=dict(data or {}),
        parents={
            name: _parent(name, path, (used or {}).get(name))
            for name, path in (parents or {}).items()
        },
        metrics=dict(metrics or {}),
        base=_base(folder),
    )


def adapter_base(folder: str | Path) -> str | None:
    """Folder or hub id of the model that the adapters in ``folder`` need; None: it holds none.

    Raises UsageError when it names no base.
    """
    config = Path(folder) / ADAPTER_CONFIG
    if not config.is_file():
        return None
    base = read_json(config).get("base_model_name_or_path")
    if not base:
        raise UsageError(f"{config} names no base model; set base_model_name_or_path in it.")
    return str(base)


def read_manifest(folder: Path) -> Manifest:
    """Read ``manifest.json``. Raises HandoffError when there is none or it is not one of ours."""
    if not folder.is_dir():
        raise HandoffError(f"{folder} does not exist; run the stage that makes it first.")
    if not (folder / MANIFEST).is_file():
        raise HandoffError(
            f"{folder} has no {MANIFEST}, so its run has not finished; run that stage to its end."
        )
    row = read_json(folder / MANIFEST)
    try:
        manifest = Manifest.from_json(row)
    except (TypeError, KeyError, AttributeError):
        raise HandoffError(
            f"{folder / MANIFEST} is not a manifest of aac; run that stage again with --overwrite."
        ) from None
    if manifest.schema_version > SCHEMA_VERSION:
        raise HandoffError(
            f"{folder / MANIFEST} has schema version {manifest.schema_version}, this aac knows up "
            f"to {SCHEMA_VERSION}; update aac."
        )
    return manifest


def verify_parent(path: Path, stage: str = "sft") -> Manifest:
    """The manifest of a parent that is finished, of the right stage, and unaltered.

    Raises HandoffError in one sentence otherwise.
    """
    if not path.is_dir():
        raise HandoffError(
            f"the {stage} folder {path} does not exist; run aac {_command(stage)} first, "
            f"or name another with --{stage}."
        )
    manifest = read_manifest(path)
    if manifest.stage != stage:
        raise HandoffError(
            f"{path} was made by the stage '{manifest.stage}', expected '{stage}'; name another "
            f"folder with --{stage}."
        )
    altered = _altered(manifest.files, file_hashes(path))
    if altered:
        raise HandoffError(
            f"{path} was altered after its run finished ({altered} differs from its manifest); "
            f"restore it, or run aac {_command(stage)} again with --overwrite."
        )
    if manifest.base != _base(path):
        raise HandoffError(
            f"the adapters of {path} belong to the model {manifest.base.get('path')}, which has "
            f"changed or is gone; restore it, or run aac {_command(stage)} again with --overwrite."
        )
    return manifest


def content_hash(folder: Path) -> str:
    """One hash over the weights, configs, tokenizer and chat template of a model folder."""
    return fingerprint(file_hashes(folder))


def file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 by file name of all that decides what the model in ``folder`` says."""
    names = {*_MODEL_FILES, *_TOKENIZER_FILES, _TEMPLATE_FILE}
    found = [p for p in folder.iterdir() if p.name in names or _is_weights(p)]
    return {path.name: file_hash(path) for path in sorted(found) if path.is_file()}


def tokenizer_hash(folder: Path) -> str:
    """Hash of the mapping from text to token ids; equal after a load and save. '' if there is none.

    Padding and truncation settings and the chat template take no part.
    """
    fast = folder / "tokenizer.json"
    if fast.is_file():
        content = read_json(fast)
        return fingerprint({k: v for k, v in content.items() if k not in _TOKENIZER_STATE})
    slow = [folder / name for name in _TOKENIZER_FILES if name != "tokenizer_config.json"]
    found = {path.name: file_hash(path) for path in slow if path.is_file()}
    return fingerprint(found) if found else ""


def chat_template_hash(folder: Path) -> str:
    """Hash of the chat template's text, wherever the tokenizer keeps it. '' if there is none."""
    if (folder / _TEMPLATE_FILE).is_file():
        return fingerprint((folder / _TEMPLATE_FILE).read_text(encoding="utf-8"))
    config = folder / "tokenizer_config.json"
    template = read_json(config).get("chat_template") if config.is_file() else None
    return fingerprint(template) if template else ""


def fingerprint(content: Any) -> str:
    """SHA-256 of the canonical JSON of ``content``."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide the numbers."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _base(folder: Path) -> dict[str, str]:
    base = adapter_base(folder)
    if base is None:
        return {}
    return {"path": base, "hash": content_hash(Path(base)) if Path(base).is_dir() else ""}


def _parent(name: str, path: Path, used: str | None) -> dict[str, str]:
    if used is None:
        return {"path": str(path), "hash": read_manifest(path).content_hash}
    changed = _changed(path, _STAGE_OF.get(name, name), used)
    if changed:
        warn(f"since this run began, {changed} This run has used what was there before.")
    return {"path": str(path), "hash": used} | ({"changed": changed} if changed else {})


def _changed(path: Path, stage: str, used: str) -> str:
    """What became of a parent since it was read, as a sentence; '' where nothing did."""
    try:
        now = verify_parent(path, stage).content_hash
    except UsageError as error:
        return str(error)
    return "" if now == used else f"{path} was replaced by another run of the stage '{stage}'."


def _altered(recorded: Mapping[str, str], present: Mapping[str, str]) -> str:
    """The first file that was added, removed or changed; '' if none was."""
    names = sorted(recorded.keys() | present.keys())
    return next((n for n in names if recorded.get(n) != present.get(n)), "")


def _is_weights(path: Path) -> bool:
    return path.suffix == ".safetensors" or path.name.endswith(".safetensors.index.json")


def _command(stage: str) -> str:
    return "train-reward" if stage == "reward" else stage
