"""The demonstration's database: objects with versions in a SQLite file.

Every change is committed here before it is published, as a program with a real database would do it.  The revision
counts all changes; an object's version is the revision of its last change.
"""

from __future__ import annotations

import pathlib
import sqlite3

Key = tuple[str, str]
"""Topic and key of an object."""
Row = tuple[str, int]
"""Its value and version."""

_BUSY_TIMEOUT_MS = 20_000
_SCHEMA = """
    CREATE TABLE revision (number INTEGER NOT NULL);
    INSERT INTO revision VALUES (0);
    CREATE TABLE object (
        topic TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, version INTEGER NOT NULL,
        PRIMARY KEY (topic, key)
    );
"""


class Truth:
    """One connection to the database.  Its methods may be called from any thread, by one at a time."""

    def __init__(self, path: pathlib.Path, *, create: bool = False) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
        if create:
            # Readers do not block the writer then; and a killed process, unlike a power failure, loses no commit.
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.executescript(_SCHEMA)
        self._connection.execute("PRAGMA synchronous = OFF")

    def change(self, topic: str, key: str, value: str | None) -> int:
        """Set an object, or delete it when ``value`` is None.  Commits, and returns the version of this change."""
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute("UPDATE revision SET number = number + 1")
            version = self.revision()
            if value is None:
                self._connection.execute("DELETE FROM object WHERE topic = ? AND key = ?", (topic, key))
            else:
                row = (topic, key, value, version)
                self._connection.execute("INSERT OR REPLACE INTO object VALUES (?, ?, ?, ?)", row)
        return version

    def revision(self) -> int:
        """How many changes were ever made."""
        number: int = self._connection.execute("SELECT number FROM revision").fetchone()[0]
        return number

    def snapshot(self) -> tuple[int, dict[Key, Row]]:
        """The revision, and every object as of that revision."""
        with self._connection:
            self._connection.execute("BEGIN")
            revision = self.revision()
            rows = self._connection.execute("SELECT topic, key, value, version FROM object").fetchall()
        return revision, {(topic, key): (value, version) for topic, key, value, version in rows}

    def close(self) -> None:
        self._connection.close()


class LocalCopy:
    """What a controller knows: the objects as of the events and snapshots it has seen.  Not thread-safe.

    Changes are applied by version, so that it does not matter whether an event or a snapshot brings one first.
    """

    def __init__(self) -> None:
        self._rows: dict[Key, Row | None] = {}
        self._versions: dict[Key, int] = {}
        self._floor = 0
        """The revision of the last snapshot: every older change is in it."""
        self.revision = 0
        """The newest change that is known."""

    def apply(self, key: Key, value: str | None, version: int) -> None:
        """Take in one change, unless a newer one of the same object is known.  A deleted object is remembered."""
        if version > max(self._floor, self._versions.get(key, 0)):
            self._versions[key] = version
            self._rows[key] = None if value is None else (value, version)
            self.revision = max(self.revision, version)

    def replace(self, revision: int, rows: dict[Key, Row]) -> None:
        """Take in a snapshot; what is known of newer changes stays.  One older than the last has nothing to say."""
        if revision < self._floor:
            return
        newer = {key: version for key, version in self._versions.items() if version > revision}
        kept = {key: self._rows[key] for key in newer}
        self._rows = {**rows, **kept}
        self._versions = {**{key: version for key, (_, version) in rows.items()}, **newer}
        self._floor = revision
        self.revision = max(self.revision, revision)

    def rows(self) -> dict[Key, Row]:
        """The objects that exist."""
        return {key: row for key, row in self._rows.items() if row is not None}
