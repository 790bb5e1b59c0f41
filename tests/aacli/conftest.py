"""The real application in-process, with stand-ins for the heavy stages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from aacli.app import app
from tests.recipe.bad_recipes import GOOD


class Stages:
    """Records what each stage's ``run`` was called with; ``outcome`` may be an exception."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, Any, Any]] = []
        self.outcome: Any = {"loss": 0.5, "seconds": 2}
        for name in ("stages.sft.run", "stages.reward.run", "stages.rl.run", "stages.pipeline"):
            module = ModuleType(name)
            module.run = self._runner(name)  # type: ignore[attr-defined]
            module.review_demonstrations = None  # type: ignore[attr-defined]
            patch.setitem(sys.modules, name, module)

    def _runner(self, name: str) -> Callable[..., Any]:
        def run(recipe: Any, request: Any, **parts: Any) -> Any:
            self.calls.append((name, recipe, request))
            if isinstance(self.outcome, BaseException):
                raise self.outcome
            return self.outcome

        return run

    @property
    def request(self) -> Any:
        """The request of the only call."""
        ((_, _, request),) = self.calls
        return request


@pytest.fixture
def stages(monkeypatch) -> Stages:
    return Stages(monkeypatch)


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    """The working directory of a person with one recipe, demo.yaml."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo.yaml").write_text(GOOD)
    return tmp_path


@pytest.fixture
def aac() -> Callable[..., Any]:
    """Run ``aac WORDS...``; the result has exit_code, stdout and stderr."""

    def invoke(*words: Any) -> Any:
        return CliRunner().invoke(app, [str(word) for word in words])

    return invoke
