"""The page says what the records say, and records survive the file."""

import json

import pytest

from stages.bench.measure import Spread
from stages.bench.results import Bound, Result, Section, page

SECTION = Section(
    "Speed",
    "How it was measured.",
    "ratio",
    (
        Result("small", {"aac": 1.25, "TRL": 4.0}, "s", Spread(3.2, 3, 3.5), Bound(2), Bound(3.5)),
        Result("large", {"aac": 123.4}, "s", Spread(1.1, 1.1, 1.1), aim=Bound(1.2, False)),
        Result("bare", {"TRL": 12.34}, "s"),
    ),
)
CONTENT = {
    "command": "python -m stages.bench",
    "commit": "abc",
    "machine": {
        "processor": "Some CPU",
        "cores": 2,
        "memory_gib": 8,
        "system": "Linux",
        "versions": {"torch": "2.13"},
    },
    "settings": {"repeats": 3, "threads": 2, "quick": False},
    "sections": {"speed": SECTION.to_json()},
    "failed": {"other": "it did not start."},
    "seconds": 600,
    "part_seconds": {"speed": 540.2, "other": 59.9},
}


def cells(text):
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]


def test_a_section_is_the_same_after_json():
    assert Section.from_json(json.loads(json.dumps(SECTION.to_json()))) == SECTION


@pytest.mark.parametrize(
    ("bound", "value", "kept"),
    [
        (Bound(2), 2.0, True),
        (Bound(2), 1.99, False),
        (Bound(1.2, at_least=False), 1.2, True),
        (Bound(1.2, at_least=False), 1.21, False),
    ],
)
def test_bounds(bound, value, kept):
    assert bound.holds(value) is kept


def test_the_page_has_figures_ratios_and_verdicts():
    text = page(CONTENT)
    head, _, small, large, bare = cells(text)
    assert head == ["", "aac", "TRL", "ratio", "must", "aim"]
    assert small == ["small", "1.25 s", "4.00 s", "**3.20** (3.00–3.50)", "≥ 2 ✓", "≥ 3.5 ✗"]
    assert large == ["large", "123 s", "–", "**1.10**", "", "≤ 1.2 ✓"]
    assert bare == ["bare", "–", "12.3 s", "–", "", ""]
    for words in ("Some CPU", "torch 2.13", "commit abc", "How it was measured."):
        assert words in text
    assert "10 minutes in all (seconds: speed 540, other 60)" in text
    assert "**other** was not measured: it did not start." in text
    assert "mean nothing" not in text
    quick = CONTENT | {"settings": CONTENT["settings"] | {"quick": True}}
    assert "mean nothing" in page(quick)
