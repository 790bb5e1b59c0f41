"""A folder's documents and a full-text search over them (SQLite FTS5)."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from stages.common.errors import UsageError

_WORD = re.compile(r"\w+")
_MOST_WORDS = 32
_MOST_FILES, _MOST_BYTES = 10_000, 1_000_000


class Library:
    """Documents by name. ``search`` ranks by BM25; words of the query count, no syntax does."""

    def __init__(self, documents: Mapping[str, str]) -> None:
        self.documents = dict(documents)
        self._index = sqlite3.connect(":memory:", check_same_thread=False)
        self._index.execute("CREATE VIRTUAL TABLE pages USING fts5(name, text, tokenize=porter)")
        # A name's words are searched for like the text's.
        rows = [(name, f"{name.replace('_', ' ')}\n{text}") for name, text in documents.items()]
        self._index.executemany("INSERT INTO pages VALUES (?, ?)", rows)

    def search(self, query: str, limit: int) -> list[tuple[str, str]]:
        """(name, a piece of its text) of the documents that fit best."""
        words = _WORD.findall(query)[:_MOST_WORDS]
        if not words:
            return []
        asked = " OR ".join(f'"{word[:64]}"' for word in words)
        found = self._index.execute(
            "SELECT name, snippet(pages, 1, '', '', '...', 12) FROM pages WHERE pages MATCH ? "
            "ORDER BY bm25(pages), name LIMIT ?",
            (f"text : ({asked})", limit),
        )
        return [(str(name), " ".join(str(text).split())) for name, text in found]

    def close(self) -> None:
        """Free the index."""
        self._index.close()


def read_folder(folder: Path) -> dict[str, str]:
    """All .txt and .md files below a folder. UsageError if there are none, or far too many."""
    if not folder.is_dir():
        raise UsageError(f"environment.documents: {folder} is no folder; give one with .txt files")
    paths = sorted(p for p in folder.rglob("*") if p.suffix in (".txt", ".md") and p.is_file())
    if not 0 < len(paths) <= _MOST_FILES:
        raise UsageError(
            f"environment.documents: {folder} holds {len(paths)} .txt and .md files; expected 1 to "
            f"{_MOST_FILES}"
        )
    return {
        str(path.relative_to(folder)): path.read_bytes()[:_MOST_BYTES].decode("utf-8", "replace")
        for path in paths
    }
