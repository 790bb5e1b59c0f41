"""A generated company: its reports as documents, and questions that need several of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

REGIONS = (
    "north", "south", "east", "west", "central", "coast", "harbor", "village", "island", "valley",
    "forest", "river", "lake", "border", "capital", "desert", "delta", "summit",
)  # fmt: skip
MANAGERS = ("Ada", "Hugo", "Nina", "Oscar", "Ruth", "Simon", "Tara", "Victor", "Wanda", "Yusuf")
QUARTERS = (1, 2, 3, 4)
_FILLERS = (
    "The weather was mild.", "Two machines were repaired.", "The office was painted.",
    "A new phone was ordered.", "The staff took part in a course.", "No visitor complained.",
)  # fmt: skip


@dataclass(frozen=True)
class Company:
    """Sales and costs by region and quarter, and who manages which region."""

    sales: dict[str, list[int]]
    costs: dict[str, list[int]]
    managers: dict[str, str]

    @classmethod
    def of(cls, seed: int, regions: int) -> Company:
        """The company of a seed."""
        rng = random.Random(f"company/{seed}")
        names = rng.sample(REGIONS, regions)
        figures = [rng.sample(range(11, 99), regions * len(QUARTERS)) for _ in "sc"]
        sales, costs = ({r: row[4 * i : 4 * i + 4] for i, r in enumerate(names)} for row in figures)
        return cls(sales, costs, dict(zip(names, rng.sample(MANAGERS, regions), strict=True)))

    def documents(self, seed: int) -> dict[str, str]:
        """Name to text: one report a region and quarter, one memo a manager."""
        rng = random.Random(f"documents/{seed}")
        pages = {
            report_name(region, quarter): (
                f"Report of the {region} region, quarter {quarter}. {rng.choice(_FILLERS)} "
                f"Costs were {self.costs[region][quarter - 1]}. "
                f"Sales were {self.sales[region][quarter - 1]}. {rng.choice(_FILLERS)}"
            )
            for region in self.sales
            for quarter in QUARTERS
        }
        memos = {
            f"memo_{manager}": f"Memo: {manager} manages the {region} region. "
            f"{rng.choice(_FILLERS)}"
            for region, manager in self.managers.items()
        }
        return pages | memos


def report_name(region: str, quarter: int) -> str:
    """Name of the document about a region and quarter."""
    return f"{region}_{quarter}"


def pose(kind: str, company: Company, rng: random.Random) -> dict[str, Any]:
    """A question: its text, answer, the documents needed, and what it is about (for the expert)."""
    region, quarter = rng.choice(sorted(company.sales)), rng.choice(QUARTERS)
    sales = company.sales
    if kind == "total":
        needed = [report_name(region, q) for q in QUARTERS]
        text = f"What are the total sales of the {region} region over all four quarters?"
        return _posed(text, sum(sales[region]), needed)
    if kind == "change":
        first, last = sorted(rng.sample(QUARTERS, 2))
        needed = [report_name(region, q) for q in (first, last)]
        text = (
            f"By how much did the sales of the {region} region change from quarter {first} to "
            f"quarter {last}?"
        )
        return _posed(text, sales[region][last - 1] - sales[region][first - 1], needed)
    if kind == "highest":
        best = max(sales, key=lambda name: sales[name][quarter - 1])
        names = ", ".join(sales)
        text = f"Which of the regions {names} had the highest sales in quarter {quarter}?"
        return _posed(text, best, [report_name(name, quarter) for name in sales])
    manager = company.managers[region]
    text = f"What were the sales in quarter {quarter} of the region that {manager} manages?"
    needed = [f"memo_{manager}", report_name(region, quarter)]
    return _posed(text, sales[region][quarter - 1], needed)


def _posed(text: str, answer: int | str, needed: list[str]) -> dict[str, Any]:
    return {"text": text, "answer": answer, "needed": needed}
