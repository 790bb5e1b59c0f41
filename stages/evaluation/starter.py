"""A first recipe from what a person has: files are recognised, the rest has defaults."""

from __future__ import annotations

import inspect
import json
import os
import re
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stages.common.errors import UsageError
from stages.common.model_folder import CONFIG, check_model_folder
from stages.common.records import read_records
from stages.evaluation.data_shapes import PREFERENCES, TRAJECTORIES, examine
from stages.interaction.environments import ADAPTERS, ENVIRONMENTS
from stages.interaction.environments.adapters.entry import load_entry
from stages.interaction.environments.adapters.options import ENTRY

BASE = Path("recipes/base")
"""The tiny model that comes with a clone of the project."""
BUILT_IN = tuple(name for name in ENVIRONMENTS if name not in ADAPTERS)
"""Worlds that need nothing but their name."""
LOOKED_AT = 200
"""Rows of a data file that decide what it is."""
DATA = (".jsonl", ".json", ".parquet")
_SQLITE = b"SQLite format 3\0"
_PLAIN = re.compile(r"[A-Za-z0-9_./-]*[A-Za-z][A-Za-z0-9_./-]*")
"""Texts that YAML reads as themselves, without quotes."""


@dataclass(frozen=True)
class Start:
    """What a starter recipe is written from; None: not there, or not known yet."""

    model: str | None = None
    environment: str | None = None
    """A built-in world's name, or ``module:name`` of a person's own."""
    kind: str = ""
    """The key of that ``module:name``: trl, gymnasium or program."""
    demonstrations: Path | None = None
    preferences: Path | None = None
    database: Path | None = None
    questions: Path | None = None


def recognised(things: Iterable[str]) -> Start:
    """What files, folders and ``module:name`` are, by their content.

    A folder that is no model is looked into. Raises UsageError for a thing that is nothing of use
    and for two things of one sort.
    """
    start = Start()
    for thing in things:
        for found in _found(thing):
            for name, value in found.items():
                before = getattr(start, name)
                if before:
                    raise UsageError(f"{before} and {value} are both {name}; give one of them.")
                start = replace(start, **{name: value})
    return start


def _found(thing: str) -> list[dict[str, Any]]:
    path = Path(thing)
    if not path.exists():
        if re.match(ENTRY, thing):
            return [{"environment": thing, "kind": entry_kind(thing)}]
        raise UsageError(
            f"{thing} does not exist; give data files, a SQLite file, a model folder, a folder of "
            "such, or module:Class of an environment."
        )
    if path.is_file():
        return [_file(path)]
    if (path / CONFIG).is_file():
        check_model_folder(path, writes=True)
        return [{"model": str(path)}]
    inside = [p for p in sorted(path.iterdir()) if _may_be_of_use(p)]
    if not inside:
        raise UsageError(f"{path} holds no data file, no SQLite file and no model folder.")
    return [found for inner in inside for found in _found(str(inner))]


def _may_be_of_use(path: Path) -> bool:
    if path.is_dir():
        return (path / CONFIG).is_file()
    return path.suffix in DATA or _is_sqlite(path)


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def _file(path: Path) -> dict[str, Any]:
    """What one file is; the first row that is not sound is told."""
    if _is_sqlite(path):
        return {"database": path}
    records = read_records(path)[:LOOKED_AT]
    if all({"question", "sql"} <= set(row) for _, row in records):
        return {"questions": path}
    findings = [examine(record) for record in records]
    if problem := next((found.problem for found in findings if found.problem), None):
        raise UsageError(problem)
    kinds = [found.shape.startswith(PREFERENCES) for found in findings]
    if any(found.shape == TRAJECTORIES for found in findings) or any(kinds) != all(kinds):
        raise UsageError(
            f"{path} is no file of dialogues or preferences as it stands; aac data check {path} "
            "says what it can become."
        )
    return {"preferences" if all(kinds) else "demonstrations": path}


def in_world(start: Start, world: str | None) -> Start:
    """The start with this world: a built-in one's name, or ``module:name`` of a person's own.

    UsageError for a world that is not known.
    """
    kind = entry_kind(world) if world and ":" in world else ""
    if world is not None and not kind and world not in BUILT_IN:
        raise UsageError(
            f"environment {world!r} is not known; expected one of {', '.join(BUILT_IN)}, or "
            "module:Class of your own."
        )
    return replace(start, environment=world, kind=kind)


def entry_kind(entry: str) -> str:
    """Which adapter the object behind ``module:name`` is for. UsageError if it cannot be loaded."""
    found = load_entry(entry, "environment")
    if inspect.isclass(found):
        return "gymnasium" if hasattr(found, "step") else "trl"
    takes = inspect.signature(found).parameters
    return "program" if "base_url" in takes else "gymnasium"


def is_tiny(model: str) -> bool:
    """Whether it is the model that comes with the project, which knows few words but its own."""
    return Path(model).resolve() == BASE.resolve()


def brings_words(start: Start) -> bool:
    """Whether the actor meets words of the person's own: their files, their world."""
    own = (start.demonstrations, start.preferences, start.database, start.questions)
    return any(file is not None for file in own) or start.environment not in (None, *BUILT_IN)


def write_questions(database: Path, output: Path) -> int:
    """A first file of questions about a SQLite file, one for each table; how many there are."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        found = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        )
        tables = [str(name) for (name,) in found]
    except sqlite3.Error as error:
        raise UsageError(f"{database} cannot be read as SQLite ({error}).") from None
    finally:
        connection.close()
    if not tables:
        raise UsageError(f"{database} holds no table; give a SQLite file with tables.")
    quoted = {table: '"' + table.replace('"', '""') + '"' for table in tables}
    rows = [
        {"question": f"how many rows has {table}?", "sql": f"SELECT COUNT(*) FROM {name}"}
        for table, name in quoted.items()
    ]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
    return len(rows)


def recipe_text(name: str, start: Start, path: Path) -> str:
    """The commented recipe as it is to stand in ``path``."""
    beside = path.parent
    model = str(start.model)
    tiny = is_tiny(model)
    lines = [
        *_head(name, start, path),
        f"name: {_scalar(name)}",
        "seed: 0",
        "",
        "model:",
        f"  actor: {_place(model, beside)}",
        *_MODEL_TINY * tiny,
        *_MODEL_LARGE * (not tiny),
        "",
        "environment:",
        *_environment(start, beside),
        "",
        *(_STATE_TINY if tiny else _STATE),
        "",
        *_sft(start, beside),
        "",
        *_reward(start, beside),
        "",
        *_RL,
    ]
    return "\n".join(lines) + "\n"


def _head(name: str, start: Start, path: Path) -> list[str]:
    given = [str(v) for v in (start.demonstrations, start.preferences, start.database) if v]
    about = f"from {', '.join(given)}" if given else f"in the environment {start.environment}"
    return [
        f"# Purpose:  a first recipe {about}; change what you like.",
        f"# Keys:     aac recipes show {path} tells every key, its value and what it means.",
        f"# Launch:   aac run {path}      (its results: runs/{name})",
        "",
    ]


def _environment(start: Start, beside: Path) -> list[str]:
    if start.database is not None:
        return [
            "  name: sql",
            _noted(f"  database: {_place(start.database, beside)}", "read only"),
            _noted(f"  questions: {_place(str(start.questions), beside)}", "with their SQL"),
        ]
    if start.kind:
        return [
            _noted(f"  {start.kind}: {_scalar(str(start.environment))}", "aac env check tries it"),
            "  max_turns: 10",
            "  # reward_scale: 1.0          # the return of a solved task",
            "  # tasks: tasks.jsonl         # one task a row; without it tasks are seeds",
        ]
    return [_noted(f"  name: {start.environment}", "others: aac env list")]


def _sft(start: Start, beside: Path) -> list[str]:
    if start.demonstrations is not None:
        source = _noted(f"  data: {_place(start.demonstrations, beside)}", "see aac data check")
    elif start.kind:
        source = "  # data: dialogues.jsonl      # NEEDED: your world has no expert to demonstrate"
    else:
        source = "  demonstrations: 1000         # of the environment's expert; or data: a file"
    return ["sft:                           # stage 1: learn wanted replies", source, *_SFT]


def _reward(start: Start, beside: Path) -> list[str]:
    if start.preferences is not None:
        source = _noted(f"  data: {_place(start.preferences, beside)}", "prompt, chosen, rejected")
    else:
        source = "  tasks: 200                   # played by the SFT actor, ranked; or data: a file"
    head = "reward:                        # stage 2: which of two replies is better"
    return [head, source, "  epochs: 1"]


_MODEL_TINY = ["  frozen: [embed_tokens]       # a tiny model forgets the words it is not shown"]
_MODEL_LARGE = [
    "  # lora: {rank: 16}           # train adapters only: much less memory (aac plan tells)",
]
_STATE = [
    "state:                         # what the actor is shown each turn",
    "  exchanges: 8                 # the latest ones",
    "  max_tokens: 2048             # of the whole prompt",
    "  checklist: true",
    "  # summary: {writer: rules}   # of what has left the window; also: facts, memory",
]
_STATE_TINY = [
    *_STATE[:2],
    "  max_tokens: 640              # of the whole prompt",
    "  tool_prompt: none            # the tiny base knows the tools of sql; larger models are told",
]
_SFT = [
    "  steps: 300",
    "  batch_size: 16",
    "  max_length: 1024             # tokens of a dialogue",
    "  # learning_rate: 2.0e-5      # chosen by the model's size if left out",
]
_RL = [
    "rl:                            # stage 3: act, and learn from what comes of it",
    "  iterations: 30",
    "  episodes: 32                 # played per iteration",
    "  evaluate_every: 5",
    "  evaluation_episodes: 32",
    "  checkpoint_every: 5          # an interrupted run goes on from here",
    "  critic:",
    "    trunk: light               # or a small encoder's folder; it sees more than the actor",
    "  ppo:",
    "    kl_coef: 0.05              # how strongly the actor is held to the SFT model",
    "  rewards:",
    "    reward_model: 0.2          # weight of stage 2's scores; 0: without stage 2",
    "",
    "evaluation:",
    "  episodes: 128                # held-out tasks",
    "",
    "# tracking: {report_to: [tensorboard]}    # or wandb, trackio, mlflow",
]


def _noted(line: str, note: str) -> str:
    """A line with a comment where the others have theirs."""
    return f"{line:<30} # {note}"


def _place(path: str | Path, beside: Path) -> str:
    """A path as the recipe writes it: from its own folder where that is below or beside it."""
    if not Path(path).exists():
        return _scalar(str(path))  # a hub id
    relative = os.path.relpath(Path(path), beside)
    far = relative.startswith(os.path.join("..", ".."))
    return _scalar(str(Path(path).resolve()) if far else relative)


def _scalar(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def check_start(start: Start) -> None:
    """Raises UsageError for what cannot be written: no model, odd pairs."""
    if not start.model:
        raise UsageError(
            "no model is named; give --model with a Hugging Face folder or hub id, such as "
            "--model Qwen/Qwen3-0.6B."
        )
    if start.questions is not None and start.database is None:
        raise UsageError(f"{start.questions} holds questions; name their SQLite file, too.")
    named = start.environment
    if start.database is not None and named not in (None, "sql"):
        raise UsageError(
            f"{start.database} is a database to ask questions about, which is the world sql, but "
            f"{named} is named, too; leave out one of them."
        )
