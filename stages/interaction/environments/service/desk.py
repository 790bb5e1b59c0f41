"""The database of one episode and the calls that read and change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stages.interaction.environments.service.domains import OWNER, STATUS, Domain, Intent
from stages.interaction.trajectory import ToolCall

Record = Mapping[str, str]
Records = Mapping[str, Record]
"""Number -> record."""


class NoSuchRecord(LookupError):
    """A number that is not in the database; the message is for the actor."""


@dataclass(frozen=True)
class Change:
    """A write that a call asks for, and the record it meets."""

    number: str
    intent: Intent
    value: str
    before: Record


class Desk:
    """Records of one kind; whatever a well-formed call asks for is done, policy or not."""

    def __init__(self, domain: Domain, records: Records) -> None:
        self.domain = domain
        self.records: dict[str, dict[str, str]] = {n: dict(row) for n, row in records.items()}

    def find(self, number: str) -> str:
        """A record in words. Raises NoSuchRecord."""
        return record_text(self.domain, number, self._record(number))

    def planned(self, call: ToolCall) -> Change:
        """The change a checked call asks for. Raises NoSuchRecord."""
        intent = self.domain.writers[call.name]
        number = str(call.arguments[self.domain.noun])
        value = intent.becomes or str(call.arguments[intent.field])
        return Change(number, intent, value, dict(self._record(number)))

    def apply(self, change: Change) -> str:
        """Carry a change out; the record afterwards, in words."""
        self._record(change.number)[change.intent.field] = change.value
        return self.find(change.number)

    def _record(self, number: str) -> dict[str, str]:
        if number not in self.records:
            raise NoSuchRecord(f"no {self.domain.noun} {number[:20]}")
        return self.records[number]


def record_text(domain: Domain, number: str, record: Record) -> str:
    """``order 42, owner Ada, status open, item book, city Rome``."""
    fields = (OWNER, STATUS, *(name for name in domain.fields if name != STATUS))
    return ", ".join([f"{domain.noun} {number}", *(f"{name} {record[name]}" for name in fields)])
