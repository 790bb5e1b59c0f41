"""The checklist as the actor sees it (F4): goals, and what is already solved."""

from __future__ import annotations

from collections.abc import Sequence

from stages.interaction.trajectory import ChecklistItem


def render_checklist(items: Sequence[ChecklistItem]) -> str:
    """One line, ``[x] tables [ ] result``; empty when there is nothing to list."""
    return " ".join(f"[{'x' if done else ' '}] {name}" for name, done in items)
