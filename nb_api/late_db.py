"""A database that was away when it was opened, and is made ready by the first call that reaches it.

For programs that can do without it for a while: a controller that has another source of objects
(`nb_api.cache.snapshot_source`).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from nb_api.core.digests import StoredDigests
from nb_api.core.writes import CheckedWrite
from nb_api.db_api import Change, DbApi, DbObject, Snapshot, ToldReport, Write, Written
from nb_api.revisions import HistoryCheck


class LateDb(DbApi):
    """Passes everything on to ``db``, which is constructed and not yet initialised.  Takes it over and closes it."""

    def __init__(self, db: DbApi) -> None:
        super().__init__(db.conf, db.url)
        self.with_outbox = db.with_outbox
        self._db = db
        self._lock = threading.Lock()
        self._is_ready = False

    def exists(self) -> bool:
        return self._db.exists()

    def initialize(self) -> None:
        with self._lock:
            if not self._is_ready:
                self._db.initialize()
                self._is_ready = True

    def _ready(self) -> DbApi:
        """Raises DbUnavailable, InvalidConfig."""
        if not self._is_ready:
            self.initialize()
        return self._db

    def close(self) -> None:
        self._db.close()

    def release_idle(self) -> None:
        self._db.release_idle()

    @property
    def writes_max(self) -> int:
        return self._db.writes_max

    def check(self, writes: Sequence[Write]) -> list[CheckedWrite]:
        return self._db.check(writes)

    def commit(self, writes: Sequence[CheckedWrite]) -> list[Written]:
        return self._ready().commit(writes)

    def get(self, table: str, key: str) -> DbObject:
        return self._ready().get(table, key)

    def snapshot(
        self,
        tables: Sequence[str] | None = None,
        topics: Sequence[str] | None = None,
        *,
        buckets: Collection[int] | None = None,
    ) -> Snapshot:
        return self._ready().snapshot(tables, topics, buckets=buckets)

    def digests(
        self, tables: Sequence[str] | None = None, topics: Sequence[str] | None = None, *, by_bucket: bool = False
    ) -> StoredDigests:
        return self._ready().digests(tables, topics, by_bucket=by_bucket)

    def allocate(self, name: str) -> int:
        return self._ready().allocate(name)

    def revision(self) -> int:
        return self._ready().revision()

    def changes(self, after_revision: int, *, limit: int = 1000) -> list[Change]:
        return self._ready().changes(after_revision, limit=limit)

    def changes_of(self, revisions: Sequence[int]) -> list[Change]:
        return self._ready().changes_of(revisions)

    def check_history(self, revisions: Sequence[int]) -> HistoryCheck:
        return self._ready().check_history(revisions)

    def wait(self, after_revision: int, *, timeout_s: float) -> bool:
        return self._ready().wait(after_revision, timeout_s=timeout_s)

    def compact(self, *, keep_changes: int, keep_tombstones_s: float) -> int:
        return self._ready().compact(keep_changes=keep_changes, keep_tombstones_s=keep_tombstones_s)

    def unpublished(self, *, older_than_s: float = 0.0, after_revision: int = 0, limit: int = 1000) -> list[Change]:
        return self._ready().unpublished(older_than_s=older_than_s, after_revision=after_revision, limit=limit)

    def mark_published(self, revisions: Sequence[int]) -> None:
        self._ready().mark_published(revisions)

    def tell_report(self, name: str, data: bytes) -> ToldReport:
        return self._ready().tell_report(name, data)

    def reports(self) -> dict[str, bytes]:
        return self._ready().reports()

    def forget_reports(self, names: Sequence[str]) -> None:
        self._ready().forget_reports(names)
