"""The ``aac`` application: one module per command, none of which imports torch at the top."""

from __future__ import annotations

from importlib import metadata
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
    plan,
    recipes,
    report,
    rl,
    run,
    serve,
    sft,
    train_reward,
)

app = typer.Typer(
    name="aac",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: aac run recipes/quickstart.yaml",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(metadata.version("aac"))
        raise typer.Exit


@app.callback()
def aac(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Train multi-turn LLM agents with an asymmetric actor and critic.

    Three stages hand over folders on disk: sft, train-reward, rl; run does all of them.
    """


for module in (
    run, sft, train_reward, rl, evaluate, report, audit, compare, diff, collect, chat, serve,
    export, plan, data, env, recipes, doctor,
):  # fmt: skip
    module.register(app)


def main() -> None:
    """Entry point of the console script."""
    app()
