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
    """One line of the page."""

    part: str
    what: str
    unit: str
    """Of ``sides``."""
    sides: Mapping[str, float]
    """Median of each side; the project's own is ``aac``."""
    value: Spread | None = None
    """A ratio with its spread; above 1 is better where the aim is at least."""
    must: Bound | None = None
    aim: Bound | None = None
    proof: Mapping[str, Any] = field(default_factory=dict)
    """What was found equal on both sides, or tells of the work."""

    def to_json(self) -> dict[str, Any]:
        """JSON-able; ``from_json`` is its inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Result:
        """Raises KeyError or TypeError on foreign rows."""
        spread, bounds = row["value"], {name: row[name] for name in ("must", "aim")}
        made = {name: Bound(**given) if given else None for name, given in bounds.items()}
        return cls(**{**row, **made, "value": Spread(**spread) if spread else None})


def page(content: Mapping[str, Any]) -> str:
    """The measured content (``speed.json``) as Markdown."""
    results = [Result.from_json(row) for row in content["results"]]
    parts = list(dict.fromkeys(result.part for result in results))
    tables = [_table(part, [r for r in results if r.part == part]) for part in parts]
    return "\n\n".join([_head(content), *tables]) + "\n"


def _head(content: Mapping[str, Any]) -> str:
    machine, settings = content["machine"], content["settings"]
    clock = "seconds of the clock" if settings["clock"] == "wall" else "processor seconds"
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return (
        f"Measured by `{settings['command']}` on {machine['processor']} ({machine['cores']} cores, "
        f"{settings['threads']} threads, {machine['memory_gib']} GiB), Linux, {versions}; "
        f"{clock}, medians of {settings['repeats']} interleaved repeats, in brackets the least and "
        f"the most; {content['seconds'] / 60:.0f} minutes in all."
    )


def _table(part: str, results: Sequence[Result]) -> str:
    sides = list(dict.fromkeys(side for result in results for side in result.sides))
    valued = any(result.value for result in results)
    held = [name for name in ("must", "aim") if any(getattr(r, name) for r in results)]
    head = [part, *sides, *(["ratio"] if valued else []), *held]
    rows = [head, ["---"] * len(head)]
    for result in results:
        figures = [_figure(result.sides.get(side), result.unit) for side in sides]
        ratio = [_ratio(result.value)] if valued else []
        bounds = [_bound(getattr(result, name), result) for name in held]
        rows.append([result.what, *figures, *ratio, *bounds])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}".strip()


def _ratio(value: Spread | None) -> str:
    if value is None:
        return "–"
    return f"**{value.median:.2f}** ({value.least:.2f}–{value.most:.2f})"


def _bound(bound: Bound | None, result: Result) -> str:
    if bound is None:
        return ""
    if result.value is None:
        return str(bound)
    return f"{bound} {'✓' if bound.holds(result.value.median) else '✗'}"
