"""``python -m stages.bench``, the real command."""

import json
import subprocess
import sys

import pytest

from stages.bench.__main__ import PARTS
from stages.bench.side import Side
from stages.common.errors import RunError


def bench(folder, *words):
    command = [sys.executable, "-m", "stages.bench", "--out", str(folder / "out"), *words]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--only", "pppo"), "--only pppo is unknown; expected one of ppo, grpo"),
        (("--quickstart", "nowhere"), "nowhere/summary.json does not exist"),
    ],
)
def test_what_cannot_be_measured_is_told_at_once(tmp_path, words, told):
    done = bench(tmp_path, *words)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_what_fails_in_another_process_is_one_sentence(tmp_path):
    log = tmp_path / "log"
    with (
        Side("json:loads", {"s": "{"}, threads=1, log=log) as side,
        pytest.raises(RunError, match="json:loads could not be measured: JSONDecodeError"),
    ):
        side.wait()
    assert "Traceback" in log.read_text()


@pytest.mark.full
@pytest.mark.parametrize("part", PARTS)
def test_each_part_in_its_smallest_form(tmp_path, part):
    done = bench(tmp_path, "--quick", "--threads", "1", "--only", part)
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "out/speed.json").read_text())
    assert list(content["sections"]) == list(content["part_seconds"]) == [part]
    assert content["failed"] == {}
    results = content["sections"][part]["results"]
    assert all(r["value"]["median"] >= 0 and r["sides"] for r in results)
    page = (tmp_path / "out/speed.md").read_text()
    assert content["sections"][part]["title"] in page
    assert all(r["what"] in page for r in results)
