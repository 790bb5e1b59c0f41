"""One home for all commands of a session."""

from __future__ import annotations

from typing import Any

import pytest

from stages.common import engine
from tests.readme.home import Home, in_own_database


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    made = Home(tmp_path_factory.mktemp("home"))
    in_own_database(made.place("database"))
    return made


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stands where the processes would be started; what it was given."""
    calls: list[Any] = []
    monkeypatch.setattr(engine, "run_launcher", lambda *given: calls.append(given))
    return calls
