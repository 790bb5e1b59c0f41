"""Random models of a given shape, as the folders that stages hand over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.bench.worlds import WORDS

TEMPLATE = (
    "{% for message in messages %}{{ 'w1 ' + message['content'] + ' ' }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token + ' ' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'w2 ' }}{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """Of a Llama with tied embeddings."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    kv_heads: int | None = None
    vocabulary: int = WORDS + 2


SHAPES = {
    "0.15 M": Shape(64, 2, 2, 128),
    "1.2 M": Shape(128, 4, 4, 512),
    "6.5 M": Shape(256, 6, 8, 1024),
}


def words_tokenizer() -> Any:
    """One token a word, then pad and stop."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{n}": n for n in range(WORDS)} | {"<pad>": WORDS, "<stop>": WORDS + 1}
    core = Tokenizer(models.WordLevel(words, unk_token="w0"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<stop>", padding_side="left"
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def config_of(shape: Shape, **changes: Any) -> Any:
    """Llama's config."""
    from transformers import LlamaConfig

    given = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads or shape.heads,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    return LlamaConfig(**(given | changes))


def mute(model: Any, tokens: Sequence[int]) -> None:
    """Give a random Llama with tied embeddings weights by which it never says these tokens.

    One dimension of the residual stream is the same everywhere: all words agree with it in the
    output layer, and these tokens contradict it.
    """
    embedding = model.get_input_embeddings().weight.data
    embedding[:, 0] = 1.0
    embedding[list(tokens), 0] = -1.0
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data[0] = 0.0
        layer.mlp.down_proj.weight.data[0] = 0.0
