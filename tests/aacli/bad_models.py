"""Model folders that are no actor: missing, damaged, of another kind, or without a template."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.aacli.bad_input import PAIRS, Case, Place
from tests.tiny_models import tiny_llama

WEIGHTS = "model.safetensors"


def damaged(id: str, change: Callable[[Path], object], *names: str) -> Case:
    """A copy of a sound model after ``change``."""
    return Case(id, lambda at: at.copied("mine", change), names)


def edited(name: str, **values: Any) -> Callable[[Path], object]:
    """Keys of a JSON file set to other values."""

    def change(folder: Path) -> None:
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


def replaced(name: str, content: str) -> Callable[[Path], object]:
    """A file that holds something else."""
    return lambda folder: (folder / name).write_text(content)


def without(*names: str) -> Callable[[Path], object]:
    """Files that are gone."""
    return lambda folder: [(folder / name).unlink() for name in names]


def emptied(folder: Path) -> None:
    """Nothing is left."""
    for file in folder.iterdir():
        file.unlink()


def pickled(folder: Path) -> None:
    """Weights in the old format only."""
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def cut(folder: Path) -> None:
    """A download that broke off."""
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[:-1000])


def lacking_a_shard(folder: Path) -> None:
    """The index names a file that is not there."""
    index = {"weight_map": {"model.norm.weight": WEIGHTS, "lm_head.weight": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def lacking_a_tensor(folder: Path) -> None:
    """A layer that would be made up at random."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / WEIGHTS)
    tensors.pop("model.norm.weight")
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def few_words(folder: Path) -> None:
    """Fewer embeddings than tokens."""
    tiny_llama(folder, vocab_size=100)


def no_template(folder: Path) -> None:
    """A base model's tokenizer."""
    (folder / "chat_template.jinja").unlink()


def adapters(base: str | None) -> Callable[[Place], list[str]]:
    """Adapters over a model that is not there."""

    def make(at: Place) -> list[str]:
        at.write("mine/adapter_config.json", json.dumps({"base_model_name_or_path": base}))
        (at.root / "mine/adapter_model.safetensors").write_bytes((at.model / WEIGHTS).read_bytes())
        return at.with_model("mine")

    return make


CASES = (
    Case("no such model", lambda at: at.with_model("./nowhere"), ("./nowhere", "is no folder")),
    Case("mistyped hub id", lambda at: at.with_model("no/such/id"), ("no/such/id", "hub id")),
    Case(
        "hub id out of reach", lambda at: at.with_model("org/name"), ("org/name", "no folder here")
    ),
    Case(
        "model is a file",
        lambda at: at.with_model(at.write("m.txt", "x")),
        ("m.txt", "is no folder"),
    ),
    damaged(
        "empty model folder", emptied, "mine is an empty folder", "expected a Hugging Face model"
    ),
    damaged("no config", without("config.json"), "mine has no config.json", "give one"),
    damaged(
        "broken config",
        replaced("config.json", "{"),
        "mine/config.json is not valid JSON",
        "restore",
    ),
    damaged(
        "config is a list",
        replaced("config.json", "[]"),
        "mine/config.json holds a list",
        "restore",
    ),
    damaged(
        "config without a type", replaced("config.json", "{}"), "holds no model_type", "restore"
    ),
    damaged("unknown architecture", edited("config.json", model_type="zzz"), "mine", "zzz"),
    damaged("pickled weights only", pickled, "mine holds only pickled weights", "as safetensors"),
    damaged("no weights", without(WEIGHTS), "mine holds no weights", "expected *.safetensors"),
    damaged(
        "a missing shard",
        lacking_a_shard,
        "mine lacks",
        "model-2.safetensors",
        "copy the model again",
    ),
    damaged(
        "a shard cut short", cut, "mine/model.safetensors is cut short", "copy the model again"
    ),
    damaged("weights of another format", replaced(WEIGHTS, "PK"), "mine/model.safetensors", "copy"),
    damaged("a missing tensor", lacking_a_tensor, "mine lack model.norm.weight", "complete model"),
    damaged(
        "weights of another shape",
        edited("config.json", hidden_size=16, head_dim=8),
        "mine do not have the shapes",
        "restore the config",
    ),
    damaged(
        "vocabulary too small",
        few_words,
        "mine has 100 embeddings",
        "give the tokenizer that belongs",
    ),
    damaged(
        "an encoder",
        edited("config.json", architectures=["BertForMaskedLM"]),
        "BertForMaskedLM",
        "causal",
    ),
    damaged(
        "a scorer",
        edited("config.json", architectures=["LlamaForSequenceClassification"]),
        "causal",
    ),
    damaged(
        "encoder and decoder",
        edited("config.json", is_encoder_decoder=True),
        "causal language model",
    ),
    damaged("no chat template", no_template, "mine has no chat template", "model.chat_template"),
    damaged(
        "broken chat template",
        replaced("chat_template.jinja", "{% for"),
        "tokenizer of mine fails",
        "give another",
    ),
    damaged(
        "template that shows nothing", replaced("chat_template.jinja", "x"), "of mine does not show"
    ),
    damaged("broken tokenizer", replaced("tokenizer.json", "{"), "mine", "tokenizer"),
    damaged(
        "no tokenizer", without("tokenizer.json", "tokenizer_config.json"), "mine", "tokenizer"
    ),
    Case(
        "adapters without a base",
        adapters(None),
        ("adapter_config.json names no base model", "set"),
    ),
    Case(
        "adapters whose base is gone",
        adapters("/no/base"),
        ("mine need the model /no/base", "put it back"),
    ),
    Case(
        "template file of another encoding",
        lambda at: [*at.sft(), "--set", f"model.chat_template={at.write('t.jinja', bytes([255]))}"],
        ("t.jinja", "cannot be read"),
    ),
    Case(
        "template file with an error",
        lambda at: [*at.sft(), "--set", f"model.chat_template={at.write('t.jinja', '{% if %}')}"],
        ("The chat template of t.jinja fails", "give another as model.chat_template"),
    ),
    Case(
        "actor of an evaluation",
        lambda at: ["eval", "demo.yaml", "--actor", "./nowhere"],
        ("./nowhere", "is no folder"),
    ),
    Case(
        "trunk of the reward model",
        lambda at: at.reward(at.rows(*PAIRS), "--set", "reward.base=./nowhere"),
        ("./nowhere is no folder", "give a Hugging Face model folder or a hub id"),
    ),
    Case(
        "layer to freeze that is none",
        lambda at: at.sft(None, "--set", "model.frozen=[embeds]"),
        ("model.frozen has 'embeds'", "names look like"),
    ),
)
