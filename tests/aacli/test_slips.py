"""Slips of the expert through the real command: shown to the actor, and not learned by it."""

from __future__ import annotations

from pathlib import Path

from stages.common.models import load_tokenizer
from stages.common.rows import action_spans
from stages.common.run_folder import read_rows

RECIPE = Path(__file__).parents[2] / "recipes/quickstart.yaml"
SMALL = {"sft.demonstrations": 24, "sft.steps": 2}


def test_stage_1_shows_slips_and_learns_what_follows_them(tmp_path, monkeypatch, aac) -> None:
    monkeypatch.chdir(tmp_path)
    shares = {}
    for slip in (0.0, 0.5):
        words = [f"{k}={v}" for k, v in (SMALL | {"environment.expert.slip": slip}).items()]
        folder = tmp_path / f"sft-{slip}"
        given = [w for word in words for w in ("--set", word)]
        done = aac("sft", RECIPE, "--output-dir", folder, *given)
        assert done.exit_code == 0, done.stderr
        shares[slip] = _calls_learned(folder)
    assert shares[0.0] == 1.0
    assert 0.4 < shares[0.5] < 0.8


def _calls_learned(folder: Path) -> float:
    """Of the calls that the rows of a run show."""
    tokenizer = load_tokenizer(folder)
    shown = learned = 0
    for row in read_rows(folder):
        ids = row["input_ids"]
        spans = action_spans(row["action_mask"])
        shown += tokenizer.decode(ids).count('{"name"')
        learned += sum(tokenizer.decode(ids[a:b]).count('{"name"') for a, b in spans)
    return learned / shown
