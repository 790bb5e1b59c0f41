"""Plain orders with verdicts that a program can give: does a model still do as it is told?

They have nothing to do with any environment. A model that could follow none of them before RL
(one that knows only its world's calls, say) is not judged by them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stages.interaction.actions import parse_action

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Instruction:
    """What is asked, and whether a reply is what was asked for."""

    prompt: str
    obeyed: Callable[[str], bool]


def _says_only(word: str) -> Callable[[str], bool]:
    return lambda reply: [w.lower() for w in _WORD.findall(reply)] == [word]


def _json_with(key: str) -> Callable[[str], bool]:
    return lambda reply: key in _json_object(reply)


def _json_object(reply: str) -> dict[str, object]:
    """The object that a reply is, in a fence or bare; {} if it is none."""
    text = re.sub(r"^```\w*\s*|\s*```$", "", reply.strip())
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _lines(count: int, beginning: str) -> Callable[[str], bool]:
    def obeyed(reply: str) -> bool:
        lines = [line.strip() for line in reply.strip().splitlines() if line.strip()]
        return len(lines) == count and all(line.startswith(beginning) for line in lines)

    return obeyed


def _about(word: str, form: Callable[[str], bool]) -> Callable[[str], bool]:
    """The form alone might be met by chance, in babble too."""
    return lambda reply: word in _WORD.findall(reply.lower()) and form(reply)


def _words(fewest: int, most: int) -> Callable[[str], bool]:
    return lambda reply: fewest <= len(set(_WORD.findall(reply.lower()))) <= most


def _counted(reply: str) -> bool:
    return re.findall(r"\d+", reply) == ["1", "2", "3", "4", "5"]


INSTRUCTIONS: Sequence[Instruction] = (
    Instruction("Reply with the single word yes and nothing else.", _says_only("yes")),
    Instruction("Which day comes after Monday? Reply with one word.", _says_only("tuesday")),
    Instruction("What is two plus three? Reply with the digit alone.", _says_only("5")),
    Instruction("Count from 1 to 5, with commas between the numbers.", _counted),
    Instruction('Reply with a JSON object that has the key "colour".', _json_with("colour")),
    Instruction("Name three fruits, one a line, each line beginning with '- '.", _lines(3, "- ")),
    Instruction("Say something about rain in CAPITAL LETTERS only.", _about("rain", str.isupper)),
    Instruction("Say something about snow in small letters only.", _about("snow", str.islower)),
    Instruction(
        "Write a sentence about a dog that ends with a question mark.",
        _about("dog", lambda reply: reply.strip().endswith("?")),
    ),
    Instruction("Tell me about the sea in at least ten words.", _about("sea", _words(8, 10**6))),
    Instruction("Describe a tree in two to five words.", _about("tree", _words(2, 5))),
    Instruction(
        "Put the word harbour in double quotes and say nothing else.",
        lambda reply: reply.strip().rstrip(".") == '"harbour"',
    ),
)


def obeyed(replies: Sequence[str]) -> list[bool]:
    """The verdict on each reply to ``INSTRUCTIONS``, in their order.

    No order asks for a tool, so a call disobeys, whatever letters it happens to be written in.
    """
    pairs = zip(INSTRUCTIONS, replies, strict=True)
    return [order.obeyed(reply) and not parse_action(reply).calls for order, reply in pairs]


def distinct(replies: Sequence[str], size: int = 2) -> float | None:
    """Different runs of ``size`` words as a share of all of them (distinct-n, Li et al. 2016,
    arXiv:1510.03055); None if no reply is that long.
    """
    runs: list[tuple[str, ...]] = []
    for reply in replies:
        words = _WORD.findall(reply.lower())
        runs += [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    return len(set(runs)) / len(runs) if runs else None
