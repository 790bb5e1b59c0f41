"""What a command that README.md or recipes/README.md shows leaves behind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from stages.common.manifest import read_manifest
from stages.study.study import load_study
from tests.readme.documents import ROOT

Effect = Callable[[Path, Any], None]
"""(folder, result) -> nothing; asserts what the command is for."""
ALL_STAGES = ("sft", "reward", "rl")
Q = "recipes/quickstart.yaml"


def finished(*stages: str, under: str = "runs/quickstart") -> Effect:
    """These stages left folders whose manifests name their parents, and a summary."""

    def effect(folder: Path, _: Any) -> None:
        root = folder / under
        for name in stages:
            manifest = read_manifest(root / name)
            assert manifest.stage == name
            assert set(manifest.parents) == set(stages[: stages.index(name)])
            assert list((root / name).glob("*model.safetensors"))  # or adapters alone
        assert list(json.loads((root / "summary.json").read_text())["stages"]) == [*stages]

    return effect


def quickstart(folder: Path, result: Any) -> None:
    """The tables and what to type next, as the README promises."""
    finished(*ALL_STAGES)(folder, result)
    for words in ("base, zero-shot", "most frequent answer", "repeated", "groups never seen"):
        assert words in result.stdout
    assert "next: aac report runs/quickstart" in result.stdout
    assert f"aac chat {Q}" in result.stdout


def stage(under: str, **keys: Any) -> Effect:
    """A stage's folder, whose recipe says these keys (dots as __)."""

    def effect(folder: Path, _: Any) -> None:
        recipe = read_manifest(folder / under).recipe
        for dotted, wanted in keys.items():
            value: Any = recipe
            for part in dotted.split("__"):
                value = value[part]
            assert value == wanted, (dotted, value)

    return effect


def learnt(stage: str, data: str) -> Effect:
    """A stage that read the person's file, and no other."""

    def effect(folder: Path, _: Any) -> None:
        manifest = read_manifest(folder / f"runs/my-agent/{stage}")
        assert manifest.stage == stage and list(manifest.data) == [data]

    return effect


def said(*words: str) -> Effect:
    """Words on the screen."""

    def effect(_: Path, result: Any) -> None:
        for text in words:
            assert text in result.output, (text, result.output)

    return effect


def both(*effects: Effect) -> Effect:
    """All of them."""

    def effect(folder: Path, result: Any) -> None:
        for one in effects:
            one(folder, result)

    return effect


def written(name: str, *words: str) -> Effect:
    """A file with these words in it."""

    def effect(folder: Path, _: Any) -> None:
        text = (folder / name).read_text()
        for part in words:
            assert part in text, part

    return effect


def dry(folder: Path, result: Any) -> None:
    """Everything was looked at, and nothing written."""
    assert "sft: in order" in result.stdout and "reward: to be checked" in result.stdout
    assert not (folder / "runs").exists()


def converted(folder: Path, result: Any) -> None:
    """Two tasks, each with a better and a worse episode; the bad row is left out and told."""
    (path,) = folder.glob("episodes*.preferences.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 2 and all({"chosen", "rejected"} <= set(row) for row in rows)
    assert "line 5 has no assistant message" in result.output


def pool(folder: Path, _: Any) -> None:
    """As many whole episodes as were asked for."""
    rows = (folder / "runs/quickstart/experience.jsonl").read_text().splitlines()
    assert len(rows) == 6 and json.loads(rows[0])["turns"]


def offline(folder: Path, _: Any) -> None:
    """An actor and a critic that learnt from that pool."""
    stage("runs/offline", rl__offline__pool="runs/quickstart/experience.jsonl")(folder, _)
    assert (folder / "runs/offline/critic").is_dir()


def online(folder: Path, _: Any) -> None:
    """It went on from the other's actor and critic."""
    assert set(read_manifest(folder / "runs/online").parents) == {"sft", "start"}


def watched(_: Path, result: Any) -> None:
    """Each turn was proposed four times, and that is what it cost."""
    row = json.loads(result.stdout)["supervision"]
    assert row["proposals_per_turn"] == 4 and row["tokens_ratio"] > 2


def planned(processes: int) -> Effect:
    """What each of so many devices holds."""

    def effect(_: Path, result: Any) -> None:
        row = json.loads(result.stdout)
        assert row["processes"] == processes, row
        assert set(row["stages"]) >= {"sft", "rl"}

    return effect


def launch(*words: str) -> Effect:
    """The processes were started with these words."""

    def effect(_: Path, result: Any) -> None:
        line = next(x for x in result.output.splitlines() if x.startswith("launching: "))
        for word in words:
            assert word in line, (word, line)

    return effect


def study(name: str) -> Effect:
    """Every variant of the study under every seed is to be run; nothing was written."""

    def effect(folder: Path, result: Any) -> None:
        found = load_study(ROOT / f"recipes/studies/{name}.yaml")
        for variant, seed in product(found.variants, found.seeds):
            assert re.search(rf"seed {seed}, {variant} +rl +to do", result.output), result.output
        assert not (folder / f"runs/compare/{name}").exists()

    return effect


def compared(folder: Path, result: Any) -> None:
    """A row for every variant and seed, and the picture."""
    (path,) = folder.glob("runs/compare/*/compare.json")
    found = json.loads(path.read_text())
    assert len(found["rows"]) == 2 * len({row["seed"] for row in found["rows"]})
    assert path.with_name("compare.png").stat().st_size > 1000
