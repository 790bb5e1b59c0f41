"""Models behind the processors: what they find and how they embed, against plain forwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertForQuestionAnswering,
    BertForTokenClassification,
)

from stages.common.errors import UsageError
from stages.interaction.states import build_state
from stages.interaction.states.embedders import SentenceEncoder
from stages.interaction.states.models import embedder, extractor
from stages.interaction.states.options import FactsOptions, MemoryOptions
from stages.interaction.trajectory import Action, Turn
from tests.interaction.test_processors import RESET, block, called
from tests.interaction.toys import count_words
from tests.tiny_models import tiny_bert

TEXT = "orders have status shipped"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("bert"))


def headed(bert: Path, folder: Path, kind: Any, **options: Any) -> Path:
    """The small encoder under a head whose weights are set by hand."""
    model = kind.from_pretrained(bert, **options)
    head = model.classifier if kind is BertForTokenClassification else model.qa_outputs
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    return save(model, bert, folder)


def save(model: Any, bert: Path, folder: Path) -> Path:
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(bert).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token", "lasttoken"])
def test_a_sentence_encoder_pools_as_its_folder_says(bert: Path, mode: str, tmp_path: Path) -> None:
    folder = save(AutoModel.from_pretrained(bert), bert, tmp_path / "encoder")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    with torch.no_grad():
        hidden = model(**tokenizer(TEXT, return_tensors="pt")).last_hidden_state[0].double()
    wanted = {"mean_tokens": hidden.mean(0), "cls_token": hidden[0], "lasttoken": hidden[-1]}[mode]
    expected = (wanted / wanted.norm()).numpy()
    made = SentenceEncoder(str(folder), "x")
    rows = made.embed([TEXT, "how many?"])
    assert rows.dtype == np.float32 and rows.shape == (2, made.size)
    np.testing.assert_allclose(rows[0], expected, atol=1e-5)
    assert (made.embed([TEXT])[0] == rows[0]).all(), "whatever stands beside it"


def test_an_encoder_with_parts_of_its_own_is_refused(bert: Path, tmp_path: Path) -> None:
    folder = save(AutoModel.from_pretrained(bert), bert, tmp_path / "encoder")
    kinds = ("Transformer", "Pooling", "Dense")
    parts = [{"type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(parts))
    with pytest.raises(UsageError, match="has a Dense module"):
        embedder(MemoryOptions(embedder=str(folder)))


def test_models_that_are_not_there_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"state.memory.embedder = no/such could not be loaded"):
        embedder(MemoryOptions(embedder="no/such"))
    with pytest.raises(UsageError, match=r"state.facts.model = no/such could not be loaded"):
        extractor(FactsOptions(model="no/such"))
    with pytest.raises(UsageError, match=r"means the frozen actor that a stage starts from"):
        build_state({"summary": {"writer": "actor"}}, count_words)


def test_a_sentence_encoder_serves_the_memory(bert: Path) -> None:
    options = {"embedder": str(bert), "max_tokens": 60, "top_k": 1}
    state = build_state({"tool_prompt": "none", "exchanges": 1, "memory": options}, count_words)
    state.reset(RESET)
    for index in range(3):
        state.update(called(index, "look", "a", "red"))
    assert block(state.render(), "memory:") == ["turn 1: look(a): red"]
    made = state.produced()["memory"]
    assert made["embedder"].startswith(f"{bert}@") and len(made["embedder"]) > len(str(bert)) + 8


def shown_facts(**options: Any) -> tuple[list[str], Any]:
    facts = {"max_tokens": 60, **options}
    state = build_state({"tool_prompt": "none", "exchanges": 1, "facts": facts}, count_words)
    state.reset(RESET)
    state.update(Turn(0, (), Action("look"), ({"role": "tool", "content": TEXT},)))
    state.update(Turn(1, (), Action("")))  # says nothing that would replace what was found
    return block(state.render(), "facts:"), state.produced().get("facts")


def test_named_entities_become_facts(bert: Path, tmp_path: Path) -> None:
    labels = {"id2label": {0: "O", 1: "B-THING"}, "label2id": {"O": 0, "B-THING": 1}}
    folder = headed(bert, tmp_path / "ner", BertForTokenClassification, **labels)
    assert shown_facts(model=str(folder))[0] == [], "an even guess is none"
    model = BertForTokenClassification.from_pretrained(folder)
    with torch.no_grad():
        model.classifier.bias[1] = 5.0
    model.save_pretrained(folder)
    lines, made = shown_facts(model=str(folder))
    assert any(line.startswith("known: THING: ") for line in lines)
    assert made["writer"].startswith(f"rules + {folder}@")


def test_answers_to_the_recipes_questions_become_facts(bert: Path, tmp_path: Path) -> None:
    """Start and end scores are fixed by the position embeddings, so the answer is known."""
    folder = headed(bert, tmp_path / "qa", BertForQuestionAnswering)
    question = "which status?"
    assert shown_facts(model=str(folder), questions=(question,))[0] == []
    model = BertForQuestionAnswering.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(question, f"look: {TEXT}", return_tensors="pt")
    place = [k for k, part in enumerate(ids.sequence_ids(0)) if part == 1][3]
    with torch.no_grad():
        hidden = model.bert(**ids).last_hidden_state[0]
        away = hidden[place] - hidden.mean(0)
        model.qa_outputs.weight.copy_((2e4 * away / away.norm()).repeat(2, 1))
    model.save_pretrained(folder)
    with torch.no_grad():
        out = model(**ids)
    assert out.start_logits[0].argmax() == place, "the head points at that token"
    span = ids.token_to_chars(place)
    answer = f"look: {TEXT}"[span.start : span.end]
    lines, _ = shown_facts(model=str(folder), questions=(question,))
    assert f"known: {question} {answer}" in lines


def test_a_model_of_another_kind_is_refused(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is BertModel and state.facts.questions has 0 questions"):
        extractor(FactsOptions(model=str(bert)))
    folder = headed(bert, tmp_path / "qa", BertForQuestionAnswering)
    with pytest.raises(UsageError, match="give a token classifier"):
        extractor(FactsOptions(model=str(folder)))
