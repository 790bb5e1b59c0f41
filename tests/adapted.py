"""A world as small as they come, in which the stages run by the words a person types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import yaml
from typer.testing import CliRunner

from aacli.app import app
from tests.rl.test_run import BASE, RL, merged
from tests.tiny_models import tiny_llama

LORA = {"rank": 4, "alpha": 8}
WORDS = ("orders", "tables", "goals", "units", "answers", "errors", "users", "prices")


class World:
    """A folder with a tiny actor, a recipe and data, and a shorthand for commands on them."""

    def __init__(self, root: Path, **over: Any) -> None:
        self.root, self.actor = root, tiny_llama(root / "actor")
        self.recipe = root / "recipe.yaml"
        pairs = [
            {"prompt": f"how many {w}?", "chosen": f"there are {w}", "rejected": f"no {w} {w}"}
            for w in WORDS
        ]
        replies = [{"prompt": f"say {w}", "completion": f"the answer is {w}"} for w in WORDS]
        for name, rows in (("pairs", pairs), ("replies", replies)):
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (root / f"{name}.jsonl").write_text(lines)
        own = {
            "model": {"actor": str(self.actor)},
            "threads": 1,
            "sft": {"data": str(root / "replies.jsonl"), "learning_rate": 0.01},
            "reward": {"data": str(root / "pairs.jsonl")},
            "rl": merged(RL, {"evaluation_episodes": 2}),
            "evaluation": {"episodes": 2, "batch": 2},
        }
        content = merged(merged(BASE, own), over)
        self.recipe.write_text(yaml.safe_dump(content, sort_keys=False))

    def call(self, command: str, *words: Any, **over: Any) -> Any:
        """``aac COMMAND RECIPE WORDS...`` with ``a__b=value`` as overrides; the outcome."""
        sets = [
            text
            for path, value in over.items()
            for text in ("--set", f"{path.replace('__', '.')}={json.dumps(value)}")
        ]
        line = [command, str(self.recipe), *map(str, words), *sets, "--quiet"]
        return CliRunner().invoke(app, line)

    def aac(self, command: str, folder: str, *words: Any, **over: Any) -> Path:
        """The same to its end; the folder it wrote."""
        out = self.root / folder
        done = self.call(command, "--output-dir", out, *words, **over)
        assert done.exit_code == 0, done.stderr
        return out

    def rl(self, folder: str, *words: Any, sft: str = "sft", **over: Any) -> list[dict[str, Any]]:
        """``aac rl`` on the SFT folder; the rows of its metrics."""
        words = ("--sft", self.root / sft, *words)
        return rows(self.aac("rl", folder, *words, **over))

    def refused(self, command: str, *words: Any, **over: Any) -> str:
        """The sentence with which a command refuses, having written nothing."""
        out = self.root / "refused"
        result = self.call(command, "--output-dir", out, *words, **over)
        assert result.exit_code == 2 and not out.exists(), result.stderr
        return " ".join(result.stderr.split())


def rows(folder: Path) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """What a folder's only weights file holds."""
    from safetensors.torch import load_file

    (file,) = folder.glob("*.safetensors")
    return load_file(file)


def logits(model: Any) -> torch.Tensor:
    """Of a fixed row."""
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(3, 40)[None]).logits
