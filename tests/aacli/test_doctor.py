"""``aac doctor`` by the real command, on this machine and on poorer ones."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from stages.common import machine


def findings(aac: Any) -> dict[str, dict[str, Any]]:
    result = aac("doctor", "--json")
    assert result.exit_code == 0, result.stderr
    return {found["name"]: found for found in json.loads(result.stdout)["findings"]}


def test_what_is_here_is_named_with_its_version(aac: Any):
    found = findings(aac)
    for name in ("torch", "trl", "deepspeed", "transformers"):
        assert found[name]["here"] and found[name]["detail"] == metadata.version(name)
    asked = {"peft", "bitsandbytes", "vllm", "faiss", "GPU", "nccl", "gloo", "CPU bf16", "libaio"}
    assert asked <= set(found) and {"memory", "disk", "models/"} <= set(found)
    assert all(f["here"] or f["advice"] for f in found.values())


def test_what_is_missing_is_said_with_what_to_install(aac: Any, monkeypatch):
    real = metadata.version

    def version(name: str) -> str:
        if name in ("peft", "trl"):
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(machine.metadata, "version", version)
    found = findings(aac)
    assert not found["peft"]["here"]
    assert found["peft"]["advice"] == "pip install -c constraints.txt peft"
    result = aac("doctor")
    assert result.exit_code == 0 and "nothing works without: trl" in result.stdout
    assert json.loads(aac("doctor", "--json").stdout)["ready"] is False


def test_a_trl_without_ppo_is_not_the_right_one(monkeypatch):
    monkeypatch.setattr(machine.metadata, "version", lambda name: "1.13.0")
    assert machine.package("trl").here is False
    assert "<1.13" in machine.package("trl").advice


@pytest.mark.parametrize("held", [True, False])
def test_models_of_the_ignored_folder_are_listed(aac: Any, tmp_path: Path, monkeypatch, held: bool):
    monkeypatch.chdir(tmp_path)
    if held:
        (tmp_path / "models/mine").mkdir(parents=True)
        (tmp_path / "models/mine/config.json").write_text("{}")
    found = findings(aac)["models/"]
    assert (found["here"], "mine" in found["detail"]) == (held, held)


def test_the_table_reads(aac: Any):
    result = aac("doctor")
    assert result.exit_code == 0
    assert "All that every recipe needs is here" in result.stdout
    assert "deepspeed" in result.stdout and "ZeRO" in result.stdout
