"""What outlives the simulated provider's process, where it is given a state file.

It owns one SQLite file of things by kind and key, in the order in which they first came. What is committed
survives the process being killed, which is what tests of restarts do; it does not promise to survive the
machine (`synchronous=OFF`). Without a file it does nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS thing (
    position INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    raw BLOB,
    UNIQUE (kind, name)
)
"""
_PUT = """
INSERT INTO thing (kind, name, value, raw) VALUES (?, ?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET value = excluded.value, raw = coalesce(excluded.raw, raw)
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A thing that was kept: its name within its kind, its fields and its bytes."""

    name: str
    value: dict[str, Any]
    raw: bytes


class Journal:
    """The state file of one provider, or nothing. Raises ValueError for a file that cannot be used."""

    def __init__(self, path: Path | str | None = None) -> None:
        self._connection: sqlite3.Connection | None = None
        if path is None:
            return
        try:
            self._connection = sqlite3.connect(path)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=OFF")
            self._connection.execute(_SCHEMA)
        except sqlite3.DatabaseError as error:
            self.close()
            raise ValueError(f"{path}: cannot be used as a state file of the simulator: {error}") from None

    @property
    def is_on(self) -> bool:
        """Tell whether anything is kept."""
        return self._connection is not None

    def put(self, kind: str, name: str, value: Mapping[str, object], raw: bytes | None = None) -> None:
        """Keep a thing, in the place of its earlier version; without `raw` the earlier bytes stay."""
        if self._connection is not None:
            self._connection.execute(_PUT, (kind, name, json.dumps(value), raw))

    def drop(self, kind: str, name: str) -> None:
        """Keep a thing no longer."""
        if self._connection is not None:
            self._connection.execute("DELETE FROM thing WHERE kind = ? AND name = ?", (kind, name))

    def drop_all(self, kind: str) -> None:
        """Keep nothing of a kind."""
        if self._connection is not None:
            self._connection.execute("DELETE FROM thing WHERE kind = ?", (kind,))

    def all_of(self, kind: str) -> Iterator[Entry]:
        """Yield the things of a kind in the order in which they first came."""
        if self._connection is None:
            return
        rows = self._connection.execute(
            "SELECT name, value, raw FROM thing WHERE kind = ? ORDER BY position", (kind,)
        )
        for name, value, raw in rows:
            yield Entry(name, json.loads(value), raw or b"")

    def commit(self) -> None:
        """Make all that was put survive the process."""
        if self._connection is not None and self._connection.in_transaction:
            self._connection.commit()

    def start_afresh(self) -> Journal:
        """Forget everything and hand the file over to a new journal; this one keeps nothing from now on.

        So work that is still going on cannot write into what comes after it.
        """
        successor = Journal()
        successor._connection, self._connection = self._connection, None
        if successor._connection is not None:
            successor._connection.execute("DELETE FROM thing")
            successor._connection.commit()
        return successor

    def close(self) -> None:
        """Close the file; what was not committed is lost."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
