"""The project's tiny base model in the dialect of Qwen3, as TRL's GRPOTrainer knows it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.bench.models import BASE
from stages.common.files import read_json, write_json
from stages.common.models import load_tokenizer

LONGEST = 2048
_SPECIAL = {
    "<s>": "<|im_start|>",
    "<pad>": "<|endoftext|>",
    "<|end|>": "<|im_end|>",
    "<|system|>": "<tool_call>",
    "<|user|>": "</tool_call>",
    "<|assistant|>": "<tool_response>",
    "<|tool|>": "</tool_response>",
}
"""The base model's control tokens, and what they are from here on."""
_BEFORE, _AFTER = "\n[ ] tables", "\n[x] tables"
"""Tokens of the base model that stand for checklists, which nobody is shown here."""
_SCHEMA = {
    " [ ] columns": '{"type": "function", "function": {"name": "',
    " [ ] result": '", "description": "',
    " [ ] answer": '", "parameters": {"type": "object", "properties": {',
    " [x] columns": '": {"type": "string", "description": "',
    " [x] result": '"}}, "required": ["',
    " [x] answer": '"]}, "return": {"type": "string"}}}',
}
"""More of them, for the recurring pieces of a tool's description: large vocabularies have whole
words there, and this one would spell them."""
_CONTROL = ("<|im_start|>", "<|endoftext|>", "<|im_end|>")


def template() -> Path:
    """Qwen3's chat template, as TRL brings it along: it knows templates by their text."""
    import trl

    return Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"


def base_in_chatml(folder: Path) -> Path:
    """The base model with Qwen3's control tokens and template, and twice its context.

    What the template says before and after every list of tools is one token each.
    """
    folder.mkdir(parents=True)
    shutil.copy(BASE / "model.safetensors", folder)
    (folder / "chat_template.jinja").write_text(template().read_text("utf-8"), "utf-8")
    settings = read_json(BASE / "tokenizer_config.json")
    for name in ("bos_token", "extra_special_tokens"):
        settings.pop(name)
    told = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "model_max_length": LONGEST}
    write_json(folder / "tokenizer_config.json", settings | told)
    told = {"max_position_embeddings": LONGEST, "bos_token_id": None}
    write_json(folder / "config.json", read_json(BASE / "config.json") | told)
    _write_tokenizer(folder, _SPECIAL)
    before, after = _around_tools(load_tokenizer(folder))
    _write_tokenizer(folder, _SPECIAL | _SCHEMA | {_BEFORE: before, _AFTER: after})
    return folder


def tools_message(tokenizer: Any, tools: Sequence[Callable[..., Any]]) -> dict[str, str]:
    """What the template makes of tools, as the system message that says the same."""
    asked = [{"role": "user", "content": "?"}]
    text = tokenizer.apply_chat_template(asked, tools=list(tools), tokenize=False)
    opening, end = "<|im_start|>system\n", "<|im_end|>"
    return {"role": "system", "content": text.removeprefix(opening).partition(end)[0]}


def _around_tools(tokenizer: Any) -> list[str]:
    def nothing() -> None:
        """Nothing."""

    lines = tools_message(tokenizer, [nothing])["content"].splitlines(keepends=True)
    place = next(k for k, line in enumerate(lines) if line.startswith('{"type"'))
    return ["".join(lines[:place]), "".join(lines[place + 1 :])]


def _write_tokenizer(folder: Path, renamed: Mapping[str, str]) -> None:
    """The base model's tokenizer with other names for some of its tokens."""
    content = read_json(BASE / "tokenizer.json")
    for token in content["added_tokens"]:
        token["content"] = renamed.get(token["content"], token["content"])
        token["special"] = token["content"] in _CONTROL
    words = content["model"]["vocab"]
    content["model"]["vocab"] = {renamed.get(word, word): n for word, n in words.items()}
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")
