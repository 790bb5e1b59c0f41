"""Options of ``sql`` and ``sql-session``: plain data, importable without anything heavy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from stages.interaction.environments.parallel import ParallelOptions

Probability = Annotated[float, Field(ge=0.0, le=1.0)]

TEMPLATES = (
    "count_filter",
    "count_compare",
    "aggregate",
    "lookup",
    "group",
    "join_count",
    "join_aggregate",
    "two_step",
)
"""Question templates in rising difficulty; the kind of a generated task."""

UNSEEN_DOMAINS = ("hotel", "bank", "sport")
"""Domains that occur in the test split only, unless the options say otherwise."""


class ExpertOptions(BaseModel):
    """How often the scripted expert makes each of its mistakes, per demonstration.

    The first six spoil the answer and are systematic: always the same wrong form. Above one
    half they are what an imitator does when it decodes greedily (rarer ones average out).
    The next three are recovered from, so they teach recovery, cost a turn or two, and are
    imitated themselves; a slip is recovered from as well and not learned.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    wrong_aggregate: Probability = Field(0.65, description="Sums where max or min is asked.")
    dropped_filter: Probability = Field(0.65, description="Leaves out a filter of one table.")
    dropped_join_filter: Probability = Field(
        0.65, description="Leaves out the filter on the joined table."
    )
    wrong_operator: Probability = Field(0.65, description="Compares with < where > is asked.")
    wrong_order: Probability = Field(0.65, description="Takes the most where fewest is asked.")
    skipped_step: Probability = Field(
        0.65, description="Looks up the second table with the id of the first."
    )
    guessed_column: Probability = Field(
        0.15, description="Queries before describing with a wrong column name, then recovers."
    )
    guessed_table: Probability = Field(
        0.10, description="Describes a table that does not exist first, then recovers."
    )
    redundant_call: Probability = Field(0.08, description="Repeats one call.")
    slip: Probability = Field(
        0.0,
        description="Of each describe and query: one word of it comes out wrong, then, every other "
        "time after another look, it is done rightly. Stage 1 learns what follows the slip, not "
        "the slip: what to do after an error.",
    )

    @classmethod
    def clean(cls) -> ExpertOptions:
        """An expert without mistakes."""
        return cls(**dict.fromkeys(cls.model_fields, 0.0))


MISTAKES = tuple(name for name in ExpertOptions.model_fields if name != "slip")
"""Drawn for once per question."""


class GeneratedOptions(ParallelOptions):
    """What the analyst's environments have in common: generated tasks, expert, limits."""

    name: str
    max_turns: int
    domains: tuple[str, ...] | None = Field(
        None, description="Generated domains of all splits; default: all that are not unseen."
    )
    unseen_domains: tuple[str, ...] = Field(
        UNSEEN_DOMAINS, description="Domains of half of the test tasks, in no other split."
    )
    mixed_domains: Probability = Field(
        0.0,
        description="Share of the training tasks over databases put together from the tables and "
        "columns of several domains: many more schemas to read, none of them the test's.",
    )
    invented_domains: Probability = Field(
        0.0,
        description="Share of the training tasks over databases of things that are in no domain: "
        "hundreds more names, so that an agent learns to copy those it is shown.",
    )
    templates: tuple[str, ...] = Field(
        TEMPLATES, min_length=1, description="Question templates to draw from."
    )
    rows: tuple[int, int] = Field(
        (20, 40), description="Fewest and most rows of the larger generated table."
    )
    expert: ExpertOptions = Field(
        default_factory=ExpertOptions, description="Mistakes of the demonstrations."
    )
    malformed_limit: int | None = Field(
        None,
        ge=1,
        description="Replies in a row without a readable call that end an episode as failed: who "
        "writes three seldom comes back, and each takes as long as a reply may. Default: no end.",
    )
    max_rows: int = Field(20, ge=1, le=1000, description="Rows of a result that are shown.")
    max_bytes: int = Field(2000, ge=100, description="Bytes of a result that are shown.")
    time_limit_s: float = Field(1.0, gt=0, le=60, description="Seconds one query may take.")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        unknown = sorted(set(self.templates) - set(TEMPLATES))
        if unknown:
            raise ValueError(f"unknown templates {unknown}; known: {', '.join(TEMPLATES)}")
        if not 10 <= self.rows[0] <= self.rows[1] <= 500:
            raise ValueError(f"rows {self.rows} must be [fewest, most] within 10 and 500")
        if (made_up := self.mixed_domains + self.invented_domains) > 1:
            raise ValueError(
                "mixed_domains and invented_domains are shares of the training tasks: together "
                f"at most 1, given {made_up:g}"
            )
        return self


class SqlOptions(GeneratedOptions):
    """A data analyst over a SQLite database, generated or a person's own."""

    name: Literal["sql"] = Field("sql", description="Which environment this is.")
    max_turns: int = Field(8, ge=1, le=100, description="Turns the actor has for one episode.")
    follow_ups: int = Field(
        0, ge=0, le=8, description="Further questions after the first, over the same database."
    )
    database: Path | None = Field(None, description="A SQLite file of your own, read only.")
    questions: Path | None = Field(
        None,
        description='Its questions: JSON lines {"question", "sql"}, optional id and split (train, '
        "validation, test). Without split all are divided, none left empty (fewer than 10: all in "
        "each). With it, absent validation takes test's, absent test validation's, else train's.",
    )

    @model_validator(mode="after")
    def _together(self) -> Self:
        if (self.database is None) != (self.questions is None):
            raise ValueError("database and questions go together: give both or neither")
        return self


SELDOM = dict.fromkeys(
    (
        "wrong_aggregate",
        "dropped_filter",
        "dropped_join_filter",
        "wrong_operator",
        "wrong_order",
        "skipped_step",
    ),
    0.25,
)
"""Mistakes that spoil an answer, as often as a session's expert makes them."""


class SessionOptions(GeneratedOptions):
    """A session: several questions in a row, each about the answer to the one before."""

    name: Literal["sql-session"] = Field("sql-session", description="Which environment this is.")
    max_turns: int = Field(30, ge=1, le=200, description="Turns the actor has for one session.")
    chain: int = Field(4, ge=2, le=6, description="Questions of a session.")
    templates: tuple[str, ...] = Field(
        TEMPLATES, min_length=1, description="Templates of the first question; later ones follow."
    )
    expert: ExpertOptions = Field(
        default_factory=lambda: ExpertOptions(**SELDOM),
        description="Mistakes of the demonstrations; those that spoil an answer 0.25 each if "
        "not given, as one wrong answer spoils a session.",
    )

    @field_validator("expert", mode="before")
    @classmethod
    def _seldom(cls, given: Any) -> Any:
        return {**SELDOM, **given} if isinstance(given, Mapping) else given
