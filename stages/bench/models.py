"""Random models of a given shape, in the folders that stages hand over."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.bench.worlds import WORDS
from stages.common.files import write_json, write_lines

BASE = Path(__file__).parents[2] / "recipes" / "base"
SPECIAL = ("<pad>", "<stop>")
TEMPLATE = (
    "{% for message in messages %}{{ 'w1 ' + message['content'] + ' ' }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token + ' ' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'w2 ' }}{% endif %}"
)
LONGEST = 1024
TRL_SETTINGS = {
    "temperature": 1.0,
    "lr_scheduler_type": "constant",
    "save_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
}
"""Of both trainers of TRL."""


@dataclass(frozen=True)
class Shape:
    """Of a Llama with tied embeddings."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    kv_heads: int | None = None
    words: int = WORDS


SHAPES = {
    "0.15 M": Shape(64, 2, 2, 128),
    "1.2 M": Shape(128, 4, 4, 512),
    "6.5 M": Shape(256, 6, 8, 1024),
    "23 M": Shape(384, 10, 6, 1536, words=4096),
    "135 M": Shape(576, 30, 9, 1536, kv_heads=3, words=49150),
}
"""By their number of weights; the last one has SmolLM2-135M's shape."""


def words_tokenizer(words: int = WORDS) -> Any:
    """One token a word, then ``SPECIAL``: any sequence of words reads back unchanged, so that what
    a random model says is as long when it is read as when it was said."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = [*(f"w{n}" for n in range(words)), *SPECIAL]
    core = Tokenizer(models.WordLevel({w: n for n, w in enumerate(known)}, unk_token="w0"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pad, stop = SPECIAL
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token=pad, eos_token=stop, padding_side="left"
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def random_actor(shape: Shape, folder: Path, *, stop_chance: float = 0.0, seed: int = 0) -> Path:
    """A Llama that says words at random and stops with that chance at every token; its folder."""
    import torch
    from transformers import LlamaForCausalLM

    tokenizer = words_tokenizer(shape.words)
    torch.manual_seed(seed)
    model = LlamaForCausalLM(_config(shape))
    _set_chances(model, {tokenizer.pad_token_id: 0.0, tokenizer.eos_token_id: stop_chance})
    _saved(model, tokenizer, folder)
    return _finished(folder, "sft")


def copied_actor(base: Path, folder: Path) -> Path:
    """A model as if stage 1 had left it; its folder."""
    shutil.copytree(base, folder)
    return _finished(folder, "sft")


def random_scorer(shape: Shape, folder: Path, *, seed: int = 1) -> Path:
    """A reward model of that shape, as stage 2 leaves it; its folder."""
    import torch
    from transformers import LlamaForSequenceClassification

    tokenizer = words_tokenizer(shape.words)
    torch.manual_seed(seed)
    config = _config(shape, num_labels=1, pad_token_id=tokenizer.pad_token_id)
    return _scorer(LlamaForSequenceClassification(config), tokenizer, folder)


def saved_scorer(base: Path, folder: Path) -> Path:
    """The trunk of a model under a fresh head, as stage 2 leaves a reward model; its folder."""
    import torch
    from transformers import AutoTokenizer

    from stages.common.models import new_reward_model

    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(base)
    return _scorer(new_reward_model(base), tokenizer, folder)


def prompts_file(file: Path, count: int) -> Path:
    """Tasks of the world ``Prompts``: a seed each."""
    write_lines(file, ({"id": f"p{n}", "seed": n, "split": "train"} for n in range(count)))
    return file


def _config(shape: Shape, **changes: Any) -> Any:
    from transformers import LlamaConfig

    given = {
        "vocab_size": shape.words + len(SPECIAL),
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads or shape.heads,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": LONGEST,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    return LlamaConfig(**(given | changes))


def _set_chances(model: Any, chances: Mapping[int, float]) -> None:
    """Weights by which some tokens come with a chance of their own at every place.

    One dimension of the residual stream is the same everywhere, and all words agree with it in the
    output layer; these tokens agree as much more or less as their chance asks for.
    """
    import torch

    embedding = model.get_input_embeddings().weight.data
    embedding[:, 0] = 1.0
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data[0] = 0.0
        layer.mlp.down_proj.weight.data[0] = 0.0
    rest = len(embedding) - len(chances)
    with torch.no_grad():
        states = model.model(input_ids=torch.arange(64)[None]).last_hidden_state
    level = float(states[0, :, 0].mean())
    for token, chance in chances.items():
        odds = math.log(chance * rest / (1 - chance)) if chance else -40.0
        embedding[token, 1:] = 0.0
        embedding[token, 0] = 1.0 + odds / level


def _scorer(model: Any, tokenizer: Any, folder: Path) -> Path:
    _saved(model, tokenizer, folder)
    return _finished(folder, "reward", {"reward": {"max_length": LONGEST}})


def _finished(folder: Path, stage: str, recipe: Mapping[str, Any] | None = None) -> Path:
    """Seal a folder as a stage does."""
    from stages.common.manifest import build_manifest

    manifest = build_manifest(folder, stage, recipe=recipe or {})
    manifest = manifest.with_score(0.0, 1.0) if stage == "reward" else manifest
    write_json(folder / "manifest.json", manifest.to_json())
    return folder


def _saved(model: Any, tokenizer: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
