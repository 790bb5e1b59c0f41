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
        metavar="RUN",
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

    The page is one file that asks nothing of the network: open it in any browser, send it to
    anyone. An unfinished run can be reported on, too; run it again for more.

    Overview: success before and after with 95 % intervals, the curves that tell most, alarms.

    Curves: reward and its components, KL, entropy, clip fraction, explained variance, lengths, time
    per phase; alarms are marked on the curves they speak of.

    Episodes: conversations turn by turn, with rewards, the critic's value and review, the
    advantage. The actor's exact prompt, the critic's view and the tokens that were trained on are
    one click away.

    Audit: the best paid and the most suspicious episodes of each evaluation, and what was said of
    them with aac audit.

    Recipe: every setting, versions, parents; of several runs what differs.

    How to read it: does held-out success rise with the reward? If only the reward does, the actor
    farms it: look at the components and read the audit. Does KL stay low? Is explained variance
    above 0? Then the critic helps.
    """
    from stages.evaluation.report.command import report_command
    from stages.rl.run import critic_views

    result = report_command(runs, views=critic_views, output=output, png=png, episodes=episodes)
    if options.json:
        emit(result)
