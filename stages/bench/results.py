"""What was measured, as plain records, and the page that is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from stages.bench.measure import Spread

SCHEMA = 1


@dataclass(frozen=True)
class Bound:
    """What a figure is held against."""

    number: float
    at_least: bool = True
    """False: at most."""

    def holds(self, value: float) -> bool:
        """Whether a value keeps it."""
        return value >= self.number if self.at_least else value <= self.number

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.number:g}"


@dataclass(frozen=True)
class Result:
    """One line of a table."""

    what: str
    sides: Mapping[str, float]
    """Median of each side by its name; the project's own is ``aac``."""
    unit: str
    """Of ``sides``."""
    value: Spread | None = None
    """What is held against the bounds, with its spread."""
    must: Bound | None = None
    aim: Bound | None = None
    proof: Mapping[str, Any] = field(default_factory=dict)
    """What was found equal on both sides, or tells of the work."""


@dataclass(frozen=True)
class Section:
    """One part of the page."""

    title: str
    note: str
    """How it was measured, and how it was proved that both sides did the same."""
    value: str
    """What the results' value is: a ratio, an exponent."""
    results: Sequence[Result] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON-able; ``from_json`` is its inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Section:
        """Raises KeyError or TypeError for what is no section."""
        return cls(**{**content, "results": tuple(map(_result, content["results"]))})


def page(content: Mapping[str, Any]) -> str:
    """The measured content (``speed.json``) as Markdown."""
    sections = [_section(Section.from_json(given)) for given in content["sections"].values()]
    failed = [f"**{part}** was not measured: {why}" for part, why in content["failed"].items()]
    return "\n\n".join([_head(content), *sections, *failed]) + "\n"


def _result(row: Mapping[str, Any]) -> Result:
    bounds = {name: Bound(**row[name]) if row[name] else None for name in ("must", "aim")}
    value = Spread(**row["value"]) if row["value"] else None
    return Result(**{**row, **bounds, "value": value})


def _head(content: Mapping[str, Any]) -> str:
    machine, settings = content["machine"], content["settings"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    parts = ", ".join(f"{part} {taken:.0f}" for part, taken in content["part_seconds"].items())
    quick = "**A quick run: its figures mean nothing.** " if settings["quick"] else ""
    return (
        f"{quick}Measured by `{content['command']}` (commit {content['commit']}) on "
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, {versions}. Torch threads of each side: {settings['threads']}; "
        f"medians of interleaved repeats, of which there were {settings['repeats']}, with the least"
        f" and the most in brackets; {content['seconds'] / 60:.0f} minutes in all (seconds: "
        f"{parts}). ✓ and ✗: whether the median keeps what it is held against."
    )


def _section(section: Section) -> str:
    sides = list(dict.fromkeys(side for result in section.results for side in result.sides))
    held = [name for name in ("must", "aim") if any(getattr(r, name) for r in section.results)]
    rows = [["", *sides, section.value, *held]]
    rows.append(["---"] * len(rows[0]))
    for result in section.results:
        figures = [_figure(result.sides.get(side), result.unit) for side in sides]
        bounds = [_bound(getattr(result, name), result) for name in held]
        rows.append([result.what, *figures, _value(result.value), *bounds])
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return f"### {section.title}\n\n{section.note}\n\n{table}"


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}".strip()


def _value(value: Spread | None) -> str:
    if value is None:
        return "–"
    if value.least == value.most:
        return f"**{value.median:.2f}**"
    return f"**{value.median:.2f}** ({value.least:.2f}–{value.most:.2f})"


def _bound(bound: Bound | None, result: Result) -> str:
    if bound is None:
        return ""
    if result.value is None:
        return str(bound)
    return f"{bound} {'✓' if bound.holds(result.value.median) else '✗'}"
