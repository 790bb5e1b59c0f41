"""``aac init``: a first recipe, from what a person has and a few questions."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aacli.command import command, emit
from aacli.options import Basics
from aacli.outcome import suggest
from stages.common.console import show, warn
from stages.common.errors import UsageError

if TYPE_CHECKING:
    from stages.evaluation.starter import Start

Things = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="WHAT",
        help="What you have: files of dialogues, preferences or questions, a SQLite file, a model "
        "folder, an environment of yours, or a folder with such in it.",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", metavar="FILE", help="The recipe.", show_default="<name>.yaml"),
]
Name = Annotated[
    str | None, typer.Option(help="Name of the recipe and of its runs.", show_default="this folder")
]
Model = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Model folder or hub id to start from.", show_default=False),
]
Environment = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="A world: one of aac env list, or module:Class of yours.",
        show_default="sql",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing, take the defaults.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the recipe.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "init", example="aac init dialogues.jsonl pairs.jsonl --model models/mine")(init)


def init(
    options: Basics,
    things: Things = None,
    output: Output = None,
    name: Name = None,
    model: Model = None,
    environment: Environment = None,
    yes: Yes = False,
    overwrite: Overwrite = False,
) -> None:
    """Write a commented recipe to start from, and say what to type next.

    In a terminal it asks for what was not given; files are recognised by their content.
    """
    from stages.evaluation import starter

    start = starter.recognised(things or ())
    start = replace(start, model=model or start.model)
    if environment is not None:
        start = starter.in_world(start, environment)
    start, name = _completed(start, name or _own_name(output), asks=_asks(yes))
    path = output or Path(f"{name}.yaml")
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists; pass --overwrite to replace it, or another --output.")
    starter.check_start(start)
    start = _with_questions(start, path.parent)
    _write(path, starter.recipe_text(name, start, path))
    if options.json:
        emit({"recipe": str(path), "name": name})
    show(f"wrote {path}, a recipe to start from; every line in it may be changed.")
    if starter.is_tiny(str(start.model)) and starter.brings_words(start):
        warn(
            f"{start.model} knows few words beyond those it was pretrained on and will stumble over"
            " yours; set model.actor to a real pretrained model, at least some hundred million"
            " weights."
        )
    words = shlex.quote(str(path))
    suggest(f"aac run {words} --dry-run", f"aac run {words}")


def _asks(yes: bool) -> bool:
    """Questions are for a person at a keyboard."""
    return not yes and sys.stdin.isatty()


def _completed(start: Start, name: str | None, *, asks: bool) -> tuple[Start, str]:
    """What was not given, asked for or by default."""
    from stages.evaluation import starter

    defaults: dict[str, Any] = {
        "name": _as_name(Path.cwd().name),
        "model": str(starter.BASE) if starter.BASE.is_dir() else None,
        "environment": "sql",
    }

    def told(question: str, key: str, take: Callable[[str], Any] = str) -> Any:
        default = defaults[key]
        if asks:
            return _ask(question, default, take)
        return None if default is None else take(default)

    name = name or told("Name of the recipe", "name")
    model = start.model or told("Model to start from (a folder or hub id)", "model")
    if start.environment is None and start.database is None:
        if asks:
            show(f"worlds: {', '.join(starter.BUILT_IN)}, or module:Class of yours")
        start = told("World the agent acts in", "environment", partial(starter.in_world, start))
    files = {}
    if asks:
        for key, words in (
            ("demonstrations", "File of dialogues to learn from (empty: none)"),
            ("preferences", "File of preferences, chosen against rejected (empty: none)"),
        ):
            if getattr(start, key) is None:
                files[key] = _ask(words, "", partial(_file, key))
    return replace(start, model=model, **files), _as_name(str(name))


def _file(key: str, answer: str) -> Path | None:
    """The file of an answer, if it is what was asked for. UsageError otherwise."""
    from stages.evaluation import starter

    if not answer:
        return None
    found: Path | None = getattr(starter.recognised([answer]), key)
    if found is None:
        raise UsageError(f"{answer} holds no {key}; give another file, or nothing.")
    return found


def _with_questions(start: Start, folder: Path) -> Start:
    """A database without questions gets a first file of them, which the person goes on with."""
    from stages.evaluation import starter

    if start.database is None or start.questions is not None:
        return start
    path = folder / f"{start.database.stem}-questions.jsonl"
    if path.exists():
        return replace(start, questions=path)
    count = starter.write_questions(start.database, path)
    show(f"wrote {path}: {count} questions as an example; put your own in, with their SQL.")
    return replace(start, questions=path)


def _write(path: Path, text: str) -> None:
    """The recipe, unless it is not valid after all; the old one, if any, is then still there."""
    from stages.recipe.load import load_recipe

    draft = path.with_name(f".{path.name}.draft.yaml")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        load_recipe(draft, [], None)
        draft.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); choose another.") from None
    except UsageError as error:
        raise UsageError(str(error).replace(str(draft), str(path))) from None
    finally:
        draft.unlink(missing_ok=True)


def _ask(question: str, default: str | None, take: Callable[[str], Any] = str) -> Any:
    """What ``take`` makes of the answer; asked again as long as it makes nothing of it."""
    while True:
        answer = typer.prompt(question, default=default, show_default=bool(default), err=True)
        try:
            return take(str(answer))
        except UsageError as error:
            warn(str(error))


def _own_name(output: Path | None) -> str | None:
    return None if output is None else _as_name(output.stem)


def _as_name(text: str) -> str:
    """A name that a recipe may have, as near to ``text`` as can be."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("._-") or "mine"
