"""The last tab: recipes, versions and parents, as the manifests tell them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from stages.evaluation.report.charts import all_figures
from stages.evaluation.report.markup import Html, element, joined, table
from stages.evaluation.report.runs import Run
from stages.evaluation.tables import DASH

MARK = 12
"""Characters of a hash that are shown."""


def made_from(runs: Sequence[Run]) -> Html:
    """What differs between the runs first, then each run."""
    return joined([_differences(runs), *(_run(run, len(runs) > 1) for run in runs)])


def flat(recipe: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting of a recipe by its dotted path."""
    for name, value in recipe.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def _differences(runs: Sequence[Run]) -> Html:
    if len(runs) < 2:
        return Html("")
    known = [run for run in runs if run.recipe]
    settings = [dict(flat(run.recipe)) for run in known]
    names = dict.fromkeys(name for own in settings for name in own)
    rows = [
        [element("code", name), *(_value(own.get(name, DASH)) for own in settings)]
        for name in names
        if len({_value(own.get(name, DASH)) for own in settings}) > 1
    ]
    differ = table(["setting", *(run.label for run in known)], rows, numbers=False)
    unknown = ", ".join(run.label for run in runs if not run.recipe)
    return joined(
        [
            element("h2", "Settings that differ"),
            differ or element("p", "None: the recipes are the same."),
            element("p", f"Not known yet: the recipe of {unknown}.") if unknown else "",
        ]
    )


def _run(run: Run, several: bool) -> Html:
    parts = [element("h2", f"Run: {run.label}" if several else "Run"), _origin(run)]
    if run.recipe:
        settings = yaml.safe_dump(_plain(run.recipe), sort_keys=False, allow_unicode=True)
        whole = element("pre", settings)
        if not run.manifest:
            note = "The run is not finished; this is the recipe of the stage before it."
            whole = joined([element("p", note, class_="soft"), whole])
        words = "every setting, spelled out"
        parts.append(element("h3", f"Recipe {run.recipe.get('name', '')}"))
        parts.append(element("details", element("summary", words), whole, open=not several))
    rows = [
        [row["name"], *(f"{row[end]:.4g}" for end in ("first", "last", "low", "high"))]
        for row in all_figures(run)
    ]
    figures = table(["figure", "first", "last", "lowest", "highest"], rows)
    parts.append(element("h3", "All figures of metrics.jsonl"))
    parts.append(element("details", element("summary", f"{len(rows)} figures"), figures))
    return joined(parts)


def _origin(run: Run) -> Html:
    made = run.manifest
    rows: list[list[Any]] = [["folder", element("span", str(run.path), class_="path")]]
    rows.append(["stage", run.stage])
    if made:
        rows.append(["seed", made.get("seed", DASH)])
        rows.append(["base model", made.get("base_model") or DASH])
        rows += [["weights and tokenizer", _hash(made.get("content_hash", ""))]]
        rows += [[f"parent: {name}", _parent(row)] for name, row in made.get("parents", {}).items()]
        rows += [[f"data: {name}", _hash(str(mark))] for name, mark in made.get("data", {}).items()]
        versions = ", ".join(
            f"{name} {number}" for name, number in made.get("versions", {}).items()
        )
        rows.append(["versions", versions])
    if run.summary.get("seconds") is not None:
        rows.append(["seconds", f"{run.summary['seconds']:,}"])
    return table(None, rows, numbers=False, class_="origin")


def _parent(row: Mapping[str, Any]) -> Html:
    changed = row.get("changed")
    told = [" ", element("span", f"changed since: {changed}", class_="alarm")] if changed else []
    return joined([row.get("path", ""), " ", _hash(str(row.get("hash", ""))), *told])


def _hash(mark: str) -> Html:
    return element("code", mark[:MARK], class_="hash", title=mark)


def _value(value: Any) -> str:
    return (
        value
        if isinstance(value, str)
        else yaml.safe_dump(value, default_flow_style=True).split("\n")[0]
    )


def _plain(content: Any) -> Any:
    """Only what YAML knows."""
    if isinstance(content, Mapping):
        return {str(name): _plain(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    return content
