"""What a recipe says about the state, as plain frozen records that load nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

ACTOR, RULES, HASHING = "actor", "rules", "hashing"
MINILM = "sentence-transformers/all-MiniLM-L6-v2"


@dataclass(frozen=True)
class SummaryOptions:
    """A running summary of what has left the window (F1)."""

    writer: str = RULES
    max_tokens: int = 96


@dataclass(frozen=True)
class FactsOptions:
    """Intents, finished steps, open questions and entities of what has left the window (F2)."""

    max_tokens: int = 96
    model: str | None = None
    questions: tuple[str, ...] = ()


@dataclass(frozen=True)
class MemoryOptions:
    """Turns that have left the window, recalled by similarity (F3)."""

    max_tokens: int = 128
    top_k: int = 2
    embedder: str = MINILM


@dataclass(frozen=True)
class StateOptions:
    """What a recipe says about the state; the fields are described in its ``state`` section."""

    exchanges: int = 8
    max_tokens: int = 2048
    checklist: bool = True
    tool_prompt: str = "full"
    review: str = "none"
    summary: SummaryOptions | None = None
    facts: FactsOptions | None = None
    memory: MemoryOptions | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any] | Any) -> StateOptions:
        """From a mapping, or from any object with these attributes (a recipe section)."""
        if isinstance(options, StateOptions):
            return options
        parts = {"summary": SummaryOptions, "facts": FactsOptions, "memory": MemoryOptions}
        values = _values(cls, options)
        for name, kind in parts.items():
            if values.get(name) is not None:
                values[name] = kind(**_values(kind, values[name]))
        return cls(**values)

    def written_by(self, actor: Any) -> StateOptions:
        """The same with the folder or hub id of ``actor`` where the summary's writer is ``actor``.

        A frozen one always: what writes must not change while what reads is trained. None: nobody
        is known yet.
        """
        if actor is None or self.summary is None or self.summary.writer != ACTOR:
            return self
        return replace(self, summary=replace(self.summary, writer=str(actor)))


def _values(kind: Any, options: Mapping[str, Any] | Any) -> dict[str, Any]:
    """The arguments of ``kind`` in a mapping (whose other keys it refuses) or an object."""
    if isinstance(options, Mapping):
        found = dict(options)
    else:
        found = {field.name: getattr(options, field.name) for field in fields(kind)}
    return {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
