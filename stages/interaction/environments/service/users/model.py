"""A language model plays the customer (F6), kept in its role and watched for its health."""

from __future__ import annotations

import re
from typing import Any

from stages.interaction.environments.service.episode import words
from stages.interaction.environments.service.users.base import GOODBYE, Card, Reply
from stages.interaction.speaker import SickSimulator, Speaker
from stages.interaction.trajectory import Message

DONE = "[done]"
LONGEST_REPLY = 1000
"""Characters; a customer who says more has lost the thread, whatever its token limit is."""
SAME_REPLY = 2
"""A customer who says the same this often, to different words of the agent, is stuck in a loop."""

_OUT_OF_ROLE = re.compile(
    r"\"(?:name|arguments)\"\s*:|<\|?tool|\bas an? (?:ai|assistant|language model)\b"
    r"|^\s*(?:agent|assistant|system)\s*:",
    re.IGNORECASE,
)


class ModelUser:
    """Turns the roles round: the agent's words are the model's user messages.

    The model is shown its card only. A reply out of its role (empty, a tool call, the agent's
    part, a number nobody named) is tried again with other random numbers; when ``retries`` are
    used up, or it loops on its own account, ``SickSimulator`` is raised.
    """

    def __init__(self, speaker: Speaker, *, retries: int = 2) -> None:
        self._speaker = speaker
        self._retries = retries

    def open(self, card: Card, key: str) -> str:
        """The model's first message."""
        self._card, self._key, self._count = card, key, 0
        self._messages: list[Message] = [{"role": "system", "content": role_text(card)}]
        self._agent: list[str] = []
        self._said: list[str] = []
        return self.reply("hello, what can i do for you?").text

    def reply(self, said: str) -> Reply:
        """The model's answer; ``[done]`` in it ends the conversation."""
        self._messages.append({"role": "user", "content": said})
        self._agent.append(" ".join(said.split()))
        text, faults = self._in_role()
        self._messages.append({"role": "assistant", "content": text})
        spoken = text.replace(DONE, "").strip()
        self._said.append(" ".join(spoken.lower().split()))
        over = DONE in text
        if not over and self._stuck():
            raise SickSimulator("the customer repeats itself")
        health = {"tries": len(faults) + 1, "faults": faults}
        return Reply(spoken or GOODBYE, over, health)

    def _in_role(self) -> tuple[str, list[str]]:
        faults: list[str] = []
        for _ in range(self._retries + 1):
            self._count += 1
            text = self._speaker.say(self._messages, key=f"{self._key}/{self._count}").strip()
            fault = self._fault(text)
            if fault is None:
                return text, faults
            faults.append(fault)
        raise SickSimulator(f"the customer fell out of its role {len(faults)} times: {faults[-1]}")

    def _fault(self, text: str) -> str | None:
        if not words(text):
            return "it said nothing"
        if len(text) > LONGEST_REPLY:
            return "it talks without end"
        if _OUT_OF_ROLE.search(text):
            return "it speaks as the agent"
        heard = " ".join([role_text(self._card), *self._agent])
        strange = {w for w in words(text) if w.isdigit()} - words(heard)
        named = ", ".join(sorted(strange))
        return f"it names {named}, which is not on its card" if strange else None

    def _stuck(self) -> bool:
        """The same reply again and again, although the agent said something new each time."""
        last = self._said[-1]
        times = [k for k, text in enumerate(self._said) if text == last]
        return len(times) > SAME_REPLY and len({self._agent[k] for k in times}) > SAME_REPLY


def role_text(card: Card) -> str:
    """The model's instructions: its card, and how to behave."""
    wishes = [_wish_text(card, number) for number in range(len(card.wishes))]
    return (
        f"You play a customer who talks to the service desk for {card.domain.name}. You are not "
        "the agent: never look anything up, never offer help, never write JSON.\n"
        + "\n".join(wishes)
        + "\nSay one short sentence at a time. Tell a fact only when it is asked for, and no fact "
        "that is not written here. When the agent asks you to confirm exactly what you want, say "
        f"yes. When all is done, or the agent refuses, say goodbye and {DONE}."
    )


def _wish_text(card: Card, number: int) -> str:
    wish: Any = card.wishes[number]
    facts = ", ".join(f"{label} {value}" for label, value in card.facts(wish).items())
    return f"You want: {card.intent(wish).wish}. You know: {facts}."
