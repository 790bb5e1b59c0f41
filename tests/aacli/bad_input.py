"""A person's folder in which something is wrong, and what the one sentence about it must name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECIPE = """\
name: demo
threads: 1
model: {actor: actor}
environment: {name: sql}
state: {tool_prompt: none}
sft: {steps: 1, batch_size: 1, max_length: 800}
reward: {base: actor, max_length: 800}
evaluation: {episodes: 2, batch: 2}
"""
REPLIES = [{"prompt": f"say {word}", "completion": f"it is {word}"} for word in ("one", "two")]
PAIRS = [
    {"prompt": f"say {word}", "chosen": f"it is {word}", "rejected": "no"}
    for word in ("one", "two")
]
OUT = "out/run"
"""Where every command here is told to write."""


class Place:
    """The working directory of a person: a recipe, a sound model as actor/, and shorthands."""

    def __init__(self, root: Path, model: Path) -> None:
        self.root, self.model = root, model
        (root / "demo.yaml").write_text(RECIPE)
        (root / "actor").symlink_to(model)

    def write(self, name: str, content: str | bytes) -> str:
        """A file; its name."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return name

    def rows(self, *rows: Any, name: str = "data.jsonl") -> str:
        """A file of JSON lines; its name."""
        return self.write(name, "".join(json.dumps(row) + "\n" for row in rows))

    def sft(self, data: str | None = None, *words: str) -> list[str]:
        """``aac sft`` on a file, or on demonstrations."""
        given = ["--set", f"sft.data={data}"] if data else ["--set", "sft.demonstrations=2"]
        return ["sft", "demo.yaml", "--output-dir", OUT, *given, *words]

    def reward(self, data: str, *words: str) -> list[str]:
        """``aac train-reward`` on a file."""
        chosen = ["--set", f"reward.data={data}"]
        return ["train-reward", "demo.yaml", "--output-dir", OUT, *chosen, *words]

    def copied(self, name: str, change: Callable[[Path], object]) -> list[str]:
        """``aac sft`` from a copy of the sound model that ``change`` damages."""
        shutil.copytree(self.model, self.root / name)
        change(self.root / name)
        return self.with_model(name)

    def with_model(self, name: str) -> list[str]:
        """``aac sft`` from that model."""
        return self.sft(self.rows(*REPLIES), "--set", f"model.actor={name}")

    def seen(self) -> dict[str, bytes]:
        """Every file and folder here with what it holds."""
        return {
            str(path.relative_to(self.root)): path.read_bytes() if path.is_file() else b""
            for path in sorted(self.root.rglob("*"))
            if "__pycache__" not in path.parts
        }


@dataclass(frozen=True)
class Case:
    """``make`` lays the bad input out and returns the words of a command that meets it."""

    id: str
    make: Callable[[Place], Sequence[str]]
    names: tuple[str, ...]
    """Must occur in the message: what was given, what was expected, what to change."""
