"""The page: one file that fetches nothing and runs no script but its own two.

A policy in its head names the hashes of both scripts (the page's own, and the plotting library's)
and of the style; everything else is refused: other scripts, whatever their place, and every
request. Whatever a model or a world said is either escaped, or lies in JSON whose ``<`` is
spelled out, or in a packed block, and is put on the page as text only.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata, resources
from string import Template
from typing import Any

from stages.evaluation.report.audited import audit_panel, episodes_panel
from stages.evaluation.report.charts import first_charts, sections
from stages.evaluation.report.curves import chart_figures, key_of
from stages.evaluation.report.headline import Line
from stages.evaluation.report.made_from import made_from
from stages.evaluation.report.markup import Html, element, joined, text
from stages.evaluation.report.overview import overview
from stages.evaluation.report.runs import Run

SCRIPTS = ("tabs.js", "charts.js", "episodes.js", "audit.js")
Shown = dict[str, Any]


def html_page(
    runs: Sequence[Run],
    headlines: Sequence[Sequence[Line]],
    *,
    episodes: Sequence[Shown],
    pieces: Sequence[str],
    told: Sequence[Mapping[str, Any]],
) -> str:
    """The whole page.

    ``episodes``, ``pieces``: of ``episodes.Writer``. ``told``: of each run its ``sentence`` on what
    is shown, ``note`` on its rewards and ``no_view``, why the critic's view may be missing.
    """
    first = first_charts(runs)
    charts, curves = list(first), []
    for heading, made in sections(runs):
        curves.append(element("section", element("h2", heading), chart_figures(made, len(charts))))
        charts += made
    panels = {
        "Overview": overview(runs, headlines, chart_figures(first, 0, "charts large")),
        "Curves": joined([_key(runs), *curves]),
        "Episodes": episodes_panel(runs, episodes, [str(row["sentence"]) for row in told]),
        "Audit": audit_panel(runs, {str(row["id"]) for row in episodes}),
        "Recipe": made_from(runs),
    }
    data = {
        "runs": [{"label": r.label, **row} for r, row in zip(runs, told, strict=True)],
        "charts": charts,
        "verdicts": {
            f"{n}-audit-{name}": row
            for n, run in enumerate(runs)
            for name, row in run.verdicts.items()
        },
    }
    return _filled(
        _title(runs), _subtitle(runs), panels, data, {"episodes": episodes, "pieces": pieces}
    )


def _filled(
    title: str, subtitle: str, panels: Mapping[str, Html], data: Shown, episodes: Shown
) -> str:
    style, (library, mark) = _asset("page.css"), _library()
    script = "\n".join(_asset(name) for name in SCRIPTS)
    footer = f"Written by aac {metadata.version('aac')}; curves by plotly.js (MIT licence)."
    return Template(_asset("page.html")).substitute(
        policy=_policy([_mark(script), mark], _mark(style)),
        title=text(title),
        subtitle=text(subtitle),
        style=style,
        tabs=joined(_tab(name) for name in panels),
        panels=joined(_panel(name, content) for name, content in panels.items()),
        footer=text(footer),
        data=safe_json(data),
        episodes=packed(safe_json(episodes)),
        plotly=library,
        script=script,
    )


def safe_json(content: Any) -> str:
    """JSON that ends no script element and opens no comment, whatever its strings say."""
    spelled = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=str)
    for sign in "<>&\u2028\u2029":
        spelled = spelled.replace(sign, f"\\u{ord(sign):04x}")
    return spelled.encode("utf-8", "replace").decode("utf-8")


def packed(content: str) -> str:
    """gzip as base64; equal for equal content."""
    return base64.b64encode(gzip.compress(content.encode("utf-8"), mtime=0)).decode("ascii")


def _policy(scripts: Sequence[str], style: str) -> str:
    rules = ("default-src 'none'", f"script-src {' '.join(scripts)}", f"style-src {style}")
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def _mark(content: str) -> str:
    digest = hashlib.sha256(content.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text("utf-8")


@cache
def _library() -> tuple[str, str]:
    """The plotting library, packed, and the mark of its code."""
    from plotly.offline import get_plotlyjs

    code = str(get_plotlyjs())
    return packed(code), _mark(code)


def _tab(name: str) -> Html:
    key = name.lower().replace(" ", "-")
    return element(
        "button",
        name,
        type="button",
        role="tab",
        id=f"tab-{key}",
        aria_controls=f"panel-{key}",
        aria_selected="false",
    )


def _panel(name: str, content: Html) -> Html:
    key = name.lower().replace(" ", "-")
    return element(
        "div",
        content,
        role="tabpanel",
        id=f"panel-{key}",
        aria_labelledby=f"tab-{key}",
        tabindex=0,
    )


def _key(runs: Sequence[Run]) -> Html:
    """Which colour is which run's."""
    if len(runs) < 2:
        return Html("")
    items = [element("li", key_of(number), " ", run.label) for number, run in enumerate(runs)]
    return element("ul", *items, class_="key")


def _title(runs: Sequence[Run]) -> str:
    return runs[0].name if len(runs) == 1 else f"{len(runs)} runs side by side"


def _subtitle(runs: Sequence[Run]) -> str:
    if len(runs) > 1:
        return ", ".join(run.label for run in runs)
    (run,) = runs
    names = {"rl": "RL", "sft": "Supervised fine-tuning", "reward": "Reward model"}
    parts = [names[run.stage], f"{len(run.rows):,} {run.unit}s" if run.stage == "rl" else ""]
    if count := run.summary.get("training_episodes"):
        parts.append(f"{count:,} episodes")
    if seconds := run.summary.get("seconds"):
        parts.append(_duration(float(seconds)))
    return " · ".join([*filter(None, parts), str(run.path)])


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
