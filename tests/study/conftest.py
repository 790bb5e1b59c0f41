"""A folder with a recipe that studies are made of."""

from __future__ import annotations

from pathlib import Path

import pytest

RECIPE = """
name: demo
model: {actor: some-base}
environment: {name: sql}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside it, ``demo.yaml`` is a recipe."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo.yaml").write_text(RECIPE)
