"""The ``report`` environment: search and read a folder, then answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stages.interaction.environments.base import Reset, Task
from stages.interaction.environments.calls import tool
from stages.interaction.environments.report.company import Company
from stages.interaction.environments.report.expert import Reader, Walkthrough
from stages.interaction.environments.report.library import Library, read_folder
from stages.interaction.environments.report.options import ReportOptions
from stages.interaction.environments.report.tasks import generate, own_tasks
from stages.interaction.environments.sql import judge
from stages.interaction.environments.tool_world import Said, ToolWorld, refused
from stages.interaction.trajectory import ChecklistItem, Message, ToolCall

TOOLS = (
    tool(
        "search",
        "Search the text of all documents.",
        query={"type": "string", "description": "Words to look for."},
    ),
    tool(
        "read",
        "Show one document.",
        document={"type": "string", "description": "Its name, as search shows it."},
    ),
    tool("list", "List the names of the documents."),
    tool(
        "submit",
        "Give the final answer.",
        answer={"type": ["string", "number"], "description": "The answer."},
    ),
)
_MOST_NAMES = 50


class ReportEnvironment(ToolWorld):
    """Answer a question from several documents. Each document pays once."""

    name = "report"
    tools = TOOLS

    def __init__(self, options: ReportOptions | None = None) -> None:
        self.options = options or ReportOptions()
        self.max_turns = self.options.max_turns
        folder = self.options.documents
        self._own = read_folder(folder) if folder is not None else None
        self._library: Library | None = None

    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """``count`` distinct tasks of a split (fewer if your own file holds fewer)."""
        if self.options.questions is not None:
            return own_tasks(self.options.questions, split, count, seed)
        return generate(self.options, split, count, seed)

    def demonstrate(self, task: Task, seed: int) -> Callable[[Sequence[Message]], str]:
        """The scripted reader; over a person's own folder a walk through the documents named."""
        if self._own is not None:
            return Walkthrough(task)
        return Reader(task, self.options.expert, random.Random(f"read/{task.id}/{seed}"))

    def alter_gold(self, task: Task) -> Task:
        """The task with another answer and other needs: nothing an actor sees may change."""
        return replace(task, payload={**task.payload, "answer": "987654321", "needed": []})

    def reset(self, task: Task) -> Reset:
        """Start an episode of a task."""
        self.close()
        facts = task.payload
        if self._own is None:
            company = Company.of(int(facts["company"]), int(facts["regions"]))
            self._library = Library(company.documents(int(facts["company"])))
        else:
            self._library = Library(self._own)
        self._gold, self._needed = facts["answer"], list(facts["needed"])
        self._read: set[str] = set()
        self._found = False
        return self.begin(str(facts["text"]))

    def close(self) -> None:
        """Free the index."""
        if self._library is not None:
            self._library.close()
            self._library = None

    # ---- the tools

    def carry_out(self, call: ToolCall) -> Said:
        """Use a tool."""
        assert self._library is not None
        if call.name == "search":
            return self._search(self._library, call.arguments["query"])
        if call.name == "read":
            return self._show(self._library, call.arguments["document"])
        if call.name == "list":
            names = list(self._library.documents)
            more = ", ..." if len(names) > _MOST_NAMES else ""
            return Said(", ".join(names[:_MOST_NAMES]) + more)
        self.finished = True
        self.solved = judge.same(call.arguments["answer"], [self._gold])
        return Said("answer received", {"success": float(self.solved)})

    def _search(self, library: Library, query: str) -> Said:
        hits = library.search(query, self.options.hits)
        if not hits:
            return Said("no document fits")
        rewards = {} if self._found else {"useful_result": 1.0}
        self._found = True
        return Said("\n".join(f"{name}: {text}" for name, text in hits), rewards)

    def _show(self, library: Library, name: str) -> Said:
        if name not in library.documents:
            return refused(f"no such document: {name[:60]}")
        data = library.documents[name].encode()
        text = data[: self.options.max_bytes].decode(errors="ignore")
        text += " ..." if len(data) > self.options.max_bytes else ""
        if name in self._read or name not in self._needed:
            self._read.add(name)
            return Said(text)
        self._read.add(name)
        share = 1 / len(self._needed)
        return Said(text, {"right_tool": share, "right_arguments": share, "sub_goal": share})

    # ---- what is known of the episode

    def checklist(self) -> tuple[ChecklistItem, ...]:
        """Visible progress only: which documents are needed is for the critic."""
        return (
            ("found", self._found),
            ("read", bool(self._read)),
            ("answer", self.finished),
        )

    def facts(self) -> Mapping[str, Any]:
        """The answer, and the documents still to be read."""
        left = [f"read {name}" for name in self._needed if name not in self._read]
        return {"gold_answer": str(self._gold), "remaining_sub_goals": left}
