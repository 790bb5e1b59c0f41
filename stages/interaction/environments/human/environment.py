"""The ``human`` environment (F8): the person at the terminal is the user."""

from __future__ import annotations

from collections.abc import Sequence

from stages.interaction.environments.base import Reset, Step, Task
from stages.interaction.environments.human.options import HumanOptions
from stages.interaction.terminal import Terminal
from stages.interaction.trajectory import Action, Message

NOTHING_TO_SAY = "bye"
QUESTION = "Was the agent of help? (y/n)"


class HumanEnvironment:
    """A conversation without tools; the person's verdict at the end is its success."""

    name = "human"

    def __init__(self, options: HumanOptions | None = None) -> None:
        self.options = options or HumanOptions()
        self.max_turns = self.options.max_turns
        self._terminal = Terminal()

    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """Conversations, each as empty as the next: the person brings the task along."""
        return [Task(f"{split}-{seed}-{n}", "conversation", "human") for n in range(count)]

    def reset(self, task: Task) -> Reset:
        """What the person says first is the goal; an end of input says goodbye."""
        opening = self._terminal.ask() or NOTHING_TO_SAY
        system = [{"role": "system", "content": self.options.system}] * bool(self.options.system)
        return Reset((*system, {"role": "user", "content": opening}), (), opening)

    def step(self, action: Action) -> Step:
        """Show the agent's words and take the person's; exit or an end of input ends it."""
        self._terminal.show(f"agent: {action.text}")
        answer = self._terminal.ask()
        if answer is not None:
            return Step((_user(answer),), info={"malformed": not action.text.strip()})
        helped = self.options.ask_verdict and self._helped()
        rewards = {"success": float(helped)}
        return Step((_user(NOTHING_TO_SAY),), rewards, terminated=True, success=helped)

    def close(self) -> None:
        """Nothing is held."""

    def _helped(self) -> bool:
        self._terminal.show(QUESTION)
        return (self._terminal.ask() or "").lower().startswith("y")


def _user(text: str) -> Message:
    return {"role": "user", "content": text}
