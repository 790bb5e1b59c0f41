"""Domains of training tasks alone: many more schemas to read than there are domains."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from stages.interaction.environments.sql.lexicon import BY_NAME, Domain
from stages.interaction.environments.sql.vocabulary import INVENTED, invented

MIXED = "mixed"
_AND = "+"


def mixed_name(names: Sequence[str], rng: random.Random) -> str:
    """The name of a domain put together from those of ``names``, any of them more than once."""
    return _AND.join(rng.choice(names) for _ in range(4))


@lru_cache(maxsize=4096)
def domain_of(name: str) -> Domain:
    """The domain of a name.

    ``shop+clinic+farm+music``: orders of doctors, the orders described by the columns of animals
    and the doctors by those of artists.
    """
    if name.startswith(INVENTED):
        return invented(name)
    if _AND not in name:
        return BY_NAME[name]
    child, parent, child_columns, parent_columns = (BY_NAME[n] for n in name.split(_AND))
    return Domain(
        MIXED,
        replace(child.child, columns=child_columns.child.columns),
        replace(parent.parent, columns=parent_columns.parent.columns),
        child.extra,
    )
