"""HTML by the piece: whatever comes in as text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


class Html(str):
    """Text that is HTML already."""


def text(content: Any) -> Html:
    """Any text as HTML: nothing in it is markup, and it can be encoded."""
    if isinstance(content, Html):
        return content
    encodable = str(content).encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")
    return Html(escape(encodable))


def element(name: str, *content: Any, **attributes: Any) -> Html:
    """``element("p", "words", class_="soft")``; None and False leave an attribute out, True has no
    value, ``data_name`` is ``data-name``."""
    given = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        spelled = key.rstrip("_").replace("_", "-")
        given.append(f" {spelled}" if value is True else f' {spelled}="{text(value)}"')
    return Html(f"<{name}{''.join(given)}>{joined(content)}</{name}>")


def joined(parts: Iterable[Any]) -> Html:
    """One after the other."""
    return Html("".join(text(part) for part in parts))


def table(
    headings: Sequence[Any] | None,
    rows: Iterable[Sequence[Any]],
    *,
    numbers: bool = True,
    **attributes: Any,
) -> Html:
    """Names at the left, and with ``numbers`` all other columns at the right; "" of no rows.

    ``headings`` None: the names say it all.
    """
    body = [_row(row, headings or [None] * len(row), numbers) for row in rows]
    if not body:
        return Html("")
    kind = "number" if numbers else None
    parts = [element("tbody", *body)]
    if headings is not None:
        first, *others = headings
        cells = [element("th", heading, scope="col", class_=kind) for heading in others]
        head = element("tr", element("th", first, scope="col"), *cells)
        parts.insert(0, element("thead", head))
    return element("div", element("table", *parts, **attributes), class_="scroll")


def _row(row: Sequence[Any], headings: Sequence[Any], numbers: bool) -> Html:
    kind = "number" if numbers else None
    cells = [
        element("td", cell, class_=kind, data_name=heading)
        for cell, heading in zip(row[1:], headings[1:], strict=True)
    ]
    return element("tr", element("th", row[0], scope="row"), *cells)


def options(chosen: Mapping[str, str]) -> Html:
    """Of a ``select``: value -> words."""
    return joined(element("option", words, value=value) for value, words in chosen.items())


def void(name: str, **attributes: Any) -> Html:
    """An element without content, of HTML or SVG."""
    return Html(element(name, **attributes).removesuffix(f"></{name}>") + "/>")
