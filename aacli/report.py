"""``aac report``: what runs were like, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aacli.command import command, emit
from aacli.options import Basics

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        help="Folders of aac run, aac rl, aac sft or aac train-reward; several lie side by side.",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Where the page goes.",
        show_default="report.html, of several runs side-by-side.html, in the first RUN",
    ),
]
Png = Annotated[
    bool, typer.Option("--png", help="Write the curves as PNG files, too, beside the page.")
]
Episodes = Annotated[
    int, typer.Option(min=0, help="Episodes of each run that the page holds whole.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "report", example="aac report runs/quickstart runs/other/rl --png")(report)


def report(
    runs: Runs,
    options: Basics,
    output: Output = None,
    png: Png = False,
    episodes: Episodes = 32,
) -> None:
    """Write one HTML page of a run, or of several side by side, and show their figures here.

    The page is one file that asks nothing of the network, to open in any browser and to send to
    others. Overview: success before and after with 95 % intervals, the curves that tell most,
    alarms. Curves: reward and its components, KL, entropy, clip fraction, explained variance,
    lengths, time per phase, with the alarms marked. Episodes: a conversation turn by turn, with
    what each turn was paid, the critic's value and review, the advantage; the actor's exact prompt,
    the critic's view and the tokens that were trained on are one click away. Audit: the best paid
    and the most suspicious episodes. Made from: recipe, versions, parents.

    Read it in this order: does held-out success rise with the reward (if only the reward does, the
    actor farms it: look at the components); does KL stay low; is explained variance above 0; then
    read the audited episodes. An unfinished run can be reported on, too: run it again for more.
    """
    from stages.evaluation.report.command import report_command
    from stages.rl.run import critic_views

    result = report_command(runs, views=critic_views, output=output, png=png, episodes=episodes)
    if options.json:
        emit(result)
