"""Every command that README.md and recipes/README.md show does what they say it does."""

from __future__ import annotations

import ast
import itertools
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.readme.documents import DOCUMENTS, ROOT, Document
from tests.readme.home import Home
from tests.readme.verified import VERIFIED, Covered, Extra, Made, NotHere, Run
from tests.test_project import make, needs_make

SHOWN = {command: document for document in DOCUMENTS for command in document.commands}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def of(kind: type[Any]) -> list[str]:
    return [command for command, how in VERIFIED.items() if isinstance(how, kind)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.path.relative_to(ROOT)))
def test_a_command_that_is_shown_is_one_that_a_test_knows(document: Document):
    unknown = [command for command in document.commands if command not in VERIFIED]
    assert not unknown, f"{document.path.name} shows commands no test knows: {unknown}"


def test_what_is_known_is_shown():
    assert [command for command in VERIFIED if command not in SHOWN] == []


def run(command: str, home: Home) -> tuple[Path, Any]:
    """Type it once what it needs is there."""
    how = VERIFIED[command]
    assert isinstance(how, Run)
    for earlier in how.needs:
        run(earlier, home)
    return home.typed(command, story=how.story, more=how.words, keys=how.keys)


def cases() -> list[Any]:
    marks = {True: pytest.mark.full, False: ()}
    return [pytest.param(c, marks=marks[VERIFIED[c].full], id=c) for c in of(Run)]  # type: ignore[union-attr]


@pytest.mark.parametrize("command", cases())
def test_it_does_what_it_is_shown_for(command: str, home: Home, launcher: list[Any]):
    how = VERIFIED[command]
    assert isinstance(how, Run)
    how.effect(*run(command, home))
    assert bool(launcher) == how.launched


@needs_make
@pytest.mark.parametrize("command", of(Made))
def test_make_types_it(command: str, tmp_path: Path):
    how = VERIFIED[command]
    assert isinstance(how, Made)
    done = make("-n", *shlex.split(command)[1:], f"VENV={tmp_path}/venv")
    assert done.returncode == 0, done.stderr
    place = 0
    for words in how.types:
        place = done.stdout.find(words, place)
        assert place >= 0, (words, done.stdout)


@pytest.mark.parametrize("command", of(Covered))
def test_another_test_types_it(command: str):
    how = VERIFIED[command]
    assert isinstance(how, Covered)
    path, name = how.by.split("::")
    text = (ROOT / path).read_text()
    assert name in [node.name for node in ast.walk(ast.parse(text)) if hasattr(node, "name")]
    assert how.says and all(words in text for words in how.says)


@pytest.mark.parametrize("command", of(Extra))
def test_its_extra_exists(command: str):
    assert EXTRAS[command.split("[")[1].split("]")[0]]


@pytest.mark.parametrize("command", of(NotHere))
def test_what_cannot_be_tried_here_is_said(command: str):
    how = VERIFIED[command]
    assert isinstance(how, NotHere)
    text = SHOWN[command].text
    before = text[: text.index(command.split(" --")[0])]
    assert how.said in before[-1500:]


def test_every_recipe_has_a_line_with_its_command():
    recipes = DOCUMENTS[1]
    files = [
        path.relative_to(ROOT)
        for path in sorted((ROOT / "recipes").rglob("*"))
        if path.suffix in (".yaml", ".json") and path.parts[-2] != "base"
    ]
    told = [path for path in files if path.name.split(".json")[0] in recipes.text]
    assert told == files
    typed = list(itertools.chain.from_iterable(d.commands for d in DOCUMENTS))
    yamls = [path for path in files if path.suffix == ".yaml"]
    made = {"laptop": "make laptop", "laptop-smoke": "make test-laptop"}
    for path in yamls:
        assert made.get(path.stem) in typed or any(str(path) in c for c in typed), path
