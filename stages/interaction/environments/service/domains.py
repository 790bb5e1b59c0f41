"""The desks of the service: what is kept there, what can be wished, what the policy allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OWNER, STATUS = "owner", "status"

PEOPLE = [
    "Ada",
    "Ben",
    "Carla",
    "David",
    "Emma",
    "Felix",
    "Grace",
    "Hugo",
    "Ines",
    "Jonas",
    "Karin",
    "Leo",
    "Mara",
    "Nina",
    "Oscar",
    "Paula",
    "Ruth",
    "Simon",
    "Tara",
    "Victor",
    "Wanda",
    "Yusuf",
    "Zoe",
]
_CITIES = ("Rome", "Paris", "Oslo", "Lima", "Cairo", "Vienna")
_SEASONS = ("spring", "summer", "autumn", "winter")


@dataclass(frozen=True)
class Intent:
    """One thing a customer can wish."""

    name: str
    wish: str
    """The customer's words."""
    act: str
    """What the agent asks to be confirmed, with ``{number}`` and ``{value}``; "" for questions."""
    tool: str = ""
    """Tool that does it; "" where only something is to be told."""
    field: str = STATUS
    """The field that changes, or that is asked for."""
    becomes: str = ""
    """The field's new value; "" where the customer chooses it."""
    allowed: tuple[str, ...] = ()
    """States in which the policy allows it; () means any."""

    @property
    def verb(self) -> str:
        """First word of the act: how the change is called."""
        return self.act.partition(" ")[0]

    @property
    def chosen(self) -> bool:
        """Whether the customer chooses the new value."""
        return bool(self.tool) and not self.becomes


@dataclass(frozen=True)
class Domain:
    """One desk: a table of records of one kind. No word is a value of two fields."""

    name: str
    noun: str
    fields: Mapping[str, tuple[str, ...]]
    """Field -> values it may have; ``owner`` is kept apart."""
    intents: tuple[Intent, ...]

    @property
    def finder(self) -> str:
        """Name of the tool that shows a record."""
        return f"find_{self.noun}"

    @property
    def writers(self) -> dict[str, Intent]:
        """Tools that change a record, by name."""
        return {intent.tool: intent for intent in self.intents if intent.tool}

    def intent(self, name: str) -> Intent:
        """By name; KeyError for an unknown one."""
        return {intent.name: intent for intent in self.intents}[name]


def _ask(noun: str, field: str) -> Intent:
    return Intent(f"ask_{field}", f"tell me the {field} of my {noun}", "", field=field)


def _end(noun: str, verb: str, becomes: str, allowed: tuple[str, ...]) -> Intent:
    wish, act = f"{verb} my {noun}", f"{verb} {noun} {{number}}"
    return Intent(verb, wish, act, f"{verb}_{noun}", becomes=becomes, allowed=allowed)


def _change(noun: str, verb: str, field: str, allowed: tuple[str, ...]) -> Intent:
    wish = f"{verb} the {field} of my {noun}"
    act = f"{verb} the {field} of {noun} {{number}} to {{value}}"
    return Intent(f"{verb}_{field}", wish, act, f"{verb}_{field}", field, allowed=allowed)


_ALL = (
    Domain(
        "orders",
        "order",
        {
            STATUS: ("open", "shipped", "returned", "cancelled"),
            "item": ("book", "guitar", "coat", "mirror", "piano"),
            "city": _CITIES,
        },
        (
            _end("order", "cancel", "cancelled", ("open",)),
            _change("order", "change", "city", ("open",)),
            _end("order", "return", "returned", ("shipped",)),
            _change("order", "exchange", "item", ("shipped",)),
            _ask("order", STATUS),
            _ask("order", "city"),
        ),
    ),
    Domain(
        "bookings",
        "booking",
        {
            STATUS: ("open", "paid", "left", "cancelled"),
            "room": ("single", "double", "family", "suite"),
            "season": _SEASONS,
        },
        (
            _end("booking", "cancel", "cancelled", ("open",)),
            _change("booking", "change", "room", ("open",)),
            _change("booking", "move", "season", ("open", "paid")),
            _ask("booking", STATUS),
            _ask("booking", "room"),
        ),
    ),
    Domain(
        "loans",
        "loan",
        {
            STATUS: ("open", "late", "lost"),
            "title": ("poetry", "drama", "history", "crime", "music"),
            "term": _SEASONS,
        },
        (
            _change("loan", "renew", "term", ("open",)),
            _change("loan", "exchange", "title", ("open",)),
            _end("loan", "report", "lost", ("open", "late")),
            _ask("loan", STATUS),
            _ask("loan", "term"),
        ),
    ),
)
DOMAINS: Mapping[str, Domain] = {domain.name: domain for domain in _ALL}
"""By name."""


def policy_text(domain: Domain) -> str:
    """The desk's rules in words, for the actor."""
    noun = domain.noun
    article = "an" if noun[0] in "aeiou" else "a"
    rules = [
        f"{intent.name.replace('_', ' ')}: {' or '.join(intent.allowed)} only"
        for intent in domain.intents
        if intent.tool
    ]
    return (
        f"only the owner of {article} {noun} may know or change it. {'. '.join(rules)}. "
        "ask before a change. if it may not be, say sorry and why. say done when it is done."
    )
