"""Reading files: the same rows from every format, and mistakes named by file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from stages.common.errors import UsageError
from stages.common.records import read_records

ROWS = [{"a": "one\u2028line", "n": [1, 2]}, {"a": "zwei", "n": []}]


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def test_formats_give_the_same_rows(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\n\n"
    files = [
        write(tmp_path / "a.jsonl", lines),
        write(tmp_path / "b.json", json.dumps(ROWS)),
        write(tmp_path / "c.json", json.dumps({"data": ROWS})),
        write(tmp_path / "d.json", lines),
        tmp_path / "e.parquet",
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), files[-1])
    for file in files:
        assert [row for _, row in read_records(file)] == ROWS, file
    assert [place for place, _ in read_records(files[0])] == [
        f"{files[0]} line 1",
        f"{files[0]} line 2",
    ]
    assert read_records(files[1])[1][0] == f"{files[1]} row 2"


def test_a_run_folder_gives_its_trajectories(tmp_path: Path) -> None:
    inner = tmp_path / "trajectories"
    inner.mkdir()
    write(inner / "2.jsonl", '{"n": 2}\n')
    write(inner / "1.jsonl", '{"n": 1}\n')
    write(tmp_path / "metrics.jsonl", '{"n": 0}\n')
    assert [row["n"] for _, row in read_records(tmp_path)] == [1, 2]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": \n', r"a\.jsonl line 2 is not valid JSON"),
        ("a.jsonl", "[1]\n", r"a\.jsonl line 1 is a list, expected an object"),
        ("a.jsonl", "\n", "holds no rows"),
        ("a.json", "{", "is not valid JSON"),
        ("a.json", "[3]", r"a\.json row 1 is a number"),
        ("a.json", '{"data": 3}', "holds a number, expected a list"),
        ("a.json", "[]", "holds no rows"),
        ("a.csv", "x", r"is no \.jsonl, \.json or \.parquet file"),
        ("a.parquet", "x", "is not a whole parquet file"),
    ],
)
def test_mistakes(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_records(write(tmp_path / name, text))


def test_missing_binary_and_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read_records(tmp_path / "no.jsonl")
    with pytest.raises(UsageError, match="is a folder without"):
        read_records(tmp_path)
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="UTF-8"):
        read_records(tmp_path / "b.jsonl")
