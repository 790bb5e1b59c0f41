"""A study: variants of one recipe under the same seeds, from a file or from the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from stages.common.errors import UsageError
from stages.recipe.load import load_recipe
from stages.recipe.messages import sentence
from stages.recipe.section import Section
from stages.recipe.source import parse_yaml, read_recipe
from stages.study.arms import NAME, SupervisionSection

SEEDS = (0, 1, 2)
AFTER = "after"
"""Key of a variant: another one, whose actor and critic it goes on from."""
WARM_START = "warm_start"
"""Key of a variant: another one, with whose critic its own begins."""
FROM_OTHERS = {AFTER: "comes after", WARM_START: "takes the critic of"}
"""Keys of a variant that name another one, in words."""
PLAIN = "plain"
"""The only variant of a study that varies nothing."""


class Study(Section):
    """What a study file holds. ``set`` and each variant map dotted recipe paths to values."""

    name: str = Field(pattern=NAME)
    """Names the folder: runs/compare/<name>."""
    recipe: Path
    """The recipe that all variants start from, beside the study or in the working directory."""
    seeds: tuple[int, ...] = Field(SEEDS, min_length=1)
    """Each seed has an SFT (and reward) run of its own, which all its variants share."""
    set: dict[str, Any] = {}
    """Overrides that hold for all variants."""
    variants: dict[str, dict[str, Any]] = Field(min_length=1)
    """Overrides by the variant's name; the others are compared with the first. ``after``: another
    variant, from whose actor and critic this one's RL goes on; ``warm_start``: one with whose
    critic its own begins."""
    supervision: SupervisionSection | None = None
    """Actors that are played under supervision once all variants are trained; none: none are."""

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if min(seeds) < 0 or len(set(seeds)) < len(seeds):
            raise ValueError(f"{list(seeds)}, expected different whole numbers of at least 0")
        return seeds

    @field_validator("set", "variants")
    @classmethod
    def _no_seed(cls, overrides: dict[str, Any]) -> dict[str, Any]:
        if "seed" in overrides or any("seed" in v for v in overrides.values() if type(v) is dict):
            raise ValueError("it sets seed, expected the seeds under seeds only")
        return overrides

    @field_validator("variants")
    @classmethod
    def _after_others(cls, variants: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Those gone on from stand first, so that no circle can be written."""
        before: list[str] = []
        for name, changes in variants.items():
            for key, words in FROM_OTHERS.items():
                if key not in changes or changes[key] in before:
                    continue
                raise ValueError(
                    f"{name} {words} {changes[key]}, expected a variant that stands before it"
                    f"{' (' + ', '.join(before) + ')' if before else ', and it is the first'}"
                )
            before.append(name)
        return variants

    @model_validator(mode="after")
    def _watches_variants(self) -> Study:
        missing = self.supervision.missing(self.variants) if self.supervision else []
        if missing:
            raise ValueError(
                f"supervision.actors names {', '.join(missing)}, expected variants (or sft as an "
                f"actor): {', '.join(self.variants)}"
            )
        return self

    @field_validator("variants")
    @classmethod
    def _names(cls, variants: dict[str, Any]) -> dict[str, Any]:
        for name in variants:
            if not re.match(NAME, name):
                raise ValueError(f"{name!r} names no folder, expected letters, digits and ._=,+-")
        return variants


def load_study(path: Path, *, vary: Sequence[str] = (), seeds: str | None = None) -> Study:
    """The study in a file, or the one that ``vary`` makes of a recipe. Raises UsageError.

    A file with the key ``recipe`` or ``variants`` is a study. ``seeds`` (see ``parse_seeds``) goes
    before its own.
    """
    content = read_recipe(path)
    chosen = {} if seeds is None else {"seeds": parse_seeds(seeds)}
    if not {"recipe", "variants"} & content.keys():
        name = load_recipe(path).name
        return Study(name=name, recipe=path, variants=varied(vary), **chosen)
    if vary:
        raise UsageError(
            f"{path} is a study, which names its variants; write them there, or give --vary with "
            "a recipe."
        )
    try:
        study = Study.model_validate(content | chosen)
    except ValidationError as error:
        raise UsageError(sentence(error, model=Study, content=content, file=str(path))) from None
    beside = path.parent / study.recipe
    return study.model_copy(update={"recipe": beside}) if beside.is_file() else study


def parse_seeds(text: str) -> tuple[int, ...]:
    """``5`` is the seeds 0 to 4; ``0,3`` (or ``7,``) are those seeds. Raises UsageError."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    numbers = [int(part) for part in parts if part.isdecimal()]
    seeds = numbers if "," in text else list(range(numbers[0])) if numbers else []
    if not seeds or len(numbers) < len(parts) or len(set(seeds)) < len(seeds):
        raise UsageError(
            f"--seeds {text} is not understood; expected how many (5: the seeds 0 to 4), or "
            "different seeds with commas (0,3,7)."
        )
    return tuple(seeds)


def varied(options: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The product over all ``path=a,b,c`` options; the last one changes fastest.

    A variant is named after its values: ``exchanges=2,history=false``. Values are read as YAML, so
    a list is written ``[a,b]``. Raises UsageError.
    """
    if not options:
        return {PLAIN: {}}
    axes = [_axis(text) for text in options]
    paths = [path for path, _ in axes]
    if len(set(paths)) < len(paths):
        raise UsageError(f"--vary {paths[-1]} is given twice; write all its values in one --vary.")
    last = [path.rsplit(".", 1)[-1] for path in paths]
    labels = last if len(set(last)) == len(last) else paths
    variants = {}
    for values in product(*(values for _, values in axes)):
        words = (f"{n}={_word(v)}" for n, v in zip(labels, values, strict=True))
        variants[",".join(words)] = dict(zip(paths, values, strict=True))
    return variants


def override_texts(overrides: Mapping[str, Any]) -> list[str]:
    """Overrides as ``--set`` takes them (JSON is YAML)."""
    return [f"{path}={json.dumps(value, default=str)}" for path, value in overrides.items()]


def _axis(text: str) -> tuple[str, list[Any]]:
    path, equals, values = text.partition("=")
    path = path.strip()
    found = parse_yaml(f"[{values}]", f"--vary {text}") if equals else []
    if not path or not found:
        raise UsageError(
            f"--vary {text} is not understood; expected path=a,b,c, as in "
            "rl.ppo.gae_lambda=0.9,0.95,1."
        )
    if path == "seed":
        raise UsageError(f"--vary {text}: seeds are no variants; give them with --seeds.")
    words = [_word(value) for value in found]
    if len(set(words)) < len(words):
        raise UsageError(f"--vary {text} holds a value twice; give different ones.")
    return path, found


def _word(value: Any) -> str:
    """A value as a part of a folder's name."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-") or "empty"
