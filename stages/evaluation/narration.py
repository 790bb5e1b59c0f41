"""What a person sees of an agent at work: one quiet line a call, and all of it when asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.text import Text

from stages.common.console import say
from stages.interaction.actions import in_short, parse_action
from stages.interaction.generation import Generation, Policy, Request
from stages.interaction.states.window import cut_middle
from stages.interaction.trajectory import Action, Message

FOLDED = 76
"""Characters of a folded line."""
LONGEST_SHOWN = 2000
"""Characters of a tool's result that are shown unfolded."""


@dataclass
class Narrator:
    """A policy that shows what the one behind it does, as it does it."""

    policy: Policy
    unfolded: bool = False
    """Show calls and what came back in full."""
    calls_only: bool = False
    """What is said and answered in words is shown elsewhere: the user is a person."""
    steps: list[tuple[Action, list[str]]] = field(default_factory=list)
    """Each action so far, and the lines that came back."""

    def generate(self, requests: Sequence[Request], *, greedy: bool = False) -> list[Generation]:
        """The policy's replies, each shown with what came of it."""
        for request in requests:
            if request.previous is not None:
                self._came_back([m for m in request.previous.observation if self._shows(m)])
        replies = self.policy.generate(requests, greedy=greedy)
        for request, reply in zip(requests, replies, strict=True):
            self._acted(parse_action(reply.text, request.tools))
        return replies

    def close(self) -> None:
        """The episode is over: the last call, which nothing came back from, is shown, too."""
        if self.steps and self.steps[-1][0].calls and not self.steps[-1][1]:
            self._fold(*self.steps[-1])

    def unfold(self) -> None:
        """Show every call so far in full, with what came back."""
        if not self.steps:
            say("nothing was called yet.")
        for action, lines in self.steps:
            if not action.calls:
                say(f"  {in_short(action)}")
            for call in action.calls:
                say(f"  {call.name} {json.dumps(dict(call.arguments), ensure_ascii=False)}")
            for line in lines:
                say(f"    {line}")

    def _shows(self, message: Message) -> bool:
        return not self.calls_only or message["role"] == "tool"

    def _acted(self, action: Action) -> None:
        self.steps.append((action, []))
        if (action.calls and self.unfolded) or (not action.calls and not self.calls_only):
            say(f"  {in_short(action)}")

    def _came_back(self, messages: Sequence[Message]) -> None:
        texts = [cut_middle(str(m.get("content") or ""), LONGEST_SHOWN) for m in messages]
        lines = [line for text in texts for line in text.splitlines()]
        if not self.steps:
            return
        action, kept = self.steps[-1]
        kept += lines
        if action.calls and not self.unfolded:
            self._fold(action, lines)
        else:
            for line in lines:
                say(f"    {line}")

    def _fold(self, action: Action, lines: Sequence[str]) -> None:
        if self.unfolded:
            return
        came = f" → {' / '.join(lines)}" if lines else ""
        line = " ".join(f"{in_short(action)}{came}".split())
        short = line if len(line) <= FOLDED else f"{line[: FOLDED - 1]}…"
        say(Text(f"  {short}", style="dim"))
