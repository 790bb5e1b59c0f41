"""Loading and saving: what is refused and why, and that nothing is lost on the way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from stages.common import models
from stages.common import precision as precision_module
from stages.common.chat import stop_ids
from stages.common.errors import HandoffError, UsageError
from stages.common.libraries import quiet_libraries
from stages.common.machine import bf16_instructions
from stages.common.models import (
    count_parameters,
    load_actor,
    load_reward_model,
    load_tokenizer,
    load_trained_actor,
    longest_row,
    new_reward_model,
    padding_id,
    save_folder,
    score_padding,
)
from stages.common.precision import computed_in, precision
from stages.interaction.player import load_player
from stages.interaction.states import StateOptions
from stages.recipe.model import LoraSection, ModelSection
from tests.tiny_models import tiny_bert, tiny_llama, tiny_qwen3


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(Path(tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_qwen3(Path(tmp_path_factory.mktemp("qwen3")))


def test_saved_folder_is_plain_and_equal(llama: Path, tmp_path: Path) -> None:
    model, tokenizer = load_actor(llama), load_tokenizer(llama)
    save_folder(model, tokenizer, tmp_path, card="A test.")
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    other = AutoTokenizer.from_pretrained(tmp_path)
    assert other.chat_template == tokenizer.chat_template
    assert other("How many orders?").input_ids == tokenizer("How many orders?").input_ids
    names = {p.name for p in tmp_path.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
    assert not any(name.endswith((".bin", ".pt")) for name in names)
    assert "A test." in (tmp_path / "README.md").read_text()


def test_generation_config_knows_every_stop_token(qwen3: Path, tmp_path: Path) -> None:
    model, tokenizer = load_actor(qwen3), load_tokenizer(qwen3)
    model.generation_config.eos_token_id = tokenizer.pad_token_id
    save_folder(model, tokenizer, tmp_path)
    saved = json.loads((tmp_path / "generation_config.json").read_text())
    assert saved["eos_token_id"] == [tokenizer.eos_token_id, tokenizer.pad_token_id]


def test_contradicting_generation_flags_do_not_stop_a_save(qwen3: Path, tmp_path: Path) -> None:
    model, tokenizer = load_actor(qwen3), load_tokenizer(qwen3)
    model.generation_config = GenerationConfig(do_sample=False, temperature=0.6, top_p=0.9)
    save_folder(model, tokenizer, tmp_path)
    saved = json.loads((tmp_path / "generation_config.json").read_text())
    assert saved["eos_token_id"] == tokenizer.eos_token_id


def test_tied_parameters_count_once(llama: Path, qwen3: Path) -> None:
    tied, untied = load_actor(llama), load_actor(qwen3)
    vocabulary, width = tied.config.vocab_size, tied.config.hidden_size
    own = sum(t.numel() for n, t in tied.state_dict().items() if n != "lm_head.weight")
    assert count_parameters(tied) == own
    assert count_parameters(untied) == sum(t.numel() for t in untied.state_dict().values())
    assert count_parameters(untied) > 2 * vocabulary * width


@pytest.mark.parametrize("lora", [None, LoraSection(rank=2)])
def test_the_allocator_is_told_how_large_an_actor_is(
    lora: LoraSection | None, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr(models, "keep_less", told.append)
    section = ModelSection(actor=str(llama), lora=lora)
    load_trained_actor(llama, section, dtype="float32", tokenizer=load_tokenizer(llama))
    assert told == [count_parameters(AutoModelForCausalLM.from_pretrained(llama))]


def test_frozen_names_and_their_mistakes(llama: Path) -> None:
    model = load_actor(llama, frozen=("embed_tokens", "layers.0."))
    fixed = {n for n, p in model.named_parameters() if not p.requires_grad}
    assert "model.embed_tokens.weight" in fixed
    assert all("layers.0." in n or "embed_tokens" in n for n in fixed)
    with pytest.raises(UsageError, match=r"'wte'.*names look like model\.embed_tokens"):
        load_actor(llama, frozen=("wte",))


@pytest.mark.parametrize("load", [load_actor, load_tokenizer])
def test_missing_folder_is_told_without_asking_a_hub(load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match="is no folder"):
        load(tmp_path / "nothing")


def test_unknown_hub_id_is_one_sentence() -> None:
    with pytest.raises(
        UsageError, match="nobody/nothing is no folder here, and no tokenizer of that hub id"
    ):
        load_tokenizer("nobody/nothing")


def test_template_from_a_file_and_a_missing_template(qwen3: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    shutil.copytree(qwen3, folder)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(UsageError, match=r"no chat template.*model\.chat_template"):
        load_tokenizer(folder)
    file = tmp_path / "t.jinja"
    file.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert load_tokenizer(folder, file).chat_template == file.read_text()
    with pytest.raises(UsageError, match="cannot be read"):
        load_tokenizer(folder, tmp_path / "no.jinja")


def test_pickled_weights_are_refused(qwen3: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pickled"
    shutil.copytree(qwen3, folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"pickled weights \(pytorch_model\.bin\)"):
        load_actor(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(UsageError, match="holds no weights"):
        load_actor(folder)


def test_vocabulary_smaller_than_the_tokenizers(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path, vocab_size=300)
    with pytest.raises(UsageError, match="300 embeddings but its tokenizer 400 tokens"):
        load_actor(folder, tokenizer=load_tokenizer(folder))


def test_padding_never_needs_a_pad_token(llama: Path, qwen3: Path) -> None:
    tied, apart = load_tokenizer(llama), load_tokenizer(qwen3)
    assert padding_id(tied) == tied.eos_token_id
    apart.pad_token = None
    assert padding_id(apart) == apart.eos_token_id
    apart.eos_token = None
    assert padding_id(apart) == 0


def test_scores_are_never_padded_with_a_stop_token(llama: Path, qwen3: Path) -> None:
    assert score_padding(load_tokenizer(llama)) == "<|begin|>"
    assert score_padding(load_tokenizer(qwen3)) == "<|endoftext|>"


def test_a_fresh_head_is_no_reward_model(llama: Path, tmp_path: Path) -> None:
    with quiet_libraries(None):
        with pytest.raises(HandoffError, match=r"no trained reward model.*score\.weight"):
            load_reward_model(llama)
        model = new_reward_model(llama)
        save_folder(model, load_tokenizer(llama), tmp_path)
        again = load_reward_model(tmp_path)
    assert torch.equal(again.score.weight, model.score.weight)
    actor = load_actor(llama)
    assert torch.equal(model.model.embed_tokens.weight, actor.model.embed_tokens.weight)


def played_in(folder: Path) -> torch.dtype:
    model = SimpleNamespace(chat_template=None, dtype="bfloat16")
    sampling = SimpleNamespace(temperature=1.0, max_new_tokens=4)
    policy: Any = load_player(folder, model=model, sampling=sampling, state=StateOptions()).policy
    dtype: torch.dtype = policy.model.dtype
    return dtype


def test_a_cpu_without_bf16_instructions_takes_float32_and_says_so(
    llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(precision_module, "bf16_instructions", lambda: ["amx_bf16"])
    assert played_in(llama) == torch.bfloat16
    assert precision("bfloat16", adapters=True) == ("bfloat16", True)
    monkeypatch.setattr(precision_module, "bf16_instructions", list)
    precision_module._notice_of_bf16.cache_clear()
    for _ in range(2):
        assert precision("bfloat16", adapters=True) == ("float32", False)
        assert played_in(llama) == torch.float32
    assert capsys.readouterr().err.count("no instructions for it") == 1  # told once
    assert (computed_in("auto"), computed_in("float32")) == ("float32", "float32")


def test_bf16_instructions_are_read_off_the_cpus_flags(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("flags : fpu avx2 avx512_bf16 amx_bf16\n")
    assert bf16_instructions(file) == ["amx_bf16", "avx512_bf16"]
    file.write_text("flags : fpu avx2\n")
    assert bf16_instructions(file) == bf16_instructions(tmp_path / "absent") == []


def test_an_encoder_takes_the_plain_template(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path)
    with pytest.raises(UsageError, match="no chat template"):
        load_tokenizer(folder)
    tokenizer = load_tokenizer(folder, plain=True)
    messages = [{"role": "user", "content": "orders?"}, {"role": "assistant", "content": "12"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "[CLS]user: orders?[SEP]assistant: 12[SEP]"
    assert stop_ids(tokenizer) == (tokenizer.sep_token_id,)


def test_an_encoder_with_learned_positions_has_a_longest_row(tmp_path: Path, llama: Path) -> None:
    assert longest_row(tiny_bert(tmp_path)) == 128 and longest_row(llama) is None
