"""The ways in which a question can be put into words."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stages.interaction.environments.sql.lexicon import Domain
from stages.interaction.environments.sql.questions import AGGREGATES, OPERATORS, ORDERS, Question

Said = tuple[str, str]
"""Two ways to ask the same."""


def wordings(question: Question, domain: Domain) -> Said:
    """The texts a question may have in a domain; its own ``text`` is not read."""
    return _WORDINGS[question.template](question, domain)


def _word_of(words: Mapping[str, str], meaning: str) -> str:
    return next(word for word, meant in words.items() if meant == meaning)


def _count(q: Question, domain: Domain) -> Said:
    compared = "" if q.operator == "=" else f"{_word_of(OPERATORS, q.operator)} "
    many, what = domain.child.plural, f"{q.filter} {compared}{q.value}"
    return f"How many {many} have {what}?", f"Count the {many} with {what}."


def _aggregate(q: Question, domain: Domain) -> Said:
    tail = f" with {q.filter} {q.value}" if q.filter else ""
    what = f"the {_word_of(AGGREGATES, q.function)} {q.measure} of {domain.child.plural}{tail}"
    return f"What is {what}?", f"Find {what}."


def _lookup(q: Question, domain: Domain) -> Said:
    one = domain.parent.word
    return (
        f"What is the {q.measure} of {one} {q.value}?",
        f"Find the {q.measure} of the {one} named {q.value}.",
    )


def _group(q: Question, domain: Domain) -> Said:
    many, word = domain.child.plural, _word_of(ORDERS, q.order)
    return (
        f"Which {q.measure} has the {word} {many}?",
        f"Find the {q.measure} with the {word} {many}.",
    )


def _join_count(q: Question, domain: Domain) -> Said:
    many, owners = domain.child.plural, domain.parent.plural
    return (
        f"How many {many} belong to {owners} with {q.filter} {q.value}?",
        f"Count the {many} of {owners} with {q.filter} {q.value}.",
    )


def _join_aggregate(q: Question, domain: Domain) -> Said:
    what = (
        f"the {_word_of(AGGREGATES, q.function)} {q.measure} of {domain.child.plural} of "
        f"{domain.parent.plural} with {q.filter} {q.value}"
    )
    return f"What is {what}?", f"Find {what}."


def _two_step(q: Question, domain: Domain) -> Said:
    one, owner = domain.child.word, domain.parent.word
    return (
        f"What is the {q.measure} of the {owner} of {one} {q.value}?",
        f"Find the {q.measure} of the {owner} that {one} {q.value} belongs to.",
    )


_WORDINGS: dict[str, Callable[[Question, Domain], Said]] = {
    "count_filter": _count,
    "count_compare": _count,
    "aggregate": _aggregate,
    "lookup": _lookup,
    "group": _group,
    "join_count": _join_count,
    "join_aggregate": _join_aggregate,
    "two_step": _two_step,
}
