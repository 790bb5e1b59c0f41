"""The single-turn proof: our gradient is TRL's, and a planted difference is seen."""

from dataclasses import replace

import pytest

from stages.bench import ppo_gradient
from stages.bench.ppo import Work, prepare
from stages.common.errors import RunError
from stages.common.libraries import quiet_libraries

WORK = Work("0.15 M", batch=3, response=5, epochs=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ppo")
    with quiet_libraries(None):
        prepare(folder, WORK)
    return folder


def apart(folder):
    with quiet_libraries(None):
        return ppo_gradient.gradients_apart(folder, WORK)


def test_the_gradients_are_the_same_at_every_step(folder):
    found = apart(folder)
    assert len(found) == WORK.epochs
    ppo_gradient.require_close(max(found))


def test_one_advantage_that_differs_is_seen(folder, monkeypatch):
    real = ppo_gradient.rows_of

    def planted(seen, pad):
        first, *rest = real(seen, pad)
        return [replace(first, advantage=first.advantage * 1.01), *rest]

    monkeypatch.setattr(ppo_gradient, "rows_of", planted)
    with pytest.raises(RunError, match="nothing was compared"):
        ppo_gradient.require_close(max(apart(folder)))


def test_nan_is_not_close():
    with pytest.raises(RunError):
        ppo_gradient.require_close(float("nan"))
