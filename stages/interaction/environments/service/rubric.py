"""A language model judges a finished conversation by a rubric (F6)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stages.interaction.speaker import SickSimulator, Speaker
from stages.interaction.trajectory import Message

_VERDICT = re.compile(r"(\d+)\s*[:.)-]?\s*(yes|no)\b", re.IGNORECASE)


class RubricJudge:
    """Asks a model whether each statement of the rubric holds; no verdict is no failure."""

    def __init__(self, speaker: Speaker, rubric: Sequence[str], *, retries: int = 2) -> None:
        self._speaker = speaker
        self._rubric = rubric
        self._retries = retries

    def share(self, policy: str, wishes: str, transcript: Sequence[Message], *, key: str) -> float:
        """Share of the statements that hold, 0 to 1.

        SickSimulator if the model gives no verdict on each statement in any of its tries.
        """
        messages = [{"role": "user", "content": self._question(policy, wishes, transcript)}]
        for number in range(self._retries + 1):
            verdicts = dict(_VERDICT.findall(self._speaker.say(messages, key=f"{key}/{number}")))
            numbers = [str(n + 1) for n in range(len(self._rubric))]
            if all(n in verdicts for n in numbers):
                return sum(verdicts[n].lower() == "yes" for n in numbers) / len(numbers)
        raise SickSimulator(f"the judge gave no verdict in {self._retries + 1} tries")

    def _question(self, policy: str, wishes: str, transcript: Sequence[Message]) -> str:
        lines = [f"{m['role']}: {m['content']}" for m in transcript if m["role"] != "system"]
        rubric = [f"{n}. {text}" for n, text in enumerate(self._rubric, start=1)]
        return "\n".join(
            [
                "You judge a conversation of a service agent (assistant) with a customer (user).",
                f"The policy: {policy}",
                f"The customer's wishes: {wishes}",
                "The conversation, with the agent's tool calls and their results (tool):",
                *lines,
                "Does each of these statements hold?",
                *rubric,
                "Answer with one line for each number, like '1: yes' or '1: no', and nothing else.",
            ]
        )
