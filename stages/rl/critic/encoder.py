"""The text trunks: a Hugging Face encoder that reads each view as text.

A pretrained one (a folder or hub id, the reward model's trunk) brings its own tokenizer; one from
scratch reads hashed words. Dropout is off throughout: V(c_t) is one number per view, and fitted to
so few episodes that early stopping by steps does what dropout would.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from stages.common.models import load_trunk
from stages.rl.critic.text import Reader, TokenizerReader, WordReader, view_ids, view_texts
from stages.rl.critic.views import View

MICROBATCH_TOKENS = 8192
"""Padded tokens per forward of the encoder."""


class EncoderTrunk(nn.Module):
    """Mean-pooled last hidden state; the last token's, where the encoder reads causally.

    forward: list of episodes, each a list of (L_i,) token-id tensors (one per view)
    -> (sum of views, width) features.
    """

    def __init__(self, encoder: Any, reader: Reader, *, max_tokens: int = 512) -> None:
        super().__init__()
        self.encoder = encoder.get_encoder() if encoder.config.is_encoder_decoder else encoder
        self.reader = reader
        self.width = int(encoder.config.hidden_size)
        self.eval()
        self._causal = looks_only_back(self.encoder)
        limit = getattr(encoder.config, "max_position_embeddings", None) or max_tokens + 2
        # RoBERTa-type encoders number positions from pad + 1, so two fewer than the table are safe.
        self._room = min(max_tokens, limit - 2) - len(reader.before) - len(reader.after)

    @classmethod
    def load(cls, folder: str | Path, *, max_tokens: int) -> EncoderTrunk:
        """From a Hugging Face folder or hub id; adapters are merged in. Raises
        OSError/ValueError as transformers does."""
        from transformers import AutoTokenizer

        encoder = load_trunk(folder)
        reader = TokenizerReader(AutoTokenizer.from_pretrained(folder))
        return cls(encoder, reader, max_tokens=max_tokens)

    @classmethod
    def restore(cls, folder: Path, *, max_tokens: int) -> EncoderTrunk:
        """As ``save`` left it; its weights come from the critic's own file."""
        from transformers import AutoConfig, AutoModel, AutoTokenizer

        encoder = AutoModel.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
        reader = TokenizerReader(AutoTokenizer.from_pretrained(folder))
        return cls(encoder, reader, max_tokens=max_tokens)

    @classmethod
    def scratch(cls, *, hidden_size: int, layers: int, max_tokens: int) -> EncoderTrunk:
        """Fresh weights, its own tokenizer of hashed words.

        A ModernBERT (Warner et al. 2024, arXiv:2412.13663): normalised before each block, so that
        it learns from scratch at the rates a small critic needs.
        """
        from transformers import ModernBertConfig, ModernBertModel

        most = max(hidden_size // 32, 1)
        # Rotary positions turn a head's features in pairs.
        heads = next(h for h in range(most, 0, -1) if hidden_size % (2 * h) == 0)
        config = ModernBertConfig(
            vocab_size=WordReader.vocabulary,
            hidden_size=hidden_size,
            intermediate_size=2 * hidden_size,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            max_position_embeddings=max_tokens + 2,
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
            cls_token_id=None,
            sep_token_id=None,
            attn_implementation="sdpa",
        )
        return cls(ModernBertModel(config), WordReader(), max_tokens=max_tokens)

    def save(self, folder: Path) -> None:
        """The encoder's shape and its tokenizer, as Hugging Face files."""
        self.encoder.config.save_pretrained(folder)
        self.reader.save(folder)

    def train(self, mode: bool = True) -> EncoderTrunk:
        """Dropout stays off."""
        return super().train(False)

    def prepare(self, views: Sequence[View]) -> list[Tensor]:
        """Token ids of each view, cut to the budget.

        Raises UsageError when goal, facts and limits alone do not fit.
        """
        texts = dict.fromkeys(text for view in views for text in view_texts(view))
        ids = dict(zip(texts, self.reader.ids(list(texts)), strict=True))
        frame = len(self.reader.before) + len(self.reader.after)
        rows = [view_ids(view, ids, self._room, frame=frame) for view in views]
        return [torch.tensor([*self.reader.before, *row, *self.reader.after]) for row in rows]

    def forward(self, episodes: Sequence[Sequence[Tensor]]) -> Tensor:
        """Features of all views of the episodes, (sum of views, width)."""
        rows = [ids for episode in episodes for ids in episode]
        batches = list(packed([len(r) for r in rows], MICROBATCH_TOKENS))
        features = torch.cat([self._read([rows[k] for k in batch]) for batch in batches])
        place = torch.tensor([k for batch in batches for k in batch])
        return features[place.argsort()]

    def _read(self, rows: Sequence[Tensor]) -> Tensor:
        lengths = torch.tensor([len(r) for r in rows])
        ids = pad_sequence(list(rows), batch_first=True)
        mask = torch.arange(ids.shape[1])[None] < lengths[:, None]
        out = self.encoder(input_ids=ids, attention_mask=mask.long())
        hidden: Tensor = out.last_hidden_state.float()
        if self._causal:
            return hidden[torch.arange(len(rows)), lengths - 1]
        return (hidden * mask[..., None]).sum(1) / lengths[:, None]


def packed(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Numbers of rows, by length, in batches of at most ``budget`` padded tokens or one row."""
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda k: lengths[k]):
        if batch and lengths[number] * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def looks_only_back(encoder: Any) -> bool:
    """Whether a later token leaves the hidden state of an earlier one as it is: a decoder."""
    with torch.no_grad():
        ids = torch.tensor([[0, 1], [0, 2]])
        first = encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[:, 0]
    return bool(torch.allclose(first[0], first[1], rtol=0, atol=1e-6))
