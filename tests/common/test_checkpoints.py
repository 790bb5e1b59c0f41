"""Torn and damaged checkpoints are never gone on from; one that cannot be written harms none."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from stages.common import interrupts
from stages.common.checkpoints import (
    SEAL,
    WRITING,
    Origin,
    all_checkpoints,
    fault,
    newest_whole,
    notes_of,
    prune,
    written,
)
from stages.common.errors import RunError, UsageError
from stages.common.moments import load_optimizer
from stages.common.save_points import SavePoints
from tests.disks import largest_file, small_disk


def write(folder: Path, step: int, size: int = 100) -> Path:
    target = folder / f"checkpoint-{step}"
    with written(target, Origin("recipe"), {"step": step}) as place:
        (place / "state.pt").write_bytes(bytes(size))
        (place / "parts").mkdir()
        (place / "parts/one.bin").write_bytes(b"one")
    return target


def test_a_checkpoint_is_whole_and_tells_its_notes(tmp_path: Path) -> None:
    made = write(tmp_path, 3)
    assert fault(made) == "" and notes_of(made) == {"step": 3}
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-3"]  # nothing temporary is left


def truncate(checkpoint: Path) -> None:
    with (checkpoint / "state.pt").open("r+b") as file:
        file.truncate(50)


def flip(checkpoint: Path) -> None:
    with (checkpoint / "state.pt").open("r+b") as file:
        file.seek(60)
        file.write(b"x")


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (truncate, "state.pt has 50 bytes and had 100"),
    "one byte": (flip, "state.pt has changed since it was written"),
    "missing": (lambda c: (c / "parts/one.bin").unlink(), "parts/one.bin is missing"),
    "no seal": (lambda c: (c / SEAL).unlink(), f"it has no {SEAL}"),
    "half a seal": (lambda c: (c / SEAL).write_text('{"files'), f"its {SEAL} is broken"),
    "another seal": (lambda c: (c / SEAL).write_text("[]"), f"its {SEAL} is broken"),
    "empty": (lambda c: (shutil.rmtree(c), c.mkdir()), f"it has no {SEAL}"),  # type: ignore
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_one_is_passed_over_and_that_is_said(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, words = DAMAGE[kind]
    older, newer = write(tmp_path, 9), write(tmp_path, 10)
    damage(newer)
    assert newest_whole(tmp_path) == older
    said = " ".join(capsys.readouterr().err.split())
    assert said == f"{newer} is not whole ({words}); going on from checkpoint-9 instead."
    damage(older)
    with pytest.raises(UsageError, match="--resume never") as caught:
        newest_whole(tmp_path)
    assert str(caught.value).count(words) == 2


def test_leftovers_of_a_kill_are_no_checkpoints(tmp_path: Path) -> None:
    assert newest_whole(tmp_path / "nothing") is None
    for name in ("checkpoint-11.tmp", "best", f"{WRITING}/checkpoint-12"):
        (tmp_path / name).mkdir(parents=True)
    assert newest_whole(tmp_path) is None
    made = write(tmp_path, 10)
    assert newest_whole(tmp_path) == made and not (tmp_path / WRITING).exists()


def test_the_newest_stay(tmp_path: Path) -> None:
    for step in (8, 9, 10, 100):
        write(tmp_path, step)
    prune(tmp_path, keep=2)
    assert [p.name for p in all_checkpoints(tmp_path)] == ["checkpoint-10", "checkpoint-100"]


# ---- a disk that is full


def refused(tmp_path: Path, fill: Callable[[Path], object], words: str) -> None:
    before = write(tmp_path, 1)
    with (
        pytest.raises(RunError, match="checkpoint-2 could not be written") as caught,
        largest_file(4096),
        written(tmp_path / "checkpoint-2", Origin(), {}) as place,
    ):
        fill(place / "state.pt")
    assert f"({words})" in str(caught.value) and caught.value.exit_code == 1
    assert newest_whole(tmp_path) == before
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-1"]


def test_a_file_too_large_ends_in_a_sentence(tmp_path: Path) -> None:
    refused(tmp_path, lambda file: file.write_bytes(bytes(8192)), "File too large")


def test_so_it_does_where_torch_hides_the_reason(tmp_path: Path) -> None:
    """Its writer raises a RuntimeError about its own insides."""
    refused(tmp_path, lambda file: torch.save(torch.zeros(9999), file), "File too large")


def test_a_full_file_system(tmp_path: Path) -> None:
    with small_disk(tmp_path, "256k"):
        before = write(tmp_path, 1)
        with pytest.raises(RunError, match="No space left on device"):
            write(tmp_path, 2, size=2**20)
        assert newest_whole(tmp_path) == before
        assert newest_whole(write(tmp_path, 2).parent) == tmp_path / "checkpoint-2"


def test_a_fault_of_our_own_is_told_as_what_it_is(tmp_path: Path) -> None:
    with (
        pytest.raises(RunError, match="ValueError: no such thing"),
        written(tmp_path / "checkpoint-2", Origin(), {}),
    ):
        raise ValueError("no such thing\nand more")


# ---- when they are due


def test_due_by_count_by_the_clock_or_when_asked() -> None:
    now = [0.0]
    points = SavePoints(every=3, minutes=2.0, clock=lambda: now[0])
    assert [points.due(step) for step in range(1, 7)] == [False, False, True] * 2
    now[0] = 119.0
    assert not points.due(1)
    now[0] = 120.0
    assert points.due(1)
    points.saved()
    assert not points.due(1) and not points.interrupted()
    never = SavePoints(every=0, minutes=0, clock=lambda: now[0] * 1e9)
    assert not any(never.due(step) for step in range(10))


def test_the_first_interrupt_asks_and_the_second_ends() -> None:
    points = SavePoints(every=0, minutes=0)
    with interrupts.listening():
        with pytest.raises(KeyboardInterrupt), interrupts.deferred():
            signal.raise_signal(signal.SIGTERM)
            assert points.due(1) and points.interrupted()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        # Outside of what defers the first one ends it, and so it does inside a new command.
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert not points.due(1)


def test_an_interrupt_that_nobody_looked_at_ends_what_comes_after() -> None:
    done = []
    with interrupts.listening(), pytest.raises(KeyboardInterrupt):
        with interrupts.deferred():
            signal.raise_signal(signal.SIGINT)
            done.append("the loop's last step")
        done.append("never")
    assert done == ["the loop's last step"]


# ---- what optimizers remember


def stepped() -> torch.optim.Optimizer:
    layer = torch.nn.Linear(2, 3)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return optimizer


def test_moments_are_looked_at() -> None:
    saved = stepped().state_dict()
    load_optimizer(stepped(), saved, "critic's")
    saved["state"][0]["exp_avg"][0, 0] = float("inf")
    words = "the checkpoint's critic's optimizer, parameter 0: exp_avg is not finite"
    with pytest.raises(UsageError, match=words):
        load_optimizer(stepped(), saved, "critic's")
    saved["state"][0]["exp_avg"] = torch.zeros(3, 2)
    saved["state"][0]["blocks"] = torch.zeros(7, dtype=torch.uint8)  # of a quantised optimizer
    load_optimizer(stepped(), saved, "critic's")
    saved["state"][0]["exp_avg"] = torch.zeros(2, 3)
    with pytest.raises(UsageError, match=r"has the shape \(2, 3\), expected \(3, 2\)"):
        load_optimizer(stepped(), saved, "critic's")
    saved["param_groups"][0]["params"] = [0]
    with pytest.raises(UsageError, match="has 1 parameters, and the model has 2"):
        load_optimizer(stepped(), saved, "critic's")
