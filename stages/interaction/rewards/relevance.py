"""Off-topic replies (F10): is what was said related to the goal and to what was observed?

By default the similarity of hashed word pieces, without any model; or any text classifier.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from stages.common.errors import UsageError
from stages.interaction.trajectory import Turn

FEWEST_WORDS = 3
"""Shorter replies (yes, done, a number) are never off topic."""
DIMENSIONS = 1024
LONGEST = 4000
"""Characters of each text that are looked at."""

_WORD = re.compile(r"[^\W_]+")

Relevance = Callable[[Sequence[str], str], float]
"""(goal and observations as shown, reply) -> relevance from 0 to 1."""


class OffTopic:
    """A reward function: 1 where a reply's relevance is below ``threshold``.

    Judged are plain words and the texts in a call's arguments, against the newest state the
    actor was shown: users' and tools' messages.
    """

    def __init__(self, relevance: Relevance, threshold: float) -> None:
        self._relevance = relevance
        self._threshold = threshold

    def __call__(self, turn: Turn, earlier: Sequence[Turn]) -> float:
        """1.0 off topic, 0.0 on topic or too short to tell."""
        said = _said(turn)
        if len(_WORD.findall(said)) < FEWEST_WORDS:
            return 0.0
        shown = [str(m.get("content") or "") for m in turn.messages if m["role"] != "assistant"]
        return float(self._relevance(shown, said) < self._threshold)


def hashed_similarity(shown: Sequence[str], said: str) -> float:
    """Largest cosine between the reply's hashed words and trigrams and one of the texts'."""
    reply = _embedded(said[:LONGEST])
    return max((float(reply @ _embedded(text[:LONGEST])) for text in shown), default=0.0)


def similarity(one: str, other: str) -> float:
    """Cosine of two texts' hashed words and trigrams, from 0 to 1."""
    return float(_embedded(one[:LONGEST]) @ _embedded(other[:LONGEST]))


class ClassifierRelevance:
    """The probability that a text classifier of a Hugging Face folder gives ``label``.

    It reads (goal and observations, reply) as a pair of texts. UsageError for a folder that holds
    no classifier, or one without that label.
    """

    def __init__(self, folder: Path, label: str) -> None:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
            self._model: Any = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        except (OSError, ValueError) as error:
            raise UsageError(
                f"rl.rewards.off_topic.classifier = {folder} holds no text classifier ({error})."
            ) from None
        labels: Mapping[str, int] = self._model.config.label2id
        if label not in labels:
            raise UsageError(
                f"rl.rewards.off_topic.label = {label} is no label of {folder}; it has"
                f" {', '.join(labels)}."
            )
        self._index = labels[label]
        self._torch = torch

    def __call__(self, shown: Sequence[str], said: str) -> float:
        """Probability of the label; the beginning of what was shown is cut where it is long."""
        with self._torch.no_grad():
            pair = self._tokenizer(
                "\n".join(shown)[-LONGEST:],
                said[:LONGEST],
                truncation="longest_first",
                max_length=min(512, self._model.config.max_position_embeddings),
                return_tensors="pt",
            )
            return float(self._model(**pair).logits.softmax(-1)[0, self._index])


def off_topic(options: Any) -> OffTopic:
    """From the recipe's ``rl.rewards.off_topic``: classifier, label, threshold."""
    if options.classifier is None:
        return OffTopic(hashed_similarity, options.threshold)
    return OffTopic(_classifier(options.classifier, options.label), options.threshold)


@lru_cache(maxsize=2)
def _classifier(folder: Path, label: str) -> ClassifierRelevance:
    """One model per process, whoever asks."""
    return ClassifierRelevance(folder, label)


def _said(turn: Turn) -> str:
    if not turn.action.calls:
        return turn.action.text
    return " ".join(t for call in turn.action.calls for t in _texts(dict(call.arguments)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


@lru_cache(maxsize=4096)
def _embedded(text: str) -> np.ndarray:
    """Unit vector (DIMENSIONS,) of hashed words and their trigrams; zero without words."""
    vector = np.zeros(DIMENSIONS)
    for word in _WORD.findall(text.lower()):
        marked = f"<{word}>"
        for piece in (word, *(marked[i : i + 3] for i in range(len(marked) - 2))):
            vector[zlib.crc32(piece.encode()) % DIMENSIONS] += 1.0
    length = float(np.linalg.norm(vector))
    return vector / length if length else vector
