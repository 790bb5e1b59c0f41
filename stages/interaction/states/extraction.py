"""Light models that find key information: named entities, or answers to the recipe's questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stages.common.errors import UsageError

LEAST_SCORE = 0.5
"""Of a named entity, and of an answer's probability (start times end): below it is a guess."""
LONGEST_ANSWER = 24
"""Tokens."""


class EntityModel:
    """A token classifier (NER); labels as the model names them."""

    def __init__(self, source: str, identity: str) -> None:
        from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

        self.identity = identity
        self._find = pipeline(
            "token-classification",
            model=AutoModelForTokenClassification.from_pretrained(source, use_safetensors=True),
            tokenizer=AutoTokenizer.from_pretrained(source),
            aggregation_strategy="simple",
        )

    def find(self, text: str) -> list[tuple[str, str]]:
        """(label and name, nothing): every name is a fact of its own."""
        rows = self._find(text) if text else []
        found = [row for row in rows if row["score"] >= LEAST_SCORE]
        names = [f"{row['entity_group']}: {str(row['word']).strip()}" for row in found]
        return [(name, "") for name in dict.fromkeys(names)]


class AnswerModel:
    """An extractive question answerer asked the recipe's questions of every turn."""

    def __init__(self, source: str, identity: str, questions: Sequence[str]) -> None:
        import torch
        from transformers import AutoModelForQuestionAnswering, AutoTokenizer

        self.identity = identity
        self._torch, self._questions = torch, questions
        self._tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForQuestionAnswering.from_pretrained(source, use_safetensors=True)
        self._model = model.eval().requires_grad_(False)

    def find(self, text: str) -> list[tuple[str, str]]:
        """(question, answer) where the text holds one; a newer answer replaces an older."""
        asked = self._questions if text else ()
        answers = ((question, self._answer(question, text)) for question in asked)
        return [(question, answer) for question, answer in answers if answer]

    def _answer(self, question: str, text: str) -> str:
        """The likeliest span of the text, or nothing where that is a guess (BERT's rule, Devlin et
        al. 2019, arXiv:1810.04805, section 4.2: the sum of start and end scores)."""
        ids = self._tokenizer(
            question, text, truncation="only_second", return_tensors="pt", max_length=384
        )
        inside = [place for place, part in enumerate(ids.sequence_ids(0)) if part == 1]
        with self._torch.inference_mode():
            out = self._model(**ids)
        start, end = (scores[0].softmax(-1) for scores in (out.start_logits, out.end_logits))
        spans = [
            (float(start[a] * end[b]), a, b)
            for place, a in enumerate(inside)
            for b in inside[place : place + LONGEST_ANSWER]
        ]
        score, first, last = max(spans, default=(0.0, 0, 0))
        if score < LEAST_SCORE:
            return ""
        return text[ids.token_to_chars(first).start : ids.token_to_chars(last).end].strip()


def load_extractor(source: str, identity: str, questions: Sequence[str]) -> Any:
    """By what the model's folder says it is. UsageError if that is neither, or questions lack."""
    from transformers import AutoConfig

    kinds = AutoConfig.from_pretrained(source).architectures or ["a model of no kind"]
    if kinds[0].endswith("ForTokenClassification") and not questions:
        return EntityModel(source, identity)
    if kinds[0].endswith("ForQuestionAnswering") and questions:
        return AnswerModel(source, identity, questions)
    raise UsageError(
        f"state.facts.model {source} is {kinds[0]} and state.facts.questions has "
        f"{len(questions)} questions; give a token classifier (NER) without questions, or an "
        "extractive question answerer with some."
    )
