"""Token ids as the pieces of text that they stand for, each piece kept once for a whole page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from stages.evaluation.report.runs import Run

FILE = "tokenizer.json"


class Pieces:
    """Texts by number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def texts(self) -> list[str]:
        """All so far; a number is a place in this list."""
        return list(self._numbers)

    def number(self, text: str) -> int:
        """The number of a text, a new one where it is new."""
        return self._numbers.setdefault(text, len(self._numbers))


class Decoder(Protocol):
    """Token ids to one text each, that joined are the whole."""

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """A character of several tokens stands on its last one."""
        ...


def decoder_of(run: Run) -> Decoder | None:
    """By the run's own tokenizer, or of the stage before it; None where neither can be read."""
    folders = [run.path, *(stage.path for stage in reversed(run.earlier))]
    file = next((f / FILE for f in folders if (f / FILE).is_file()), None)
    return _decoder(file) if file else None


def _decoder(file: Path) -> Decoder | None:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # it raises nothing narrower
        return None
    return partial(_decoded, tokenizer)


def _decoded(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=False)
    try:
        pieces = [stream.step(tokenizer, number) or "" for number in ids]
    except Exception:  # ids whose text changes with what follows, which a stream cannot tell
        return [tokenizer.decode([number], skip_special_tokens=False) for number in ids]
    whole = tokenizer.decode(list(ids), skip_special_tokens=False)
    if rest := whole[len("".join(pieces)) :]:  # bytes that end in the middle of a character
        pieces[-1] += rest
    return pieces
