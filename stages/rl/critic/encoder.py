"""The encoder trunk: any Hugging Face encoder, reading a view as text.

It brings its own tokenizer. A view longer than the budget loses the middle of its history,
never the goal, the privileged facts or the last exchanges.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from stages.rl.critic.views import View


class EncoderTrunk(nn.Module):
    """Mean-pooled last hidden state.

    forward: list of episodes, each a list of (L_i,) token-id tensors (one per view)
    -> (sum of views, width) features.
    """

    def __init__(self, encoder: nn.Module, tokenizer: Any, *, max_tokens: int = 512) -> None:
        super().__init__()
        config: Any = encoder.config
        self.encoder = encoder
        self.width = int(config.hidden_size)
        self._tokenizer = tokenizer
        self._before, self._after = special_frame(tokenizer)
        limit = getattr(config, "max_position_embeddings", max_tokens) or max_tokens
        # RoBERTa-type encoders number positions from pad + 1, so two fewer than the table are safe.
        self._max_tokens = min(max_tokens, limit - 2) - len(self._before) - len(self._after)

    @classmethod
    def load(cls, folder: str, *, max_tokens: int) -> EncoderTrunk:
        """From a Hugging Face folder or hub id. Raises OSError/ValueError as transformers does."""
        from transformers import AutoModel, AutoTokenizer

        encoder = AutoModel.from_pretrained(folder, dtype=torch.float32)
        return cls(encoder, AutoTokenizer.from_pretrained(folder), max_tokens=max_tokens)

    def save_encoder(self, folder: Path) -> None:
        """The encoder and its tokenizer as a plain Hugging Face folder."""
        encoder: Any = self.encoder
        encoder.save_pretrained(folder)
        self._tokenizer.save_pretrained(folder)

    def prepare(self, views: Sequence[View]) -> list[Tensor]:
        """Token ids of each view, cut to the budget."""
        return [torch.tensor(self._encode(v)) for v in views]

    def forward(self, episodes: Sequence[Sequence[Tensor]]) -> Tensor:
        """Features of all views of the episodes, (sum of views, width)."""
        rows = [ids for episode in episodes for ids in episode]
        lengths = torch.tensor([len(r) for r in rows])
        ids = pad_sequence(rows, batch_first=True)
        mask = torch.arange(ids.shape[1])[None] < lengths[:, None]
        out = self.encoder(input_ids=ids, attention_mask=mask.long())
        hidden = out.last_hidden_state.float() * mask[..., None]
        return hidden.sum(1) / lengths[:, None]

    def _encode(self, view: View) -> list[int]:
        start, end = self._ids(view.start() + "\n"), self._ids("\n" + view.end())
        history = self._ids("\n".join(e.text() for e in view.history))
        room = self._max_tokens - len(start) - len(end)
        ids = start + cut_middle(history, max(room, 0)) + end
        return [*self._before, *ids[: self._max_tokens], *self._after]

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def special_frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The ids a tokenizer puts before and after a text ([CLS] … [SEP] and the like)."""
    plain = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    framed = list(tokenizer("a")["input_ids"])
    for start in range(len(framed) - len(plain) + 1):
        if framed[start : start + len(plain)] == plain:
            return framed[:start], framed[start + len(plain) :]
    return [], []


def cut_middle(ids: list[int], room: int) -> list[int]:
    """At most ``room`` ids: a quarter from the front, the rest from the end."""
    if len(ids) <= room:
        return ids
    front = room // 4
    return ids[:front] + ids[len(ids) - (room - front) :] if room else []
