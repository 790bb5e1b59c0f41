"""A small encoder as the reward model of another family's actor, through the real commands."""

from __future__ import annotations

import pytest
from transformers import AutoModelForSequenceClassification

from stages.common.errors import RunError
from stages.common.manifest import read_manifest
from stages.common.models import load_tokenizer
from stages.common.template import PLAIN_TEMPLATE
from stages.reward.data import told_apart
from stages.reward.run import Gathered, _readable
from tests.adapted import World, rows
from tests.tiny_models import tiny_bert


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """An actor with adapters after SFT, and a reward model on an encoder of its own."""
    made = World(tmp_path_factory.mktemp("encoder"), model={"lora": {"rank": 4, "alpha": 8}})
    made.bert = tiny_bert(made.root / "bert")
    sft = made.aac("sft", "sft")
    options = {"reward__base": str(made.bert), "reward__max_length": 96}
    options |= {"reward__learning_rate": 0.01, "reward__epochs": 6}
    made.aac("train-reward", "reward", "--sft", sft, **options)
    return made


def test_the_encoder_learns_to_score_dialogues(world: World) -> None:
    folder = world.root / "reward"
    losses = [row["reward/loss"] for row in rows(folder) if "reward/loss" in row]
    assert losses and losses[-1] < 0.692  # of log 2 = 0.6931 for a head that knows nothing
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert model.config.model_type == "bert" and model.config.num_labels == 1
    assert load_tokenizer(folder).chat_template == PLAIN_TEMPLATE  # kept with it
    assert read_manifest(folder).score is not None


def test_it_scores_every_turn_of_rl(world: World) -> None:
    found = world.rl("rl", "--reward", world.root / "reward", rl__rewards__reward_model=0.5)
    assert all(row["reward/reward_model"] != 0 for row in found)


def test_rows_that_the_encoder_cannot_read_are_refused(world: World) -> None:
    words = ("--sft", world.root / "sft")
    said = world.refused("train-reward", *words, reward__base=str(world.bert))
    assert "reward.max_length is 300" in said and "at most 128 tokens" in said


def test_pairs_that_the_encoder_reads_alike_are_left_out(world: World) -> None:
    tokenizer = load_tokenizer(world.bert, plain=True)
    prompt = [{"role": "user", "content": "how many orders?"}]
    pairs = [{"prompt": prompt, "chosen": "orders", "rejected": other} for other in ("ORDERS", "x")]
    records = [(f"preference {k}", row) for k, row in enumerate(pairs, start=1)]
    assert told_apart(tokenizer, records) == records[1:]
    gathered = Gathered(records, "preferences")
    assert _readable(gathered, tokenizer, "an encoder").records == records[1:]
    with pytest.raises(RunError, match="an encoder reads the two replies of every pair alike"):
        _readable(Gathered(records[:1], "preferences"), tokenizer, "an encoder")
