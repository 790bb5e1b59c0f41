"""Options of ``report``: plain data, importable without anything heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stages.interaction.environments.parallel import ParallelOptions

Probability = Annotated[float, Field(ge=0.0, le=1.0)]

QUESTIONS = ("total", "change", "highest", "managed")
"""Kinds of generated questions; the kind of a task."""


class ReaderOptions(BaseModel):
    """How often the scripted reader makes each of its mistakes, per demonstration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stops_early: Probability = Field(
        0.6, description="Answers before the last of the documents has been read."
    )
    wrong_figure: Probability = Field(0.3, description="Takes the costs where sales are asked.")
    redundant_search: Probability = Field(0.1, description="Searches for one thing twice.")

    @classmethod
    def clean(cls) -> ReaderOptions:
        """A reader without mistakes."""
        return cls(**dict.fromkeys(cls.model_fields, 0.0))


class ReportOptions(ParallelOptions):
    """Searching and reading a folder of documents, generated or a person's own."""

    name: Literal["report"] = Field("report", description="Which environment this is.")
    max_turns: int = Field(16, ge=2, le=200, description="Turns the actor has for one episode.")
    kinds: tuple[str, ...] = Field(
        QUESTIONS, min_length=1, description="Kinds of questions to draw from."
    )
    regions: int = Field(4, ge=3, le=8, description="Regions of a generated company.")
    hits: int = Field(4, ge=1, le=20, description="Documents that a search shows.")
    max_bytes: int = Field(2000, ge=100, description="Bytes of a document that are shown.")
    documents: Path | None = Field(
        None, description="A folder of your own .txt and .md files, searched with what is below it."
    )
    questions: Path | None = Field(
        None,
        description='Its questions: JSON lines {"question", "answer"}, optional id, split (train, '
        "validation, test; without it a hash settles it) and documents (names needed).",
    )
    expert: ReaderOptions = Field(
        default_factory=ReaderOptions, description="Mistakes of the demonstrations."
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        unknown = sorted(set(self.kinds) - set(QUESTIONS))
        if unknown:
            raise ValueError(f"unknown kinds {unknown}; known: {', '.join(QUESTIONS)}")
        if (self.documents is None) != (self.questions is None):
            raise ValueError("documents and questions go together: give both or neither")
        return self
