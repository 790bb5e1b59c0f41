"""Generated tasks: deterministic, distinct, and disjoint between the splits by their hash."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

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
    numbers = [str(n) for n in rng.sample(range(10, 100), options.records)]
    records = {number: _record(domain, rng) for number in numbers}
    name = rng.choice(PEOPLE)
    intents = [first, *rng.choices(domain.intents, k=options.wishes - 1)]
    refused = [rng.random() < options.refusals for _ in intents]
    wishes: list[Wish] = []
    told: list[Verdict] = []
    expected = {number: dict(row) for number, row in records.items()}
    for number, intent, no in zip(numbers, intents, refused, strict=False):
        why = _settle(intent, records[number], domain, name, rng) if no else ""
        if not why:
            _permit(intent, records[number], name, rng)
        expected[number] = dict(records[number])
        wish = _wish(intent, number, records[number], domain, name, rng)
        wishes.append(wish)
        if intent.tool and not why:
            expected[number][intent.field] = intent.becomes or wish.value
        else:
            told.append(_verdict(intent, number, records[number], why))
    order = sorted(records)
    payload: dict[str, Any] = {
        "domain": domain.name,
        "records": {n: records[n] for n in order},
        "wishes": [asdict(wish) | {"told": list(wish.told)} for wish in wishes],
        "expected": {n: expected[n] for n in order},
        "told": [asdict(verdict) | {"words": list(verdict.words)} for verdict in told],
    }
    text = json.dumps(payload, sort_keys=True)
    kind = first.name if not refused[0] else f"{first.name}, refused"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Task(f"{domain.name}-{digest}", kind, domain.name, payload)


def _record(domain: Domain, rng: random.Random) -> dict[str, str]:
    values = {field: rng.choice(values) for field, values in domain.fields.items()}
    return {OWNER: rng.choice(PEOPLE), **values}


def _permit(intent: Intent, record: dict[str, str], name: str, rng: random.Random) -> None:
    """Make the record one for which the policy allows the wish."""
    record[OWNER] = name
    if intent.allowed:
        record[STATUS] = rng.choice(intent.allowed)


def _settle(
    intent: Intent, record: dict[str, str], domain: Domain, name: str, rng: random.Random
) -> str:
    """Make the record one for which the policy forbids the wish; the reason's field."""
    barred = [s for s in domain.fields[STATUS] if s not in intent.allowed and s != intent.becomes]
    if intent.allowed and barred and rng.random() < 2 / 3:
        record[OWNER], record[STATUS] = name, rng.choice(barred)
        return STATUS
    record[OWNER] = rng.choice([person for person in PEOPLE if person != name])
    if intent.allowed:
        record[STATUS] = rng.choice(intent.allowed)
    return OWNER


def _wish(
    intent: Intent,
    number: str,
    record: Records | dict[str, str],
    domain: Domain,
    name: str,
    rng: random.Random,
) -> Wish:
    others = [v for v in domain.fields[intent.field] if v != record[intent.field]]
    value = rng.choice(others) if intent.chosen else ""
    parts = ("number", "name", "value") if value else ("number", "name")
    told = tuple(part for part in parts if rng.random() < 0.4)
    greeting = rng.choice(("", "please ", "hello, "))
    return Wish(intent.name, number, name, value, told, greeting, rng.random() < 0.2)


def _verdict(intent: Intent, number: str, record: dict[str, str], why: str) -> Verdict:
    if why == OWNER:
        return Verdict(number, "", NOT_OWNER)
    field = why or intent.field
    return Verdict(number, field, (record[field],))
