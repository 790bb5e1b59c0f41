"""A parent that is missing, unfinished, of another stage or altered is refused in one sentence."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from stages.common.errors import HandoffError
from stages.common.manifest import (
    Manifest,
    build_manifest,
    chat_template_hash,
    content_hash,
    tokenizer_hash,
    verify_parent,
)
from stages.common.run_folder import RunFolder, RunRequest

RECIPE = {"name": "demo", "seed": 7, "model": {"actor": "base"}, "state": {"exchanges": 8}}
TOKENIZER = {"model": {"vocab": {"a": 0}}, "padding": None, "truncation": None}


def fill(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (folder / "chat_template.jinja").write_text("{{ messages }}")


@pytest.fixture
def sft(tmp_path: Path) -> Path:
    run = RunFolder.open(RunRequest(output_dir=tmp_path / "demo" / "sft"), "sft")
    fill(run.path)
    run.finish(build_manifest(run.path, "sft", recipe=RECIPE, data={"file": "abc"}), {})
    return run.path


def test_manifest_records_what_the_run_was_made_from(sft):
    manifest = verify_parent(sft, "sft")
    assert (manifest.stage, manifest.seed, manifest.base_model) == ("sft", 7, "base")
    assert manifest.state == {"exchanges": 8} and manifest.data == {"file": "abc"}
    assert manifest.files["model.safetensors"] == hashlib.sha256(b"weights").hexdigest()
    assert manifest.content_hash == content_hash(sft)
    assert {"python", "torch", "trl"} <= set(manifest.versions)
    assert set(manifest.files) == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "chat_template.jinja",
    }


def test_parents_and_score_are_recorded(sft, tmp_path):
    run = RunFolder.open(RunRequest(output_dir=tmp_path / "demo" / "reward"), "reward")
    fill(run.path)
    made = build_manifest(run.path, "reward", recipe=RECIPE, parents={"sft": sft})
    run.finish(made.with_score(0.5, 2.0), {})
    manifest = verify_parent(run.path, "reward")
    assert manifest.parents == {"sft": {"path": str(sft), "hash": content_hash(sft)}}
    assert manifest.score == {"mean": 0.5, "std": 2.0}


def test_missing_parent(tmp_path):
    with pytest.raises(HandoffError, match=r"does not exist; run aac sft first.*--sft"):
        verify_parent(tmp_path / "nowhere", "sft")


def test_unfinished_parent(tmp_path):
    RunFolder.open(RunRequest(output_dir=tmp_path / "sft"), "sft")
    with pytest.raises(HandoffError, match="has not finished"):
        verify_parent(tmp_path / "sft", "sft")


def test_parent_of_another_stage(sft):
    with pytest.raises(HandoffError, match="made by the stage 'sft', expected 'reward'"):
        verify_parent(sft, "reward")


@pytest.mark.parametrize(
    "name", ["model.safetensors", "tokenizer.json", "chat_template.jinja", "config.json"]
)
def test_altered_parent_is_named(sft, name):
    (sft / name).write_bytes((sft / name).read_bytes() + b" ")
    with pytest.raises(HandoffError, match=rf"altered.*\({name} differs"):
        verify_parent(sft, "sft")


def test_added_and_removed_weights_count_as_altered(sft):
    (sft / "model-00002.safetensors").write_bytes(b"more")
    with pytest.raises(HandoffError, match="model-00002.safetensors differs"):
        verify_parent(sft, "sft")
    (sft / "model-00002.safetensors").unlink()
    (sft / "model.safetensors").unlink()
    with pytest.raises(HandoffError, match=r"model.safetensors differs"):
        verify_parent(sft, "sft")


def test_notes_beside_the_weights_are_no_alteration(sft):
    (sft / "README.md").write_text("my notes")
    (sft / "report.html").write_text("<html>")
    verify_parent(sft, "sft")


@pytest.mark.parametrize("content", ["[]", "{}", '{"stage": "sft"}', "3"])
def test_foreign_manifest(sft, content):
    (sft / "manifest.json").write_text(content)
    with pytest.raises(HandoffError, match="not a manifest of aac"):
        verify_parent(sft, "sft")


def test_manifest_of_a_newer_aac(sft):
    row = json.loads((sft / "manifest.json").read_text()) | {"schema_version": 99, "novelty": 1}
    (sft / "manifest.json").write_text(json.dumps(row))
    with pytest.raises(HandoffError, match="update aac"):
        verify_parent(sft, "sft")


def test_tokenizer_hash_ignores_padding_and_sees_the_vocabulary(sft):
    first = tokenizer_hash(sft)
    padded = TOKENIZER | {"padding": {"length": 8}, "truncation": {"max_length": 4}}
    (sft / "tokenizer.json").write_text(json.dumps(padded, indent=4))
    assert tokenizer_hash(sft) == first
    (sft / "tokenizer.json").write_text(json.dumps(TOKENIZER | {"model": {"vocab": {"b": 0}}}))
    assert tokenizer_hash(sft) != first


def test_slow_tokenizer_is_hashed_by_its_files(tmp_path):
    assert tokenizer_hash(tmp_path) == ""
    (tmp_path / "tokenizer.model").write_bytes(b"pieces")
    first = tokenizer_hash(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"other pieces")
    assert first and tokenizer_hash(tmp_path) != first


def test_template_hash_is_the_same_in_either_file(tmp_path):
    assert chat_template_hash(tmp_path) == ""
    (tmp_path / "chat_template.jinja").write_text("{{ x }}")
    in_file = chat_template_hash(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ x }}"}))
    assert chat_template_hash(tmp_path) == in_file


def test_json_round_trip():
    manifest = Manifest("rl", {}, "h", 1, {}, "b", "c", {"f": "1"}, "t", "u", {}, score={"mean": 1})
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest
