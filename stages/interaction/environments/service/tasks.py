"""Generated tasks: deterministic, distinct, and disjoint between the splits by their hash."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from stages.common.errors import UsageError
from stages.interaction.environments.base import SPLITS, Task
from stages.interaction.environments.service.desk import Records
from stages.interaction.environments.service.domains import (
    DOMAINS,
    OWNER,
    PEOPLE,
    STATUS,
    Domain,
    Intent,
)
from stages.interaction.environments.service.options import ServiceOptions

_TRAIN, _VALIDATION = 0.8, 0.9
NOT_OWNER = (OWNER, "name")
"""Words of which one tells a stranger why nothing is done."""


@dataclass(frozen=True)
class Wish:
    """What the customer wants and knows; nothing in it is the judge's."""

    intent: str
    number: str
    name: str
    """The customer's own name."""
    value: str = ""
    """The new value, where the customer chooses one."""
    told: tuple[str, ...] = ()
    """What the customer says without being asked: of ``number``, ``name``, ``value``."""
    greeting: str = ""
    doubts: bool = False
    """Asks once more whether it is done."""


@dataclass(frozen=True)
class Verdict:
    """What must be true at the end of a wish, beside the final state."""

    number: str
    field: str
    """Field whose value must be told; "" where one of ``words`` must be."""
    words: tuple[str, ...]
    """Any of these words tells it; no other value of the field may be said with it."""


@dataclass(frozen=True)
class Case:
    """A task in the environment's own terms."""

    domain: Domain
    records: Records
    wishes: tuple[Wish, ...]
    expected: Records
    told: tuple[Verdict, ...]

    @classmethod
    def of(cls, task: Task) -> Case:
        """From a task's payload."""
        payload = task.payload
        wishes = [Wish(**{**row, "told": tuple(row["told"])}) for row in payload["wishes"]]
        told = [Verdict(**{**row, "words": tuple(row["words"])}) for row in payload["told"]]
        domain = DOMAINS[payload["domain"]]
        return cls(domain, payload["records"], tuple(wishes), payload["expected"], tuple(told))


def generate(options: ServiceOptions, split: str, count: int, seed: int) -> list[Task]:
    """``count`` distinct tasks of a split. UsageError for an unknown split."""
    if split not in SPLITS:
        raise UsageError(f"unknown split {split!r}; expected one of {', '.join(SPLITS)}")
    tasks: dict[str, Task] = {}
    for task in _stream(options, split, seed):
        if len(tasks) >= count:
            break
        tasks.setdefault(task.id, task)
    return list(tasks.values())


def split_of(fingerprint: str) -> str:
    """The split that a task's hash (hexadecimal) gives it: 80 % train, 10 %, 10 %."""
    place = int(fingerprint[:8], 16) / 16**8
    return "train" if place < _TRAIN else "validation" if place < _VALIDATION else "test"


def _stream(options: ServiceOptions, split: str, seed: int) -> Iterator[Task]:
    """Tasks without end, desks and intents in turn, so that small samples are balanced."""
    rng = random.Random(f"service/{split}/{seed}")
    n = 0
    while True:
        domain = DOMAINS[options.domains[n % len(options.domains)]]
        first = domain.intents[n // len(options.domains) % len(domain.intents)]
        task = _draw(options, domain, first, rng)
        if split_of(task.id.rpartition("-")[2]) == split:
            n += 1
            yield task


def _draw(options: ServiceOptions, domain: Domain, first: Intent, rng: random.Random) -> Task:
    draft = _Draft(domain, options.records, rng)
    intents = [first, *rng.choices(domain.intents, k=options.wishes - 1)]
    refused = [rng.random() < options.refusals for _ in intents]
    for number, intent, no in zip(list(draft.records), intents, refused, strict=False):
        draft.add(number, intent, refused=no)
    case = draft.case()
    return task_of(case, first.name if not refused[0] else f"{first.name}, refused")


def task_of(case: Case, kind: str) -> Task:
    """The task of a case; its id, and so its split, hangs on all of it."""
    order = sorted(case.records)
    payload = {
        "domain": case.domain.name,
        "records": {n: dict(case.records[n]) for n in order},
        "wishes": [asdict(wish) | {"told": list(wish.told)} for wish in case.wishes],
        "expected": {n: dict(case.expected[n]) for n in order},
        "told": [asdict(v) | {"words": list(v.words)} for v in case.told],
    }
    digest = hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()[:16]
    return Task(f"{case.domain.name}-{digest}", kind, case.domain.name, payload)


class _Draft:
    """A task in the making: records, to which wishes are added one by one."""

    def __init__(self, domain: Domain, count: int, rng: random.Random) -> None:
        self._domain, self._rng = domain, rng
        numbers = [str(n) for n in rng.sample(range(10, 100), count)]
        self.records = {number: self._record() for number in numbers}
        self._name = rng.choice(PEOPLE)
        self._wishes: list[Wish] = []
        self._told: list[Verdict] = []
        self._changes: dict[str, dict[str, str]] = {}

    def add(self, number: str, intent: Intent, *, refused: bool) -> None:
        """A wish about a record, which is made one that allows it, or one that forbids it."""
        record = self.records[number]
        why = self._forbid(intent, record) if refused else ""
        if not why:
            self._permit(intent, record)
        wish = self._wish(intent, number, record)
        self._wishes.append(wish)
        if intent.tool and not why:
            self._changes[number] = {intent.field: intent.becomes or wish.value}
        elif why == OWNER:
            self._told.append(Verdict(number, "", NOT_OWNER))
        else:
            field = why or intent.field
            self._told.append(Verdict(number, field, (record[field],)))

    def case(self) -> Case:
        """All of it."""
        expected = {n: row | self._changes.get(n, {}) for n, row in self.records.items()}
        return Case(self._domain, self.records, tuple(self._wishes), expected, tuple(self._told))

    def _record(self) -> dict[str, str]:
        values = {name: self._rng.choice(values) for name, values in self._domain.fields.items()}
        return {OWNER: self._rng.choice(PEOPLE), **values}

    def _permit(self, intent: Intent, record: dict[str, str]) -> None:
        record[OWNER] = self._name
        if intent.allowed:
            record[STATUS] = self._rng.choice(intent.allowed)

    def _forbid(self, intent: Intent, record: dict[str, str]) -> str:
        """Why the policy forbids the wish: the field that tells, status or owner."""
        states = self._domain.fields[STATUS]
        barred = [s for s in states if s not in intent.allowed and s != intent.becomes]
        if intent.allowed and barred and self._rng.random() < 2 / 3:
            record[OWNER], record[STATUS] = self._name, self._rng.choice(barred)
            return STATUS
        record[OWNER] = self._rng.choice([person for person in PEOPLE if person != self._name])
        if intent.allowed:
            record[STATUS] = self._rng.choice(intent.allowed)
        return OWNER

    def _wish(self, intent: Intent, number: str, record: Mapping[str, str]) -> Wish:
        rng = self._rng
        others = [v for v in self._domain.fields[intent.field] if v != record[intent.field]]
        value = rng.choice(others) if intent.chosen else ""
        parts = ("number", "name", "value") if value else ("number", "name")
        told = tuple(part for part in parts if rng.random() < 0.4)
        greeting = rng.choice(("", "please ", "hello, "))
        return Wish(intent.name, number, self._name, value, told, greeting, rng.random() < 0.2)
