"""Stage 0: tokenizer, chat template, documents, the copy circuit and the loop."""

from __future__ import annotations

import math
import random
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stages.interaction.environments.sql import SqlEnvironment, SqlOptions
from stages.interaction.environments.sql.tasks import split_of
from stages.interaction.states.checklist import render_checklist
from stages.pretraining import data, model, run
from stages.pretraining.tokenizer import END, GLUE, train_tokenizer

BASE = Path(__file__).parents[2] / "recipes" / "base"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(list(data.corpus(150, seed=5)))


@pytest.fixture(scope="module")
def some_documents() -> list[data.Document]:
    return list(islice(data.documents(seed=11), 150))


# ---- tokenizer


def _texts() -> list[str]:
    rng = random.Random(0)
    odd = [
        "",
        " ",
        "\n",
        "  a\t b \n",
        "naïve café",
        "日本語",
        "🙂👍🏽",
        "a\u0301",
        "\x00\x01",
        "'\"}}",
        "[x] [ ]",
    ]
    mixed = ["".join(chr(rng.choice((rng.randint(32, 126), rng.randint(160, 0x2FFF))))
                     for _ in range(40)) for _ in range(40)]  # fmt: skip
    glued = ["".join(rng.choices(GLUE, k=5)) + "x" for _ in range(20)]
    return odd + mixed + glued


def test_any_text_survives_the_tokenizer(tokenizer: Any) -> None:
    for text in _texts():
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text


def test_saved_tokenizer_is_the_same(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in _texts():
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert loaded.encode(text, add_special_tokens=False) == ids
        assert loaded.decode(ids) == text
    assert loaded.chat_template == tokenizer.chat_template
    assert loaded.eos_token == END
    assert loaded.pad_token_id != loaded.eos_token_id


def test_a_name_has_the_same_tokens_everywhere(tokenizer: Any) -> None:
    name = tokenizer.encode("unit_price")
    for text in (
        "unit_price REAL, order_id INTEGER",
        "SELECT MAX(unit_price) FROM orders",
        "SELECT unit_price FROM orders WHERE unit_price > 5",
        "error: no such column: unit_price",
        "What is the unit_price of order 5?",
    ):
        ids = tokenizer.encode(text)
        assert any(ids[i : i + len(name)] == name for i in range(len(ids))), text


def test_fixed_text_is_short(tokenizer: Any) -> None:
    assert all(len(tokenizer.encode(piece)) == 1 for piece in GLUE)
    line = render_checklist(
        (("tables", True), ("columns", False), ("result", False), ("answer", False))
    )
    assert len(tokenizer.encode("\n" + line)) == 4
    assert len(tokenizer.encode('{"name": "list_tables", "arguments": {}}')) == 3
    assert len(tokenizer.encode("1234")) == 4


# ---- chat template

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How many orders have status open?\n[ ] tables"},
    {"role": "assistant", "content": '{"name": "list_tables", "arguments": {}}'},
    {"role": "tool", "content": "orders, customers\n[x] tables"},
    {"role": "assistant", "content": '{"name": "answer", "arguments": {"value": "12"}}'},
]


def test_a_prefix_of_messages_renders_as_a_prefix(tokenizer: Any) -> None:
    whole = tokenizer.apply_chat_template(CHAT, tokenize=False)
    for n in range(1, len(CHAT) + 1):
        part = tokenizer.apply_chat_template(CHAT[:n], tokenize=False)
        assert whole.startswith(part)
    asked = tokenizer.apply_chat_template(CHAT[:2], tokenize=False, add_generation_prompt=True)
    assert whole.startswith(asked)
    assert asked.endswith("<|assistant|>")


def test_generation_markers_cover_replies_with_their_end(tokenizer: Any) -> None:
    encoded = tokenizer.apply_chat_template(
        CHAT, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    kept = [i for i, m in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if m]
    assert tokenizer.decode(kept) == CHAT[2]["content"] + END + CHAT[4]["content"] + END


def test_documents_are_laid_out_like_the_chat_template(
    tokenizer: Any, some_documents: list[data.Document]
) -> None:
    for document in some_documents[:40]:
        messages = [{"role": s.role, "content": s.content} for s in document]
        wanted = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
        assert run.encode(document, tokenizer)[0] == wanted


# ---- documents


def test_documents_are_reproducible(some_documents: list[data.Document]) -> None:
    assert list(islice(data.documents(seed=11), 20)) == some_documents[:20]
    assert list(islice(data.documents(seed=12), 20)) != some_documents[:20]


def test_every_question_in_the_documents_is_of_the_training_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Worlds are recorded as they are made, and each document's questions hashed with its own."""
    worlds: list[Any] = []
    make = data.make_world

    def recorded(*args: Any) -> Any:
        worlds.append(make(*args))
        return worlds[-1]

    monkeypatch.setattr(data, "make_world", recorded)
    checked = 0
    for document in islice(data.documents(seed=21), 300):
        for segment in document:
            question = segment.content.split("\n")[0]
            if segment.role == "user" and question[-1] in "?.":
                assert split_of(worlds[-1].fingerprint, question) == "train"
                checked += 1
    assert checked > 200


def test_no_test_task_occurs_in_the_documents(some_documents: list[data.Document]) -> None:
    """A test task is its question with its table; no document holds both."""
    environment = SqlEnvironment(SqlOptions())
    texts = ["\n".join(s.content for s in d) for d in some_documents]
    for task in environment.tasks("test", 80, seed=0):
        question = environment.reset(task).goal
        schema = environment._database.schema  # type: ignore[union-attr]
        lines = [", ".join(f"{c} {t}" for c, t in columns) for columns in schema.values()]
        assert not any(question in t and all(line in t for line in lines) for t in texts)


def test_dialogues_show_the_checklist_the_actor_will_see(
    some_documents: list[data.Document],
) -> None:
    talks = [d for d in some_documents if "\n[" in d[0].content]
    assert talks
    for talk in talks:
        for segment in talk:
            if segment.role != "assistant":
                assert segment.content.split("\n")[-1].count("] ") == 4


# ---- model and loop


def test_the_copy_circuit_copies_before_any_training() -> None:
    """A random sequence is said again; the second time each token follows from the first."""
    torch.manual_seed(0)
    actor = model.build(1500, bos=0, eos=2, pad=1, seed=0).eval()
    once = torch.randint(10, 1500, (1, 40))
    ids = torch.cat([once, once], dim=1)
    with torch.no_grad():
        predicted = actor(input_ids=ids).logits[0, 40:-1].argmax(-1)
    assert (predicted == once[0, 1:]).float().mean() > 0.7
    for weight in actor.parameters():
        torch.nn.init.normal_(weight, std=0.05)
    with torch.no_grad():
        predicted = actor(input_ids=ids).logits[0, 40:-1].argmax(-1)
    assert (predicted == once[0, 1:]).float().mean() < 0.3


def test_loss_weighs_targets_ten_times_and_padding_not_at_all(tokenizer: Any) -> None:
    actor = model.build(len(tokenizer), bos=0, eos=2, pad=1, seed=0)
    ids, weights = run.encode(
        [data.Segment("user", "price"), data.Segment("assistant", "price", True)], tokenizer
    )
    assert sorted(set(weights)) == [0.0, 0.1, 1.0]
    row = torch.tensor([ids])
    batch = (row, torch.tensor([weights]))
    padded = (
        torch.cat([row, torch.full((1, 5), 1)], dim=1),
        torch.cat([batch[1], torch.zeros(1, 5)], dim=1),
    )
    logp = torch.log_softmax(actor(input_ids=row).logits[0].double(), dim=-1)
    wanted = sum(-w * logp[t - 1, ids[t]] for t, w in enumerate(weights) if t) / sum(weights)
    torch.testing.assert_close(run.weighted_loss(actor, batch).double(), wanted, rtol=1e-5, atol=0)
    torch.testing.assert_close(
        run.weighted_loss(actor, padded), run.weighted_loss(actor, batch), rtol=1e-5, atol=0
    )


def test_rate_warms_up_holds_and_decays() -> None:
    assert run.rate(0, 0.0) == pytest.approx(run.LEARNING_RATE / run.WARMUP_STEPS)
    assert run.rate(500, 0.5) == run.LEARNING_RATE
    assert run.rate(500, 0.8) == pytest.approx(run.LEARNING_RATE / 2)
    assert run.Budget(10.0).progress(3, 300.0) == 0.5
    assert run.Budget(10.0, steps=6).progress(3, 9e9) == 0.5


def test_a_few_steps_give_a_finite_loss_and_a_checkpoint_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "CORPUS_DOCUMENTS", 60)
    monkeypatch.setattr(run, "BUCKET_BATCHES", 2)
    first = run.pretrain(tmp_path / "a", run.Budget(1.0, steps=1), seed=0)
    later = run.pretrain(tmp_path / "b", run.Budget(1.0, steps=4), seed=0)
    assert math.isfinite(later)
    assert later < first
    actor = AutoModelForCausalLM.from_pretrained(tmp_path / "b")
    assert actor.dtype == torch.float32
    assert actor.get_input_embeddings().weight is actor.get_output_embeddings().weight
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_the_shipped_base_loads_and_is_small() -> None:
    assert sum(p.stat().st_size for p in BASE.iterdir()) < 3_000_000
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    actor = AutoModelForCausalLM.from_pretrained(BASE)
    assert type(actor).__name__ == "LlamaForCausalLM"
    assert actor.config.vocab_size == len(tokenizer)
    assert actor.generation_config.eos_token_id == tokenizer.eos_token_id
    assert not torch.isnan(actor.get_input_embeddings().weight).any()
