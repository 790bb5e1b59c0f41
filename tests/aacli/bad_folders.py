"""Folders that a command must not write to, or that are no parent of the stage."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from stages.common.files import write_json
from stages.common.manifest import build_manifest
from stages.common.run_folder import MANIFEST
from tests.aacli.bad_input import OUT, Case, Place


def finished(at: Place, name: str, stage: str = "sft") -> str:
    """A copy of the sound model as a stage leaves it."""
    folder = at.root / name
    shutil.copytree(at.model, folder)
    manifest = build_manifest(folder, stage, recipe={"model": {"actor": "actor"}})
    write_json(folder / MANIFEST, manifest.to_json())
    return name


def rl(at: Place, sft: str, *words: str) -> list[str]:
    """``aac rl`` from an SFT folder."""
    return ["rl", "demo.yaml", "--no-reward", "--output-dir", OUT, "--sft", sft, *words]


def parent(id: str, change: Callable[[Place], object], *names: str) -> Case:
    """An SFT folder that is not as its run left it."""

    def make(at: Place) -> list[str]:
        finished(at, "sft")
        change(at)
        return rl(at, "sft")

    return Case(id, make, names)


def into(id: str, layout: Callable[[Place], str], *names: str) -> Case:
    """``aac sft`` into a folder."""

    def make(at: Place) -> list[str]:
        words = at.sft(
            at.rows({"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": "d"})
        )
        return [*words, "--output-dir", layout(at)]

    return Case(id, make, names)


def locked(at: Place) -> str:
    """A folder in which nobody may write."""
    (at.root / "locked").mkdir()
    (at.root / "locked").chmod(0o500)
    return "locked/run"


def altered(at: Place) -> None:
    """Weights that somebody trained on."""
    with (at.root / "sft/model.safetensors").open("ab") as file:
        file.write(b"x")


CASES = (
    into(
        "finished folder",
        lambda at: finished(at, "done"),
        "done already holds a finished run",
        "--overwrite",
    ),
    into(
        "output is a file",
        lambda at: at.write("out.txt", ""),
        "out.txt is a file",
        "must name a folder",
    ),
    into(
        "output below a file",
        lambda at: at.write("f", "") + "/run",
        "f/run cannot be written",
        "choose another",
    ),
    into("name too long", lambda at: "x" * 300, "cannot be written", "choose another --output-dir"),
    into(
        "folder of somebody",
        lambda at: at.write("own/letter.txt", "").split("/")[0],
        "own holds files",
        "left alone",
    ),
    into("model as output", lambda at: "actor", "actor holds files", "left alone"),
    parent("parent altered", altered, "sft was altered", "model.safetensors differs", "restore it"),
    parent(
        "parent lacks weights",
        lambda at: (at.root / "sft/model.safetensors").unlink(),
        "sft was altered",
    ),
    parent(
        "parent unfinished",
        lambda at: (at.root / "sft/manifest.json").unlink(),
        "run has not finished",
    ),
    parent(
        "broken manifest",
        lambda at: at.write("sft/manifest.json", "{"),
        "manifest.json is not valid JSON",
    ),
    parent(
        "foreign manifest",
        lambda at: at.write("sft/manifest.json", "{}"),
        "is not a manifest of aac",
    ),
    parent(
        "manifest is a list",
        lambda at: at.write("sft/manifest.json", "[]"),
        "is not a manifest of aac",
    ),
    Case(
        "no parent",
        lambda at: rl(at, "nowhere"),
        ("nowhere does not exist", "run aac sft first", "--sft"),
    ),
    Case("parent is a file", lambda at: rl(at, at.write("sft", "")), ("sft", "--sft")),
    Case(
        "parent of another stage",
        lambda at: rl(at, finished(at, "r", "reward")),
        ("the stage 'reward'", "--sft"),
    ),
    Case(
        "parent is a plain model", lambda at: rl(at, "actor"), ("actor has no manifest.json", "run")
    ),
    Case(
        "no reward model",
        lambda at: [w for w in rl(at, finished(at, "sft")) if w != "--no-reward"],
        ("needs a reward model", "train-reward", "--no-reward"),
    ),
    Case(
        "no such checkpoint",
        lambda at: at.sft(None, "--resume", "nowhere"),
        ("--resume nowhere is no checkpoint folder", "'auto' or 'never'"),
    ),
    Case(
        "anew and going on",
        lambda at: at.sft(None, "--overwrite", "--resume", "actor"),
        ("--overwrite starts anew", "give one of them"),
    ),
    Case(
        "root of all stages is a file",
        lambda at: ["run", "demo.yaml", "--output-dir", at.write("all", "")],
        ("all is a file", "must name a folder"),
    ),
    Case(
        "converted rows over a file",
        lambda at: [
            "data",
            "check",
            at.rows({}),
            "--to",
            "demonstrations",
            "--output",
            at.write("o", "x"),
        ],
        ("o exists", "--overwrite"),
    ),
    *([] if os.geteuid() == 0 else [into("no permission", locked, "locked/run cannot be written")]),
)
