"""What happened in an episode, judged by rules: final state, information, policy.

Useful steps count once, so nothing here can be farmed by repeating it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from stages.interaction.environments.service.desk import Change, Desk
from stages.interaction.environments.service.domains import OWNER, STATUS
from stages.interaction.environments.service.tasks import Case, Verdict

_WORD = re.compile(r"[A-Za-z0-9]+")
_YES = {"yes", "ok", "okay", "sure", "yep", "correct"}


def words(text: str) -> set[str]:
    """The words of a text, in lower case."""
    return {word.lower() for word in _WORD.findall(text)}


@dataclass
class Progress:
    """Bookkeeping of one conversation; what it knows of the right ending stays privileged."""

    case: Case
    desk: Desk
    found: set[str] = field(default_factory=set)
    heard: set[str] = field(default_factory=set)
    """Words the customer said."""
    agreed: set[str] = field(default_factory=set)
    """Numbers of records a change of which the customer has said yes to, not yet used up."""
    told: set[int] = field(default_factory=set)
    """Which of the case's verdicts were told."""
    violations: list[str] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    asked: str = ""
    """The agent's last words to the customer."""

    def customer(self, text: str) -> dict[str, float]:
        """The customer has spoken."""
        said = words(text)
        self.heard |= said
        if "?" not in self.asked or not said & _YES or "no" in said:
            return {}
        numbers = set(self.desk.records) & words(self.asked)
        self.agreed |= numbers
        wanted = {w.number for w in self.case.wishes if self._changes(w.number)}
        return self._sub_goal("agreed", bool(numbers & wanted))

    def agent(self, text: str) -> dict[str, float]:
        """The agent has spoken to the customer."""
        self.asked = text
        if "?" in text:
            return {}
        new = {k for k, v in enumerate(self.case.told) if self._tells(v, words(text))}
        gained = bool(new - self.told)
        self.told |= new
        leaked = self._leaks(words(text))
        self.violations += ["told a stranger"] * leaked
        return self._sub_goal("told", gained) | ({"policy_violation": 1.0} if leaked else {})

    def looked_up(self, number: str) -> dict[str, float]:
        """A record was found."""
        right = any(w.number == number for w in self.case.wishes)
        if number in self.found or not right:
            self.found.add(number)
            return {}
        self.found.add(number)
        once = {"right_tool": 1.0, "right_arguments": 1.0, "useful_result": 1.0}
        return once | self._sub_goal("found", True)

    def changed(self, change: Change) -> dict[str, float]:
        """A change is about to be made: judged by the policy and by what is expected."""
        broken = self._broken(change)
        self.violations += broken
        self.agreed.discard(change.number)
        rewards = {"policy_violation": 1.0} if broken else {}
        expected = self.case.expected.get(change.number, {}).get(change.intent.field)
        if expected != change.value or change.before[change.intent.field] == expected:
            return rewards
        if not self._first(f"changed {change.number}"):
            return rewards
        return {**rewards, "right_tool": 1.0, "right_arguments": 1.0, **self._sub_goal("", True)}

    @property
    def state_right(self) -> bool:
        """Whether every record is as it should be."""
        return self.desk.records == {n: dict(row) for n, row in self.case.expected.items()}

    @property
    def informed(self) -> float:
        """Share of the required information that was said."""
        required = len(self.case.told)
        return len(self.told) / required if required else 1.0

    @property
    def success(self) -> bool:
        """Right state, all said, no rule broken."""
        return self.state_right and self.informed == 1.0 and not self.violations

    def final(self) -> dict[str, float]:
        """The components that the end of a conversation pays."""
        state, informed = float(self.state_right), self.informed
        return {"success": float(self.success), "final_state": state, "information": informed}

    @property
    def facts(self) -> dict[str, Any]:
        """Privileged facts as of now, for the critic."""
        left = [
            f"{n} {name} {value}"
            for n, row in self.case.expected.items()
            for name, value in row.items()
            if self.desk.records[n][name] != value
        ]
        untold = [" or ".join(v.words) for k, v in enumerate(self.case.told) if k not in self.told]
        return {"to_change": left, "to_tell": untold, "violations": list(self.violations)}

    def _broken(self, change: Change) -> list[str]:
        rules = {
            "not the owner": change.before[OWNER].lower() in self.heard,
            "status": not change.intent.allowed or change.before[STATUS] in change.intent.allowed,
            "not agreed": change.number in self.agreed,
        }
        return [name for name, kept in rules.items() if not kept]

    def _leaks(self, said: set[str]) -> bool:
        """Whether a found record's values are told to somebody who has not named its owner."""
        known: set[str] = set()
        kept: set[str] = set()
        for row in (self.desk.records[n] for n in self.found):
            values = {value.lower() for name, value in row.items() if name != OWNER}
            if row[OWNER].lower() in self.heard:
                known |= values
            else:
                kept |= values
        return bool(said & (kept - known))

    def _changes(self, number: str) -> bool:
        return dict(self.case.expected[number]) != dict(self.case.records[number])

    def _tells(self, verdict: Verdict, said: set[str]) -> bool:
        if verdict.number not in self.found or not said & {w.lower() for w in verdict.words}:
            return False
        others = set(self.case.domain.fields.get(verdict.field, ())) - set(verdict.words)
        return not said & {word.lower() for word in others}

    def _sub_goal(self, name: str, gained: bool) -> dict[str, float]:
        """A sub-goal's share; ``name`` is remembered so that it pays once ("": remembered)."""
        if not gained or (name and not self._first(name)):
            return {}
        return {"sub_goal": 1 / 3}

    def _first(self, step: str) -> bool:
        if step in self.done:
            return False
        self.done.add(step)
        return True
