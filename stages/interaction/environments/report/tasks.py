"""Report tasks: generated, or a person's own questions about a person's own folder."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stages.common.errors import UsageError
from stages.interaction.environments.base import SPLITS, Task
from stages.interaction.environments.report.company import Company, pose
from stages.interaction.environments.report.options import ReportOptions
from stages.interaction.environments.splits import distinct, fingerprint_id, split_of


def generate(options: ReportOptions, split: str, count: int, seed: int) -> list[Task]:
    """``count`` distinct tasks of a split; kinds in turn."""
    return distinct(_draws(options, split, seed), split, count)


def _draws(options: ReportOptions, split: str, seed: int) -> Iterator[Task | None]:
    rng = random.Random(f"report/{split}/{seed}")
    made = 0
    while True:
        kind = options.kinds[made % len(options.kinds)]
        company = rng.getrandbits(40)
        # A company belongs to one split with all its documents.
        if split_of(str(company)) != split:
            yield None
            continue
        question = pose(kind, Company.of(company, options.regions), rng)
        made += 1
        payload = {"company": company, "regions": options.regions, **question}
        yield Task(fingerprint_id(kind, json.dumps(payload)), kind, "company", payload)


def own_tasks(path: Path, split: str, count: int, seed: int) -> list[Task]:
    """Up to ``count`` of a person's questions of a split. UsageError on a bad file or split."""
    if split not in SPLITS:
        raise UsageError(f"unknown split {split!r}; expected one of {', '.join(SPLITS)}")
    tasks = [task for where, task in _own(path) if where == split]
    random.Random(f"own/{split}/{seed}").shuffle(tasks)
    return tasks[:count]


def _own(path: Path) -> Iterator[tuple[str, Task]]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"environment.questions: {path} cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            row = _row(line, f"environment.questions: {path}, line {number}")
            digest = fingerprint_id("own", json.dumps([row["question"], row["answer"]]))
            payload = {"text": row["question"], "answer": row["answer"]}
            payload["needed"] = [str(name) for name in row.get("documents", [])]
            task = Task(str(row.get("id", digest)), "own", "own", payload)
            yield row.get("split") or split_of(task.id), task


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where} is no JSON: {error}") from None
    if not (isinstance(row, dict) and isinstance(row.get("question"), str) and row.get("answer")):
        raise UsageError(f'{where} lacks "question" or "answer", got {line[:80]}')
    if row.get("split", "train") not in SPLITS:
        raise UsageError(f"{where}: split {row['split']!r}, expected one of {', '.join(SPLITS)}")
    return row
