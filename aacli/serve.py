"""``aac serve``: a trained agent behind an OpenAI-compatible endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aacli.command import command, emit
from aacli.supervision import SupervisedBasics

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished sft or rl run.")]
Host = Annotated[
    str,
    typer.Option(
        help="Address to listen on; others than this machine's reach it only if you say so."
    ),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "serve", example="aac serve runs/quickstart/rl --port 8000")(serve)


def serve(run: Run, options: SupervisedBasics, host: Host = "127.0.0.1", port: Port = 8000) -> None:
    """Serve an agent at /v1/chat/completions, with the state processor and tool parser it was
    trained with."""
    from stages.evaluation.serve import serve_command

    result = serve_command(run, host=host, port=port, supervise=options.supervise_by())
    if options.json:
        emit(result)
