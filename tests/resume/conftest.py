"""The uninterrupted runs that others are compared with, made once."""

from __future__ import annotations

import pytest

from tests.resume.lab import Lab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"))
