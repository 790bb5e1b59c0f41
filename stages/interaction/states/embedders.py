"""Who embeds the memory's texts: hashed words without a model, or any sentence encoder."""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from stages.common.errors import UsageError
from stages.interaction.states.options import HASHING

_WORD = re.compile(r"\w+")
_POOLING = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "first",
    "pooling_mode_lasttoken": "last",
}
_MODULES = ("Transformer", "Pooling", "Normalize")


class HashingEmbedder:
    """Words and their letter triples, hashed with signs into ``size`` numbers (Weinberger et al.
    2009, arXiv:0902.2206). For smoke runs: it knows no synonyms."""

    identity, size = HASHING, 512

    def embed(self, texts: list[str]) -> np.ndarray:
        """(n, size) float32 rows of length 1."""
        return np.stack([self._row(text) for text in texts])

    def _row(self, text: str) -> np.ndarray:
        row = np.zeros(self.size, dtype=np.float32)
        for word, count in Counter(_WORD.findall(text.lower())).items():
            marked = f"<{word}>"
            parts = [marked, *(marked[i : i + 3] for i in range(len(marked) - 2))]
            for part in parts:
                code = zlib.crc32(part.encode())
                weight = count**0.5 / len(parts) ** 0.5
                row[code % self.size] += weight if code & (1 << 20) else -weight
        return row / max(float(np.linalg.norm(row)), 1e-12)


class SentenceEncoder:
    """A sentence encoder from a Hugging Face folder or hub id, as sentence-transformers pools it:
    by ``1_Pooling/config.json``, else the mean over tokens; rows are brought to length 1."""

    def __init__(self, source: str, identity: str) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        self.identity = identity
        self._torch = torch
        self._pooling = pooling(source)
        self._tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModel.from_pretrained(source, dtype=torch.float32, use_safetensors=True)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = model.to(device).eval().requires_grad_(False)
        self.size = int(model.config.hidden_size)
        limit = getattr(model.config, "max_position_embeddings", None) or 512
        self._longest = min(limit - 2, 512)
        # The same results and questions come up in many episodes.
        self._known = lru_cache(maxsize=4096)(self._row)

    def embed(self, texts: list[str]) -> np.ndarray:
        """(n, size) float32 rows of length 1."""
        return np.concatenate([self._known(text) for text in texts])

    def _row(self, text: str) -> np.ndarray:
        """One text at a time: beside others it would be padded, and rounding would differ."""
        with self._torch.inference_mode():
            ids = self._tokenizer(
                text, truncation=True, max_length=self._longest, return_tensors="pt"
            ).to(self._model.device)
            hidden = self._model(**ids).last_hidden_state[0]
        pooled = {"mean": hidden.mean(0), "first": hidden[0], "last": hidden[-1]}[self._pooling]
        row = self._torch.nn.functional.normalize(pooled, dim=-1)
        return np.asarray(row[None].numpy(force=True))


def pooling(source: str) -> str:
    """``mean``, ``first`` or ``last``. UsageError for an encoder made of other parts as well."""
    modules = _read(source, "modules.json")
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules or ()]
    wanted = _read(source, "1_Pooling/config.json") or {"pooling_mode_mean_tokens": True}
    modes = [mode for key, mode in _POOLING.items() if wanted.get(key)]
    odd = [kind for kind in kinds if kind not in _MODULES]
    if odd or len(modes) != 1:
        what = f"a {odd[0]} module" if odd else "another kind of pooling"
        raise UsageError(
            f"state.memory.embedder {source} has {what}; give an encoder that pools by the mean, "
            "the first or the last token, such as sentence-transformers/all-MiniLM-L6-v2."
        )
    return modes[0]


def _read(source: str, name: str) -> Any:
    """A JSON file of a folder or hub id, None where it has none."""
    from transformers.utils import cached_file

    folder, _, file = name.rpartition("/")
    found = cached_file(
        source,
        file,
        subfolder=folder,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return json.loads(Path(found).read_text("utf-8")) if found else None
