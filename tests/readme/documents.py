"""What README.md and recipes/README.md show: commands, recipes, rows, keys, paths and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
PROGRAMS = ("aac", "make", "pip", "python", "vllm")
"""What a command begins with, beside variables of its environment."""
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Document:
    """One file, and what is in it."""

    path: Path

    @cached_property
    def text(self) -> str:
        """All of it."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def prose(self) -> str:
        """What is not in a fenced block."""
        return FENCE.sub("", self.text)

    def blocks(self, language: str) -> list[str]:
        """Fenced blocks of a language; "" for those that name none, which are commands."""
        return [text for named, text in FENCE.findall(self.text) if named == language]

    @cached_property
    def spans(self) -> list[str]:
        """Code within the prose, on one line each."""
        return [" ".join(span.split()) for span in SPAN.findall(self.prose)]

    @cached_property
    def commands(self) -> list[str]:
        """Every command, once, in its order: whole blocks, then those within the prose."""
        fenced = [line for block in self.blocks("") for line in logical(block)]
        return list(dict.fromkeys([*fenced, *filter(is_command, self.spans)]))

    @cached_property
    def headings(self) -> list[str]:
        """Anchors of the headings, as the hosts of git repositories make them."""
        found = re.findall(r"^#+ (.+)$", self.prose, re.MULTILINE)
        return [re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in found]

    @cached_property
    def links(self) -> list[str]:
        """Where links and pictures point."""
        return LINK.findall(self.prose)


README = Document(ROOT / "README.md")
RECIPES = Document(ROOT / "recipes/README.md")
DOCUMENTS = (README, RECIPES)


def logical(block: str) -> Iterator[str]:
    """Lines of a shell, without comments, broken ones joined, with single spaces."""
    for line in block.replace("\\\n", " ").splitlines():
        words = " ".join(re.sub(r"(^|\s)#.*", "", line).split())
        if words:
            yield words


def is_command(span: str) -> bool:
    """Whether code in the prose is something to type, and no mere name of a command."""
    program, *words = re.sub(r"^([A-Z_]+=\S+ )+", "", span).split()
    return program in PROGRAMS and (program == "make" or len(words) > 1) and bool(words)
