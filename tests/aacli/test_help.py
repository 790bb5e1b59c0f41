"""Help is quick, complete, and its examples are commands that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from aacli.app import app

Words = tuple[str, ...]


def commands(node: Any = None, path: Words = ()) -> Iterator[tuple[Words, Any]]:
    """Every command and group, by the words a person types."""
    node = node or typer.main.get_command(app)
    yield path, node
    for name, child in getattr(node, "commands", {}).items():
        yield from commands(child, (*path, name))


ALL = dict(commands())


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_ends_with_an_example_that_parses(path: Words):
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    found = re.search(r"Example: (aac .*)", result.output, re.DOTALL)
    assert found, result.output
    example = shlex.split(found.group(1))[1:]
    assert tuple(example[: len(path)]) == path
    name = tuple(w for w in example[:2] if not w.startswith("-"))
    leaf = next(p for p in (name, name[:1]) if p in ALL and not hasattr(ALL[p], "commands"))
    context = ALL[leaf].make_context("aac", example[len(leaf) :])
    assert context.params


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_option_and_command_says_what_it_is(path: Words):
    assert ALL[path].help
    for parameter in ALL[path].params:
        assert getattr(parameter, "help", None), parameter.name


def test_the_commands_of_the_design_are_there():
    expected = ["init", "doctor", "run", "sft", "train-reward", "rl", "eval"]
    assert [path[0] for path in ALL if len(path) == 1] == [
        *expected, "report", "audit", "compare", "diff", "chat", "serve", "export", "collect",
        "plan", "recipes", "data", "env",
    ]  # fmt: skip


def test_stage_commands_have_the_common_options():
    common = {"--set", "--output-dir", "--seed", "--resume", "--overwrite", "--dry-run", "--quiet"}
    for name in ("sft", "train-reward", "rl", "run"):
        options = {o for parameter in ALL[(name,)].params for o in parameter.opts}
        assert common | {"--json", "--debug"} <= options


def test_version_is_the_installed_packages():
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, metadata.version("aac") + "\n")


def test_no_arguments_show_the_help():
    result = CliRunner().invoke(app, [])
    assert "Usage: aac" in result.output


@pytest.mark.parametrize("arguments", [["--help"], ["rl", "--help"], ["recipes", "list"]])
def test_the_real_command_loads_no_torch(arguments):
    code = (
        "import sys, atexit; heavy = ('torch', 'transformers', 'trl', 'datasets', 'deepspeed')\n"
        "atexit.register(lambda: print('HEAVY', [m for m in heavy if m in sys.modules]))\n"
        f"sys.argv = ['aac', *{arguments!r}]\n"
        "from aacli.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("HEAVY []")


def complete(*words: str) -> list[str]:
    """What Tab offers in bash after these words, the last of which is begun."""
    environment = {
        "_AAC_COMPLETE": "complete_bash",
        "COMP_WORDS": shlex.join(["aac", *words]),
        "COMP_CWORD": str(len(words)),
    }
    result = CliRunner().invoke(app, [], env=environment, prog_name="aac")
    assert result.exit_code == 0, result.output
    return result.stdout.split()


def test_tab_completes_commands_options_and_recipes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    for name in ("mine.yaml", "recipes/one.yaml", "recipes/two.yml", "recipes/notes.txt"):
        (tmp_path / name).write_text("")
    assert complete("tr") == ["train-reward"]
    assert complete("recipes", "va") == ["validate"]
    assert complete("sft", "--over") == ["--overwrite"]
    assert complete("sft", "mi") == ["mine.yaml"]
    assert complete("rl", "rec") == ["recipes/"]
    assert complete("chat", "recipes/") == ["recipes/one.yaml", "recipes/two.yml"]
    assert complete("run", "nowhere/x") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_shown_and_installed(shell, tmp_path, monkeypatch):
    for name in ("HOME", "USERPROFILE", "ZDOTDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: (shell, shell))
    shown = CliRunner().invoke(app, ["--show-completion"], prog_name="aac")
    assert shown.exit_code == 0 and "_AAC_COMPLETE" in shown.stdout
    made = CliRunner().invoke(app, ["--install-completion"], prog_name="aac")
    assert made.exit_code == 0, made.output
    assert f"{shell} completion installed" in made.output
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert any("_AAC_COMPLETE" in p.read_text() for p in files)
    assert "--install-completion" in CliRunner().invoke(app, ["--help"]).output


def test_a_paragraph_of_help_is_not_broken_in_the_middle():
    text = CliRunner().invoke(app, ["chat", "--help"], terminal_width=200).output
    assert "Ctrl-C leaves. Where the environment has a user" in " ".join(text.split())
    shown = [line.strip() for line in text.splitlines()]
    assert not any(line == "Where the" for line in shown)
