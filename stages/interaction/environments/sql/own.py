"""A person's own database and questions."""

from __future__ import annotations


def load(options):
    return None
