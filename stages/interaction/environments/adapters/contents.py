"""Message contents of other packages as the plain text our actors read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stages.common.errors import UsageError


def plain_text(content: Any, where: str) -> str:
    """Text as it is, text blocks joined, None as nothing. UsageError on images and the like."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, Sequence):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        if len(texts) == len(content) and all(isinstance(text, str) for text in texts):
            return "".join(str(text) for text in texts)
    raise UsageError(f"{where} gives content that is no text; only text is supported here.")
