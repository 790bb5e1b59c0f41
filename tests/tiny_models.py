"""Small random models built on the spot, each with a tokenizer and chat template of its own.

``tiny_llama``: template with generation markers, no system and no tool role (it refuses both),
alternating roles enforced, pad equal to eos. ``tiny_qwen3``: ChatML without markers, system and
tool roles, earlier reasoning stripped from the history, pad apart from eos.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

CORPUS = (
    "How many orders have status shipped? What is the highest unit price of all products?",
    '{"name": "query", "arguments": {"sql": "SELECT COUNT(*) FROM orders"}}',
    '{"name": "list_tables", "arguments": {}} {"name": "describe", "arguments": {"table": "x"}}',
    '{"name": "answer", "arguments": {"value": 12}} error: no such column: customer_name',
    "system user assistant tool You are an analyst. The answer is done still to do: goal",
)

LLAMA_TEMPLATE = """{{- bos_token }}
{%- for message in messages %}
{%- if message['role'] not in ['user', 'assistant'] %}
{{- raise_exception('Only user and assistant roles are supported!') }}
{%- endif %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Roles must alternate user/assistant!') }}
{%- endif %}
{{- '<|head|>' + message['role'] + '<|body|>' }}
{%- if message['role'] == 'assistant' %}
{%- generation %}{{- message['content'] | trim + '<|stop|>' }}{%- endgeneration %}
{%- else %}
{{- message['content'] | trim + '<|stop|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|head|>assistant<|body|>' }}{%- endif %}"""

QWEN3_TEMPLATE = """{%- for message in messages %}
{%- set text = message['content'] %}
{%- if message['role'] == 'assistant' and '</think>' in text and not loop.last %}
{%- set text = text.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{%- if message['role'] == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + text + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message['role'] + '\\n' + text + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def tiny_llama(folder: Path, **overrides: Any) -> Path:
    """Save a random Llama (pad equals eos, template with generation markers); its folder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    special = {"bos_token": "<|begin|>", "eos_token": "<|stop|>", "pad_token": "<|stop|>"}
    tokenizer = _tokenizer(("<|begin|>", "<|stop|>", "<|head|>", "<|body|>"), special)
    tokenizer.chat_template = LLAMA_TEMPLATE
    config = LlamaConfig(**(_shape(tokenizer) | {"tie_word_embeddings": True} | overrides))
    return _save(LlamaForCausalLM, config, tokenizer, folder)


def tiny_qwen3(folder: Path, **overrides: Any) -> Path:
    """Save a random Qwen3 (pad apart from eos, template without generation markers)."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    special = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    tokenizer = _tokenizer(("<|endoftext|>", "<|im_start|>", "<|im_end|>"), special)
    tokenizer.chat_template = QWEN3_TEMPLATE
    config = Qwen3Config(**(_shape(tokenizer) | {"head_dim": 16} | overrides))
    return _save(Qwen3ForCausalLM, config, tokenizer, folder)


def tiny_bert(folder: Path, **overrides: Any) -> Path:
    """Save a random BERT encoder with a word-piece tokenizer of its own; its folder."""
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    words = BertWordPieceTokenizer()
    view = "goal facts solved state did got seen turns left tokens proposed 0 1 2 3 4 5 6 7 8 9"
    words.train_from_iterator([*CORPUS, view] * 3, 400, show_progress=False)
    words.save_model(str(folder))
    tokenizer = BertTokenizerFast(str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 128,
    }
    with torch.random.fork_rng():
        torch.manual_seed(7)
        BertModel(BertConfig(**(shape | overrides))).save_pretrained(folder)
    return folder


def _shape(tokenizer: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 1024,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _tokenizer(tokens: tuple[str, ...], special: dict[str, str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(CORPUS, trainer)
    extra = [token for token in tokens if token not in special.values()]
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        additional_special_tokens=extra,
        clean_up_tokenization_spaces=False,
        **special,
    )


def _save(architecture: Any, config: Any, tokenizer: Any, folder: Path) -> Path:
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(7)
        architecture(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Path(folder)
