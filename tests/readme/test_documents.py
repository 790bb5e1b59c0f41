"""Recipes, rows, keys, paths, links and pictures of the two documents are what they seem."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from aacli.app import app
from stages.recipe.load import load_recipe
from stages.recipe.models import Recipe
from stages.recipe.schema import walk
from stages.study.study import Study
from tests.readme.documents import DOCUMENTS, README, ROOT, Document
from tests.readme.home import furnish

BLOCKS = [(d.path, block) for d in DOCUMENTS for block in d.blocks("yaml")]
SECTIONS = tuple(Recipe.model_fields)
PICTURES = ROOT / "recipes/pictures"
each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.path.parent.name)


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("person")
    furnish(folder)
    (folder / "my_rewards.py").write_text("def polite(turn, earlier):\n    return 0.0\n")
    return folder


def leaves(content: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value of a nested mapping, with its keys."""
    if isinstance(content, Mapping) and content:
        for key, value in content.items():
            yield from leaves(value, (*path, key))
    else:
        yield path, content


def loaded(folder: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    rest = {"name": "shown", "model": {"actor": "base"}, "environment": {"name": "sql"}}
    path = folder / "shown.yaml"
    path.write_text(yaml.safe_dump(rest | content))
    return load_recipe(path).model_dump(mode="json")


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_recipe_that_is_shown_loads_and_changes_what_it_says(number, person, monkeypatch):
    monkeypatch.chdir(person)
    content = yaml.safe_load(BLOCKS[number][1])
    with_it, without = loaded(person, content), loaded(person, {})
    assert with_it != without
    for path, wanted in leaves(content):
        value: Any = with_it
        for key in path:
            value = value[key]
        if isinstance(wanted, Mapping):
            assert value is not None
        elif isinstance(wanted, str):  # a path may have become an absolute one
            assert str(value).endswith(wanted), path
        else:
            assert value == wanted, path


def test_the_rows_that_are_shown_are_sound(tmp_path):
    """Dialogues and preferences; the row with SQL is a question, which env check reads."""
    rows = [line for block in README.blocks("json") for line in block.splitlines()]
    shapes = {"instructions": 0, "dialogues, TRL": 0, "preferences": 0}
    for row in rows:
        path = tmp_path / "row.jsonl"
        path.write_text(row + "\n")
        if "sql" in json.loads(row):
            assert set(json.loads(row)) == {"question", "sql"}
            continue
        result = CliRunner().invoke(app, ["data", "check", str(path), "--json"])
        assert result.exit_code == 0, result.output
        (shape,) = json.loads(result.stdout)["shapes"]
        shapes[shape] += 1
    assert set(shapes.values()) == {1}


def test_a_file_of_all_dialogues_is_what_sft_reads(person, monkeypatch):
    monkeypatch.chdir(person)
    result = CliRunner().invoke(app, ["data", "check", "dialogues.jsonl", "--json"])
    assert json.loads(result.stdout)["rows"] == 32


@each_document
def test_keys_that_are_named_exist(document: Document):
    known = {key.dotted for key in walk(Recipe, {})} | {key.dotted for key in walk(Study, {})}
    groups = {dotted.rsplit(".", n)[0] for dotted in known for n in (1, 2)}
    pattern = re.compile(rf"^((?:{'|'.join(SECTIONS)})\.[a-z_.]+)(?:[:= ].*)?$")
    named = [m.group(1) for span in document.spans if (m := pattern.match(span))]
    free = ("rl.rewards.weights.",)  # names of components
    wrong = [
        key
        for key in named
        if not key.startswith(free) and key not in known | groups and not _of_a_world(key)
    ]
    assert len(named) > 10 and wrong == []


def _of_a_world(key: str) -> bool:
    """Keys of an environment differ from one to the other."""
    from stages.interaction.environments import ENVIRONMENTS

    section, *rest = key.split(".")
    if section != "environment":
        return False
    return any(rest[0] in options.model_fields for options, _ in ENVIRONMENTS.values())


@each_document
def test_sections_that_are_named_in_short_are_sections(document: Document, person, monkeypatch):
    """``model: {lora: ...}`` within the prose; an environment alone begins with its own key."""
    monkeypatch.chdir(person)
    found = 0
    for span in document.spans:
        match = re.match(rf"^({'|'.join(SECTIONS)}): (\{{.*\}})$", span)
        if match and "..." not in span and "FILE" not in span:
            loaded(person, {match.group(1): yaml.safe_load(match.group(2))})
            found += 1
    assert found or document is README


@each_document
def test_paths_exist(document: Document):
    pattern = re.compile(r"^(recipes|stages|tests|aacli)/[\w./-]*$")
    paths = [span for span in document.spans if pattern.match(span)]
    if document is not README:
        paths += [f"recipes/{s}" for s in document.spans if re.match(r"^(scale|launch)/\S*$", s)]
    assert len(paths) > 2
    assert [path for path in paths if not (ROOT / path).exists()] == []


@each_document
def test_links_lead_somewhere(document: Document):
    headings = {d.path: d.headings for d in DOCUMENTS}
    for link in document.links:
        if link.startswith("http"):
            continue
        file, _, anchor = link.partition("#")
        path = (document.path.parent / file).resolve() if file else document.path
        assert path.exists(), link
        assert not anchor or anchor in headings[path], link


@each_document
def test_lines_are_short(document: Document):
    """Tables and links cannot be broken."""
    inside = [line for line in document.text.splitlines() if "|" not in line and "](" not in line]
    assert [line for line in inside if len(line) > 125] == []


def test_pictures_are_small_and_ask_for_nothing():
    """A page that shows them sends no request of its own."""
    for path in PICTURES.iterdir():
        assert path.stat().st_size <= 200_000, path
        if path.suffix == ".svg":
            text = path.read_text().replace("http://www.w3.org/", "")
            assert "http" not in text and "@import" not in text and "<script" not in text
    links = [link for document in DOCUMENTS for link in document.links]
    shown = {Path(link).name for link in links if "pictures/" in link}
    assert shown == {path.name for path in PICTURES.iterdir()}
