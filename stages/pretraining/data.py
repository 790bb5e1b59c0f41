"""Documents the tiny base model is pretrained on: copying, names, SQL forms, the call format.

What is *not* in them: no (schema, question) pair of the validation or test split (every pair
is checked with the hash that makes the splits), no dialogue of the scripted expert, nothing
that a trained model or a reward has touched. Tools are used in random order, so that a model
of these documents knows how a call looks and what a name refers to, not how a task is solved.
The words of all domains, the unseen ones too, do occur: concepts and names are mixed across
domains, and part of them are random syllables.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from stages.interaction.environments.sql import questions
from stages.interaction.environments.sql.drawing import draw
from stages.interaction.environments.sql.environment import SqlEnvironment
from stages.interaction.environments.sql.expert import call_text
from stages.interaction.environments.sql.lexicon import DOMAINS, TEXT, Column, Domain, Table
from stages.interaction.environments.sql.options import TEMPLATES, SqlOptions
from stages.interaction.environments.sql.questions import Question
from stages.interaction.environments.sql.tasks import split_of
from stages.interaction.environments.sql.world import (
    CHILD,
    PARENT,
    World,
    make_world,
    name_options,
)
from stages.interaction.states.checklist import render_checklist
from stages.interaction.trajectory import Action, ToolCall


@dataclass(frozen=True)
class Segment:
    """One message. ``target``: it counts in full in the loss (other text a tenth)."""

    role: str
    content: str
    target: bool = False


Document = list[Segment]
"""Messages in order."""

_RANDOM_SHARES = (0.0, 0.0, 0.0, 0.3, 0.6, 1.0)


def documents(seed: int) -> Iterator[Document]:
    """Documents without end, of all sorts; the same seed gives the same ones."""
    rng = random.Random(f"pretraining/{seed}")
    sorts = list(_SORTS)
    weights = [_SORTS[s] for s in sorts]
    environment = SqlEnvironment(SqlOptions(max_rows=8))
    while True:
        build = rng.choices(sorts, weights)[0]
        document = build(rng, environment)
        if document:
            yield document


# ---- worlds of mixed concepts


def mixed_domain(rng: random.Random, random_share: float) -> Domain:
    """A domain whose tables and columns come from anywhere, partly with invented names."""
    while True:
        child, parent = (rng.choice(DOMAINS).child, rng.choice(DOMAINS).parent)
        texts, numbers = _pools()
        drawn = rng.sample(texts, 4), rng.sample(numbers, 2)
        columns = [_renamed(c, random_share, rng) for c in (*drawn[0], *drawn[1])]
        domain = Domain(
            "mixed",
            _retabled(child, (*columns[:2], *columns[4:]), random_share, rng),
            _retabled(parent, tuple(columns[2:4]), random_share, rng),
            rng.choice(DOMAINS).extra,
        )
        names = [n for options in name_options(domain).values() for n in options]
        distinct = len({c.concept for c in columns}) == len(columns)
        if distinct and len(set(names)) == len(names):
            return domain


def _pools() -> tuple[list[Column], list[Column]]:
    columns = [c for d in DOMAINS for t in (d.child, d.parent) for c in t.columns]
    return [c for c in columns if c.type == TEXT], [c for c in columns if c.type != TEXT]


_SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]


def invented(rng: random.Random) -> str:
    """A word of two or three random syllables."""
    return "".join(rng.choices(_SYLLABLES, k=rng.randint(2, 3)))


def _renamed(column: Column, share: float, rng: random.Random) -> Column:
    if rng.random() >= share:
        return column
    word = invented(rng)
    names = (word, f"{word}_{invented(rng)}", invented(rng) + "_" + word)
    values = tuple(invented(rng) for _ in column.values)
    return replace(column, concept=word, names=names, values=values)


def _retabled(table: Table, columns: tuple[Column, ...], share: float, rng: random.Random) -> Table:
    if rng.random() >= share:
        return replace(table, columns=columns)
    word = invented(rng)
    names = (word + "s", f"{word}_list", f"{invented(rng)}_{word}s")
    labels = table.labels and tuple({invented(rng).title() for _ in range(30)})
    return Table(word, word + "s", names, columns, tuple(sorted(labels)) or table.labels)


def _world(rng: random.Random) -> World:
    domain = mixed_domain(rng, rng.choice(_RANDOM_SHARES))
    return make_world(domain, rng.getrandbits(40), (12, 30))


def ask(world: World, rng: random.Random) -> Question | None:
    """A question of the training split over a world."""
    for _ in range(5):
        question = draw(rng.choice(TEMPLATES), world, rng)
        if split_of(world.fingerprint, question.text) == "train":
            return question
    return None


def _columns(world: World, table: str) -> str:
    return ", ".join(f"{c} {t}" for c, t in world.tables[table])


# ---- sorts of documents


def copying(rng: random.Random, _: SqlEnvironment) -> Document:
    """Lists of names, said again."""
    document: Document = []
    for _round in range(2):
        items = [_any_name(rng) for _ in range(rng.randint(3, 8))]
        text = ", ".join(items)
        document += [Segment("tool", text), Segment("assistant", text, True)]
    return document


def _any_name(rng: random.Random) -> str:
    if rng.random() < 0.5:
        table = rng.choice(rng.choice(DOMAINS).__dict__["child"].columns)
        return str(rng.choice(table.names))
    words = [invented(rng) for _ in range(rng.randint(1, 2))]
    return "_".join(words)


def lookup(rng: random.Random, _: SqlEnvironment) -> Document:
    """Which of the columns just shown is meant by a word; names change from table to table."""
    document: Document = []
    domain = mixed_domain(rng, rng.choice(_RANDOM_SHARES))
    for _round in range(2):
        # The same concepts under other names: the newest table counts, not a habit.
        world = make_world(domain, rng.getrandbits(40), (1, 1))
        tables = list(world.tables)
        concepts = [c.concept for t in (domain.child, domain.parent) for c in t.columns]
        asked = [(c, world.names[c]) for c in concepts]
        asked += [(domain.child.plural, world.names[CHILD])]
        asked += [(domain.parent.plural, world.names[PARENT])]
        asked += [(domain.parent.word, world.names[PARENT])]
        document.append(Segment("tool", ", ".join(tables)))
        document += [Segment("tool", _columns(world, t)) for t in tables]
        for word, name in rng.sample(asked, 5):
            document += [Segment("user", word), Segment("assistant", name, True)]
    return document


def statements(rng: random.Random, environment: SqlEnvironment) -> Document:
    """A described schema and three questions with their statements, outside any dialogue."""
    world = _world(rng)
    document = [Segment("tool", ", ".join(world.tables))]
    for table in world.tables:
        document.append(Segment("assistant", call_text("describe", table=table)))
        document.append(Segment("tool", _columns(world, table)))
    for _round in range(3):
        question = ask(world, rng)
        if question is None:
            return []
        document.append(Segment("user", question.text))
        if question.template != "two_step":
            statement = questions.sql(question, world.names)
            document.append(Segment("assistant", statement, True))
            continue
        key = str(rng.randint(1, 9))
        first = questions.first_step(question, world.names)
        second = questions.second_step(question, world.names, key)
        document.append(Segment("assistant", first, True))
        document += [Segment("tool", key), Segment("assistant", second, True)]
    return document


class _Dialogue:
    """A dialogue in the making: a real episode over a mixed world, as the actor would see it."""

    def __init__(self, environment: SqlEnvironment, world: World, question: Question):
        self.environment, self.world, self.question = environment, world, question
        gold = questions.sql(question, world.names)
        start = environment.begin(world, [(question.text, gold)])
        self.result = ""
        self.segments = [_shown("user", question.text, render_checklist(start.checklist))]

    def call(self, name: str, *, target: bool = True, **arguments: str) -> str:
        """One exchange; returns the observation."""
        action = Action("", (ToolCall(name, arguments),))
        step = self.environment.step(action)
        text = str(step.messages[-1]["content"])
        self.segments.append(Segment("assistant", call_text(name, **arguments), target))
        if not step.terminated:
            self.segments.append(_shown("tool", text, render_checklist(step.checklist)))
        if name == "query":
            self.result = text
        return text


def _shown(role: str, content: str, checklist: str) -> Segment:
    return Segment(role, f"{content}\n{checklist}")


def dialogue(rng: random.Random, environment: SqlEnvironment) -> Document:
    """Tools in random order; a query fits the question in a third of the cases."""
    world = _world(rng)
    question = ask(world, rng)
    if question is None:
        return []
    talk = _Dialogue(environment, world, question)
    listed = False
    described: list[str] = []
    for _turn in range(rng.randint(4, 9)):
        draw = rng.random()
        if not listed or draw < 0.1:
            talk.call("list_tables")
            listed = True
        elif not described or draw < 0.5:
            fresh = [t for t in world.tables if t not in described]
            if not fresh and rng.random() < 0.8:
                continue
            described.append(rng.choice(fresh or list(world.tables)))
            talk.call("describe", table=described[-1])
        else:
            statement = _random_statement(talk, described, rng)
            if statement:
                talk.call("query", sql=statement)
    if talk.result and not talk.result.startswith("error"):
        talk.call("answer", value=talk.result)
    return talk.segments


def _random_statement(talk: _Dialogue, described: Sequence[str], rng: random.Random) -> str:
    """A statement over tables that have been described, for this or for another question."""
    fits = rng.random() < 1 / 3
    question = talk.question if fits else draw(rng.choice(TEMPLATES), talk.world, rng)
    names = talk.world.names
    if any(names[role] not in described for role in question.roles):
        return ""
    if question.template != "two_step":
        return questions.sql(question, names)
    if talk.result.isdigit() and rng.random() < 0.7:
        return questions.second_step(question, names, talk.result)
    return questions.first_step(question, names)


def recovery(rng: random.Random, environment: SqlEnvironment) -> Document:
    """A wrong name, the error, a look at the names that exist, the call again."""
    world = _world(rng)
    question = ask(world, rng)
    if question is None:
        return []
    talk = _Dialogue(environment, world, question)
    if rng.random() < 0.3:
        return _wrong_table(talk, rng)
    return _wrong_column(talk, rng)


def _wrong_table(talk: _Dialogue, rng: random.Random) -> Document:
    role = rng.choice(talk.question.roles)
    wrong = [n for n in name_options(talk.world.domain)[role] if n != talk.world.names[role]]
    talk.call("describe", target=False, table=rng.choice(wrong))
    talk.call("list_tables")
    talk.call("describe", table=talk.world.names[role])
    return talk.segments


def _wrong_column(talk: _Dialogue, rng: random.Random) -> Document:
    world, question = talk.world, talk.question
    concept = rng.choice(question.concepts or (question.measure,))
    wrong = [n for n in name_options(world.domain)[concept] if n != world.names[concept]]
    names = {**world.names, concept: rng.choice(wrong)}
    roles = list(question.roles)
    rng.shuffle(roles)
    before, after = (roles, []) if rng.random() < 0.3 else ([], roles)
    for role in before:
        talk.call("describe", table=world.names[role])
    form = questions.first_step if question.template == "two_step" else questions.sql
    talk.call("query", target=False, sql=form(question, names))
    for role in after:
        talk.call("describe", table=world.names[role])
    talk.call("query", sql=form(question, world.names))
    return talk.segments


_SORTS = {copying: 0.08, lookup: 0.20, statements: 0.30, dialogue: 0.30, recovery: 0.12}


def corpus(count: int, seed: int) -> Iterator[str]:
    """Texts for the tokenizer: messages of documents, and every word of the lexicon."""
    for document, _ in zip(documents(seed), range(count), strict=False):
        yield from (segment.content for segment in document)
    yield from 1000 * [" ".join(sorted(lexicon_words()))]


def lexicon_words() -> set[str]:
    """Every word of the generated worlds, names split at the underscore."""
    words: set[str] = set()
    for domain in DOMAINS:
        for table in (domain.child, domain.parent, domain.extra):
            texts = [table.word, table.plural, *table.names, *table.labels]
            for column in table.columns:
                texts += [column.concept, *column.names, *column.values]
            words |= {part for text in texts for part in text.split("_")}
    return words
