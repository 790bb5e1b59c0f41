"""The tables over seeds show each run, their mean and their least value."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stages.common.files import write_json
from stages.evaluation import seeds


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    folders = [tmp_path / "seed-0", tmp_path / "seed-1"]
    for folder, sampled in zip(folders, (0.5, 0.75), strict=True):
        folder.mkdir()
        stages = {"sft": {"success_sampled": sampled}, "rl": {"success_sampled": 1.0}}
        write_json(folder / "summary.json", {"seconds": 90.4, "stages": stages})
        kinds = {"lookup": {"success": sampled, "episodes": 4}}
        write_json(folder / "more-sft.json", {"success": 0.625, "kinds": kinds})
    return folders


def test_tables(runs, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["seeds", *map(str, runs)])
    seeds.main()
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in capsys.readouterr().out.splitlines()
        if "│" in line
    ]
    assert ["seed-0", "0.500", "-", "-", "1.000", "-", "-", "90"] in rows
    assert ["seed-0", "-", "-", "0.625", "-", "-"] in rows
    assert ["mean", "0.625", "-", "-", "1.000", "-", "-", "90"] in rows
    assert ["least", "0.500", "-", "-", "1.000", "-", "-", "90"] in rows
    assert ["lookup", "-", "-", "0.625", "-", "-"] in rows


@pytest.mark.parametrize("names", [[], ["nowhere"]])
def test_missing_runs(names, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["seeds", *names])
    with pytest.raises(SystemExit) as stop:
        seeds.main()
    assert stop.value.code == 2
    assert capsys.readouterr().err.strip()
