"""The ``code`` environment: a program with a bug, its visible tests, and a sandbox."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stages.interaction.environments.base import Reset, Task
from stages.interaction.environments.calls import tool
from stages.interaction.environments.code.expert import Debugger
from stages.interaction.environments.code.options import CodeOptions
from stages.interaction.environments.code.programs import source
from stages.interaction.environments.code.tasks import generate
from stages.interaction.environments.sandbox import Limits, Outcome, Sandbox
from stages.interaction.environments.tool_world import Said, ToolWorld, refused
from stages.interaction.trajectory import ChecklistItem, Message, ToolCall

TOOLS = (
    tool("test", "Run the visible tests."),
    tool(
        "edit",
        "Replace one line of the program; its indentation is kept if the new text has none.",
        line={"type": "integer", "description": "Number of the line, from 1."},
        code={"type": "string", "description": "The new text."},
    ),
    tool(
        "python",
        "Run Python code after the program and show what it prints.",
        code={"type": "string", "description": "The code."},
    ),
    tool("submit", "Hand the program in: hidden tests judge it, and the task is over."),
)
_MOST_LINES = 200


class CodeEnvironment(ToolWorld):
    """Repair a program. The hidden tests' results are compared here, never in the sandbox."""

    name = "code"
    tools = TOOLS

    def __init__(self, options: CodeOptions | None = None) -> None:
        self.options = options or CodeOptions()
        self.max_turns = self.options.max_turns
        seconds = self.options.time_limit_s
        self._sandbox = Sandbox(
            Limits(
                wall_s=seconds,
                cpu_s=int(seconds) + 1,
                memory_bytes=self.options.memory_mb * 1_000_000,
            )
        )

    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """``count`` distinct tasks of a split."""
        return generate(self.options, split, count, seed)

    def demonstrate(self, task: Task, seed: int) -> Callable[[Sequence[Message]], str]:
        """The scripted debugger for one episode, as imperfect as ``options.expert`` says."""
        return Debugger(task, self.options.expert, random.Random(f"debug/{task.id}/{seed}"))

    def alter_gold(self, task: Task) -> Task:
        """The task with other hidden tests and fixes: nothing an actor sees may change."""
        hidden = [[given, wanted + 1000] for given, wanted in task.payload["hidden"]]
        fixes = dict.fromkeys(task.payload["fixes"], "    pass")
        return replace(task, payload={**task.payload, "hidden": hidden, "fixes": fixes})

    def reset(self, task: Task) -> Reset:
        """Start an episode of a task."""
        self._sandbox.clear()
        self._facts: Mapping[str, Any] = task.payload
        self._lines = [str(line) for line in task.payload["lines"]]
        self._tested = self._passing = self._edited = False
        self._paid: set[str] = set()
        listing = "\n".join(f"{n} {line}" for n, line in enumerate(self._lines, 1))
        shown = "; ".join(self._call(given, wanted) for given, wanted in self._facts["visible"])
        return self.begin(f"{self._facts['goal']} Fix the program.\n{listing}\n{shown}")

    def close(self) -> None:
        """Remove the sandbox."""
        self._sandbox.close()

    # ---- the tools

    def carry_out(self, call: ToolCall) -> Said:
        """Use a tool."""
        if call.name == "edit":
            return self._edit(call.arguments["line"], call.arguments["code"])
        if call.name == "python":
            return self._python(call.arguments["code"])
        return self._test() if call.name == "test" else self._submit()

    def _edit(self, number: int, text: str) -> Said:
        if not 1 <= number <= len(self._lines):
            return refused(f"there is no line {number}; the last is {len(self._lines)}")
        old = self._lines[number - 1]
        if text and not text[0].isspace():
            text = old[: len(old) - len(old.lstrip())] + text
        new = text.split("\n")
        if len(self._lines) + len(new) > _MOST_LINES:
            return refused(f"a program has at most {_MOST_LINES} lines")
        self._lines[number - 1 : number] = new
        self._edited, self._passing = True, False
        rewards: dict[str, float] = {}
        if self._is_fix(number, new) and self._first(f"fix {number}"):
            share = 1 / len(self._facts["fixes"])
            rewards = {"right_tool": share, "right_arguments": share, "sub_goal": share / 2}
        return Said(f"line {number} replaced", rewards)

    def _python(self, code: str) -> Said:
        outcome = self._sandbox.run(source(self._lines), code)
        if outcome.stopped is not None:
            return self._stopped("the code", outcome)
        text = _shortened(outcome.output.strip() or "nothing printed", self.options.max_bytes)
        if outcome.failed:
            return Said(f"error: {text}", {}, text)
        return Said(text, {"useful_result": 1.0} if self._first("python") else {})

    def _test(self) -> Said:
        self._tested = True
        outcome, wrong = self._judged(self._facts["visible"])
        if outcome.stopped is not None:
            return self._stopped("the program", outcome)
        total = len(self._facts["visible"])
        self._passing = not wrong
        if not wrong:
            rewards = {"sub_goal": 0.25} if self._first("green") else {}
            return Said(f"all {total} tests pass", rewards)
        rewards = {"useful_result": 1.0} if self._first("red") else {}
        text = _shortened(wrong[0], self.options.max_bytes)
        return Said(f"{len(wrong)} of {total} tests fail: {text}", rewards)

    def _submit(self) -> Said:
        outcome, wrong = self._judged(self._facts["hidden"])
        self.finished = True
        self.solved = not wrong and outcome.stopped is None
        return Said("submitted", {"success": float(self.solved)})

    # ---- inside

    def _judged(self, cases: Sequence[Any]) -> tuple[Outcome, list[str]]:
        """Run the program on the cases' arguments; what was wrong, in words."""
        calls = [given for given, _ in cases]
        function = self._facts["function"]
        outcome = self._sandbox.run(source(self._lines), function=function, calls=calls)
        broken = outcome.output.strip().split("\n")[-1] or "no result"
        missing = {"error": broken if outcome.failed else "no result"}
        results = [*outcome.results, *[missing] * (len(cases) - len(outcome.results))]
        wrong = []
        for (given, wanted), result in zip(cases, results, strict=True):
            if "value" not in result or not _same(result["value"], wanted):
                gave = result.get("value", result.get("error"))
                wrong.append(f"{self._call(given)} gave {gave}, expected {wanted}")
        return outcome, wrong

    def _stopped(self, what: str, outcome: Outcome) -> Said:
        """Stopped by a limit: the agent's own doing, so it pays for it."""
        return refused(f"{what} {outcome.stopped} and was stopped", invalid=True)

    def _call(self, arguments: Sequence[Any], wanted: Any = None) -> str:
        text = f"{self._facts['function']}({', '.join(str(a) for a in arguments)})"
        return text if wanted is None else f"{text} = {wanted}"

    def _is_fix(self, number: int, new: Sequence[str]) -> bool:
        fix = self._facts["fixes"].get(str(number))
        return fix is not None and len(new) == 1 and new[0].split() == str(fix).split()

    def _first(self, step: str) -> bool:
        if step in self._paid:
            return False
        self._paid.add(step)
        return True

    def checklist(self) -> tuple[ChecklistItem, ...]:
        """Edited, tested, tests pass, submitted: all of it visible."""
        return (
            ("edited", self._edited),
            ("tests pass", self._passing),
            ("submitted", self.finished),
        )

    def facts(self) -> Mapping[str, Any]:
        """The lines that are still wrong, and whether the tests in sight pass."""
        wrong = [
            f"line {number}: {str(fix).strip()}"
            for number, fix in self._facts["fixes"].items()
            if f"fix {number}" not in self._paid
        ]
        return {"remaining_sub_goals": wrong, "visible_tests_pass": self._passing}


def _same(value: Any, wanted: Any) -> bool:
    """Equal, and True is no 1."""
    return isinstance(value, bool) == isinstance(wanted, bool) and bool(value == wanted)


def _shortened(text: str, limit: int) -> str:
    data = text.encode()
    return text if len(data) <= limit else data[:limit].decode(errors="ignore") + " ..."
