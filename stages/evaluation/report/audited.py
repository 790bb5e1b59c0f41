"""The tabs of episodes: what to read whole, and the audit's list that leads there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stages.evaluation.report.markup import Html, element, joined, options, void
from stages.evaluation.report.runs import Run
from stages.evaluation.tables import DASH

MOST = 200
"""Rows of the audit list for each run."""


def episodes_panel(runs: Sequence[Run], episodes: Sequence[Any], sentences: Sequence[str]) -> Html:
    """Filters, a list, and a place to read; the page's script fills them."""
    several = len(runs) > 1
    told = [
        element("p", f"{run.label}: {sentence}" if several else sentence, class_="soft")
        for run, sentence in zip(runs, sentences, strict=True)
    ]
    if not episodes:
        return joined(told)
    names = {"": "all"} | {str(number): run.label for number, run in enumerate(runs)}
    sources = {
        "": "all",
        "audit": "evaluations, kept for audit",
        "last": "training, last iteration",
        "first": "training, first iteration",
    }
    outcomes = {"": "all", "true": "success", "false": "no success"}
    filters = [
        _choice("episode-run", "run", names) if several else "",
        _choice("episode-source", "from", sources),
        _choice("episode-outcome", "outcome", outcomes),
        _search("episode-text", "goal or words"),
        element("output", id="episode-count", aria_live="polite"),
    ]
    listed = element("ul", id="episode-list", class_="list", aria_label="Episodes")
    reader = element("div", id="reader", class_="reader")
    reading = element("div", listed, reader, class_="reading")
    return joined([*told, element("div", *filters, class_="filters"), reading])


def audit_panel(runs: Sequence[Run], shown: set[str]) -> Html:
    """The episodes that a person should read, and why; ``shown``: ids that are on the page."""
    rows = [
        _row(run, number, pick, shown, len(runs) > 1)
        for number, run in enumerate(runs)
        for pick in run.picks[:MOST]
    ]
    if not rows:
        return element("p", "No episode was kept for audit: none was evaluated.", class_="lead")
    words = (
        "The best paid and the most suspicious episodes of each held-out evaluation, newest first. "
        "A verdict is given with "
    )
    command = element("code", "aac audit " + " ".join(str(run.path) for run in runs[:1]))
    left = sum(max(len(run.picks) - MOST, 0) for run in runs)
    more = f" {left:,} older ones are left out." if left else ""
    verdicts = {"": "all", "none": "none yet", "good": "good", "bad": "bad"}
    filters = [
        _choice("audit-verdict", "verdict", verdicts),
        _search("audit-text", "goal or reason"),
        element("output", id="audit-count", aria_live="polite"),
    ]
    own = ["run"] if len(runs) > 1 else []
    heads = ["iteration", *own, "goal", "why", "reward", "outcome", "verdict"]
    head = element("thead", element("tr", *(element("th", h, scope="col") for h in heads)))
    whole = element("table", head, element("tbody", *rows, id="audit-rows"), class_="audit stack")
    return joined(
        [
            element("p", words, command, ".", more, class_="soft"),
            element("div", *filters, class_="filters"),
            element("div", whole, class_="scroll"),
        ]
    )


def _row(run: Run, number: int, pick: Any, shown: set[str], several: bool) -> Html:
    verdict = run.verdicts.get(pick["id"], {})
    said = verdict.get("verdict", "none")
    name = f"{number}-audit-{pick['id']}"
    goal = pick["goal"] or "(no goal)"
    link = element("button", goal, type="button", class_="link", data_episode=name)
    own = [element("td", run.label, data_name="run")] if several else []
    end = "success" if pick["success"] else "no success"
    return element(
        "tr",
        element("td", pick["step"], class_="number", data_name="iteration"),
        *own,
        element("td", link if name in shown else goal),
        element("td", element("ul", *(element("li", why) for why in pick["reasons"]))),
        element("td", f"{pick['return']:.2f}", class_="number", data_name="reward"),
        element("td", end, class_="end good" if pick["success"] else "end"),
        element(
            "td",
            said if verdict else DASH,
            class_={"bad": "alarm", "good": "good"}.get(said),
            data_name="verdict",
        ),
        data_verdict=said,
    )


def _choice(name: str, words: str, chosen: dict[str, str]) -> Html:
    return _field(name, words, element("select", options(chosen), id=name))


def _search(name: str, words: str) -> Html:
    return _field(name, words, void("input", type="search", id=name, autocomplete="off", size=18))


def _field(name: str, words: str, control: Html) -> Html:
    return element("div", element("label", words, for_=name), control)
