"""What has been achieved in one question: sub-goals, useful steps, progress.

Every useful step counts once, so no reward here can be farmed by repeating it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stages.interaction.environments.sql import judge
from stages.interaction.environments.sql.database import Cell, Result, cell_text, cells

RESULT = "see the right result"


@dataclass
class Progress:
    """Bookkeeping of the current question; ``gold`` never leaves it but through ``facts``."""

    gold_sql: str
    gold: tuple[Cell, ...]
    needed: frozenset[str]
    done: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    useful: bool = False
    has_result: bool = False
    """A query of this question returned rows: a visible fact, unlike ``result_seen``."""

    @property
    def sub_goals(self) -> list[str]:
        """All sub-goals in words."""
        tables = sorted(self.needed)
        query = [f"query {', '.join(tables)}"] if tables else []
        return [*(f"describe {t}" for t in tables), *query, RESULT]

    @property
    def facts(self) -> dict[str, Any]:
        """Privileged facts as of now, for the critic."""
        return {
            "gold_sql": self.gold_sql,
            "gold_answer": ", ".join(cell_text(c) for c in self.gold),
            "remaining_sub_goals": [g for g in self.sub_goals if g not in self.done],
            "result_seen": RESULT in self.done,
        }

    def listed(self) -> dict[str, float]:
        """``list_tables`` was called."""
        return {"right_tool": 1.0} if self._first("list") else {}

    def described(self, table: str) -> dict[str, float]:
        """A table was described."""
        if table not in self.needed or not self._first(f"describe {table}"):
            return {}
        return {"right_tool": 1.0, "right_arguments": 1.0, "sub_goal": self._share(1)}

    def queried(self, result: Result) -> dict[str, float]:
        """A query came back without an error."""
        if not result.rows:
            return {}
        self.has_result = True
        rewards: dict[str, float] = {}
        if not self.useful:
            self.useful = True
            rewards["useful_result"] = 1.0
        gained = self._touched(result.tables)
        if gained:
            rewards["right_tool"] = 1.0
        if self._is_right(result.rows) and self._first(RESULT):
            rewards["right_arguments"] = 1.0
            gained += 1
        return rewards | ({"sub_goal": self._share(gained)} if gained else {})

    def answered(self, value: Any) -> dict[str, float]:
        """The final answer was given."""
        right = judge.same(value, self.gold)
        first = {"right_tool": 1.0} if self._first("answer") else {}
        return {"success": float(right), **first}

    def _touched(self, tables: frozenset[str]) -> int:
        self.touched |= tables & self.needed
        if not self.needed or not self.touched >= self.needed:
            return 0
        return int(self._first(f"query {', '.join(sorted(self.needed))}"))

    def _is_right(self, rows: Sequence[Sequence[Cell]]) -> bool:
        values = cells(rows)
        if judge.same(list(values), self.gold):
            return True
        return len(rows) == 1 and len(self.gold) == 1 and judge.same_value(values[0], self.gold[0])

    def _share(self, gained: int) -> float:
        return gained / len(self.sub_goals)

    def _first(self, step: str) -> bool:
        if step in self.done:
            return False
        self.done.add(step)
        return True


def add(total: dict[str, float], more: Mapping[str, float]) -> None:
    """Add reward components of one call to those of the turn, each capped at 1."""
    for name, value in more.items():
        total[name] = min(1.0, total.get(name, 0.0) + value)
