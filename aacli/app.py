"""The ``aac`` application: one module per command, none of which imports torch at the top."""

from __future__ import annotations

from importlib import metadata
from types import ModuleType
from typing import Annotated

import typer

from aacli import (
    audit,
    chat,
    collect,
    compare,
    data,
    diff,
    doctor,
    env,
    evaluate,
    export,
    init,
    plan,
    recipes,
    report,
    rl,
    run,
    serve,
    sft,
    train_reward,
)

HELP = (
    "Train multi-turn LLM agents with an asymmetric actor and critic.\n\n"
    "Three stages hand over folders on disk: sft, train-reward and rl; run does all of them. "
    "A recipe (YAML) says what is done; aac init writes a first one.\n\n"
    "aac --install-completion teaches your shell to complete commands, options and recipes (Tab)."
)

app = typer.Typer(
    name="aac",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: aac run recipes/quickstart.yaml",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(metadata.version("aac"))
        raise typer.Exit


@app.callback(help=HELP)
def aac(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """What stands before every command."""


PANELS = {
    "Start here": (init, recipes, doctor),
    "Train": (run, sft, train_reward, rl),
    "Measure and read": (evaluate, report, audit, compare, diff),
    "Talk, serve": (chat, serve, export),
    "Data, worlds, memory": (collect, data, env, plan),
}
"""The commands as the help groups them."""


def _register(panel: str, module: ModuleType) -> None:
    """Add a module's command or group of commands, under a heading."""
    commands, groups = len(app.registered_commands), len(app.registered_groups)
    module.register(app)
    for command in app.registered_commands[commands:]:
        command.rich_help_panel = panel
    for group in app.registered_groups[groups:]:
        group.rich_help_panel = panel


for heading, modules in PANELS.items():
    for command_module in modules:
        _register(heading, command_module)


def main() -> None:
    """Entry point of the console script."""
    app()
