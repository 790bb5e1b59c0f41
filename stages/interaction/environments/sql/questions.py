"""Questions in SQL, and the shortcuts that must not answer them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stages.interaction.environments.sql.world import CHILD, CHILD_KEY, PARENT, PARENT_KEY

AGGREGATES = {"highest": "MAX", "lowest": "MIN", "average": "AVG", "total": "SUM"}
OPERATORS = {"over": ">", "under": "<"}
ORDERS = {"most": "DESC", "fewest": "ASC"}


@dataclass(frozen=True)
class Question:
    """A question over the concepts of a domain; ``sql`` turns it into a statement."""

    template: str
    text: str
    function: str = ""
    """SQL aggregate; empty for a plain column."""
    measure: str = ""
    """Concept whose value or aggregate is wanted."""
    filter: str = ""
    """Concept (or role) that is compared; empty for no filter."""
    operator: str = "="
    value: str | int | float = ""
    order: str = ""
    chained: bool = False
    """``value`` is the answer to the question before, which the text only refers to."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Tables that have to be looked at."""
        if self.template == "lookup":
            return (PARENT,)
        if self.template.startswith("join") or self.template == "two_step":
            return (CHILD, PARENT)
        return (CHILD,)

    @property
    def concepts(self) -> tuple[str, ...]:
        """Roles and concepts whose column names have to be known."""
        keys = (PARENT_KEY,) if len(self.roles) == 2 else ()
        return tuple(c for c in (self.measure, self.filter, *keys) if c)

    def to_json(self) -> dict[str, str | int | float]:
        """A small JSON-able dictionary; ``Question(**row)`` is its inverse."""
        defaults = Question("", "")
        row = {k: getattr(self, k) for k in self.__dataclass_fields__}
        return {k: v for k, v in row.items() if v != getattr(defaults, k)}


def literal(value: str | int | float) -> str:
    """A value as SQL text."""
    if isinstance(value, int | float):
        return str(value)
    return "'" + value.replace("'", "''") + "'"


def value_of(text: str) -> str | int | float:
    """What an answer, as it was shown, stands for in a statement: a number if it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def sql(question: Question, names: Mapping[str, str]) -> str:
    """The statement that answers a question in a schema with these names."""
    if question.template == "two_step":
        inner = first_step(question, names)
        return (
            f"SELECT {names[question.measure]} FROM {names[PARENT]} "
            f"WHERE {names[PARENT_KEY]} = ({inner})"
        )
    if question.template == "lookup":
        return f"SELECT {names[question.measure]} FROM {names[PARENT]}" + _where(question, names)
    if question.template == "group":
        column = names[question.measure]
        return (
            f"SELECT {column} FROM {names[CHILD]} GROUP BY {column} "
            f"ORDER BY COUNT(*) {question.order} LIMIT 1"
        )
    target = "*" if question.function == "COUNT" else names[question.measure]
    source = names[CHILD]
    if question.template.startswith("join") and question.filter:
        source += f" JOIN {names[PARENT]} USING ({names[PARENT_KEY]})"
    return f"SELECT {question.function}({target}) FROM {source}" + _where(question, names)


def first_step(question: Question, names: Mapping[str, str]) -> str:
    """First statement of a two-step question: which parent row is meant."""
    return (
        f"SELECT {names[PARENT_KEY]} FROM {names[CHILD]} "
        f"WHERE {names[CHILD_KEY]} = {literal(question.value)}"
    )


def second_step(question: Question, names: Mapping[str, str], key: str) -> str:
    """Second statement of a two-step question, with the key the first one returned."""
    return (
        f"SELECT {names[question.measure]} FROM {names[PARENT]} WHERE {names[PARENT_KEY]} = {key}"
    )


def _where(question: Question, names: Mapping[str, str]) -> str:
    if not question.filter:
        return ""
    return f" WHERE {names[question.filter]} {question.operator} {literal(question.value)}"


def shortcuts(question: Question, names: Mapping[str, str]) -> list[str]:
    """Statements of a careless analyst; a question is only asked if all of them are wrong."""
    wrong: list[Question] = []
    if question.template not in ("lookup", "two_step", "group") and question.filter:
        wrong.append(replace(question, filter=""))
    if question.operator in "<>":
        wrong.append(replace(question, operator="<" if question.operator == ">" else ">"))
    if question.function in ("MAX", "MIN", "AVG", "SUM"):
        others = [f for f in AGGREGATES.values() if f != question.function]
        wrong += [replace(question, function=f) for f in others]
        wrong += [replace(w, function="SUM") for w in wrong if not w.filter]
    if question.order:
        wrong.append(replace(question, order="ASC" if question.order == "DESC" else "DESC"))
    statements = [sql(w, names) for w in wrong]
    if question.template == "two_step":
        statements.append(second_step(question, names, str(question.value)))
    return statements
