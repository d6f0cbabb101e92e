"""The contract of a database driver: objects with versions, and one feed of changes in commit order.

A database keeps *objects*, each named by table and key, belonging to a topic, with a value of plain msgpack types.
Every committed change gets the next *revision*, one counter for the whole database.  The revision of the last change of
an object is its *version*.  A delete is a change too: it leaves a tombstone with a version, kept for a configured time.

The feed is what everything else is built on.  Its rule: once a caller has seen revision *n* in it, no change with a
revision of *n* or lower appears later.  A store whose counter is handed out before commit must not show a change while
an older one may still commit.

A database has a *history*, and may lose it: a backup is put back, a file is replaced, a server comes back empty.  Then
other changes follow, and they never get the revisions that were lost (`nb_api.revisions`).  So a revision that was seen
is part of the history or it is not, however far the database has come since, and everything that goes on from a
revision asks for that first.

The outbox is the set of changes that are not confirmed as published.  It is written in the same transaction as the
change, so a writer that dies between commit and publication loses nothing.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple
from urllib.parse import SplitResult

from oslo_config import cfg

from nb_api import config
from nb_api.core.changes import Action, Change, DbObject, Write, Written
from nb_api.core.digests import StoredDigests, add_up
from nb_api.core.writes import CheckedWrite, WriteLimits, check_writes
from nb_api.revisions import HistoryCheck
from pubsub_api.errors import NotSupported
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.plugins import without_password

__all__ = ["Action", "Change", "DbApi", "DbObject", "Snapshot", "ToldReport", "Write", "Written"]


class ToldReport(NamedTuple):
    """What was there when a report was told."""

    before: bytes | None
    """Under the same name."""
    total: int
    """Reports of all names, more or less."""


class Snapshot(Closeable):
    """All objects that were asked for, as of one revision.  Iterate once; close it when you stop early."""

    @property
    @abc.abstractmethod
    def revision(self) -> int:
        """Every change up to this revision is in the snapshot and none after it."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[DbObject]:
        """The objects, in no particular order, read in portions of bounded size.  Raises DbUnavailable."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release what the snapshot holds in the database.  Idempotent."""


class DbApi(abc.ABC):
    """A database.  Every method may be called from any thread and from several processes at once.

    Arguments obey the rules of `nb_api.core.checks`, which come first: InvalidObject, InvalidTopic, LimitReached (a
    value that is too large) and UsageError are raised before the database is asked.  All methods raise DbUnavailable
    after a bounded time when the database cannot be reached, and Closed after `close`.

    Revisions and versions rise; they skip numbers.  None is given twice, also not by a database that was restored.

    After ``fork()`` a child's copy opens connections of its own at its next call and never touches inherited ones.
    """

    options: ClassVar[Mapping[str, Sequence[cfg.Opt]]] = {}
    """Option group -> options that this driver adds.  Registered on ``conf`` before the constructor is called."""

    uses_tls: ClassVar[bool] = False
    """False: certificates in ``[db]`` are refused, because nothing would be encrypted with them."""

    with_outbox: bool = True
    """False: changes made through this object count as published.  For a program without a bus, which would not confirm
    them.  Changes of Heliograph's own tables (`nb_api.core.own_tables`) count as published in any case."""

    transaction_limit: ClassVar[int] = 10_000
    """How many writes one transaction of this kind of database can take, whatever is configured."""

    def __init__(self, conf: cfg.ConfigOpts, url: SplitResult) -> None:
        self.conf = conf
        self.url = url
        count_max = min(self.transaction_limit, config.TRANSACTION_WRITES_MAX)
        self._write_limits = WriteLimits(
            count_max, config.transaction_bytes_max(conf), conf[config.GROUP].value_bytes_max
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {without_password(f'{self.url.scheme}://{self.url.netloc}{self.url.path}')}>"

    def exists(self) -> bool:
        """Whether there is a database that `initialize`, which is called after this, would not make.  Makes nothing.  A
        driver that makes nothing, or cannot tell, says True.  Raises DbUnavailable."""
        return True

    @abc.abstractmethod
    def initialize(self) -> None:
        """Connect and create what is missing (tables, scripts).  Safe to call from many processes at once.
        Raises DbUnavailable, InvalidConfig."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release every connection and end every `wait`, which returns False.  Idempotent, from any thread."""

    def release_idle(self) -> None:  # noqa: B027  a driver without connections has none to close
        """Close connections that were not used for a while.  Called now and then; never blocks for long."""

    # -- objects

    def create(self, table: str, key: str, value: Any, *, topic: str) -> int:
        """Add an object; returns its version.  Raises ObjectExists.  A key that was deleted may be created again."""
        return self.apply((Write("create", table, key, value, topic),))[0]

    def set(
        self, table: str, key: str, value: Any, *, topic: str | None = None, expected_version: int | None = None
    ) -> int:
        """Replace the value of an object; returns its new version.  ``topic`` None keeps the topic.

        Raises ObjectNotFound, whatever is expected, and VersionConflict when ``expected_version`` is given and is not
        the version.  Then nothing has changed, and the feed shows nothing.
        """
        return self.apply((Write("set", table, key, value, topic, expected_version),))[0]

    def put(self, table: str, key: str, value: Any, *, topic: str, expected_version: int | None = None) -> int:
        """Create the object, or replace its value and topic; returns its version.

        One that has this value and this topic already stays as it is: the feed shows nothing, and its present version
        is returned.  Values are equal when they are equal as msgpack.  Refused only by ``expected_version``, as `set`.
        """
        return self.apply((Write("put", table, key, value, topic, expected_version),))[0]

    def delete(self, table: str, key: str, *, expected_version: int | None = None) -> int:
        """Remove an object and leave a tombstone; returns the tombstone's version.  Raises as `set`."""
        return self.apply((Write("delete", table, key, expected_version=expected_version),))[0]

    def apply(self, writes: Sequence[Write]) -> list[int]:
        """Several writes in one transaction, all or nothing; returns their versions, in order and rising, but for
        those that wrote nothing because the object was so already (`put`, ``Write.if_changed``).

        Each is a change with a revision of its own, and no change of another writer comes between them in the feed.  An
        object may be written once.  Raises what the single calls raise, naming the write that is refused by its
        position, and LimitReached for more than `writes_max` writes, or bytes of values than eight times ``[db]
        value_bytes_max``.
        """
        return [written.version for written in self.commit(self.check(writes))] if writes else []

    def check(self, writes: Sequence[Write]) -> list[CheckedWrite]:
        """The first half of `apply`, which asks no database: the writes as `commit` wants them."""
        return check_writes(writes, self._write_limits, self.with_outbox)

    @property
    def writes_max(self) -> int:
        """How many writes `apply` takes at once."""
        return self._write_limits.count_max

    @abc.abstractmethod
    def commit(self, writes: Sequence[CheckedWrite]) -> list[Written]:
        """The second half of `apply`, for what `check` has returned, which is at least one write: what became of each.

        With the writes that is all that the feed shows of them (`nb_api.core.writes.committed_changes`), so that
        no caller has to read it.  One round trip to the store, two when the driver has to look at the objects first.
        """

    @abc.abstractmethod
    def get(self, table: str, key: str) -> DbObject:
        """The object as of its last committed change.  Raises ObjectNotFound, with the tombstone's version if any."""

    @abc.abstractmethod
    def snapshot(
        self,
        tables: Sequence[str] | None = None,
        topics: Sequence[str] | None = None,
        *,
        buckets: Collection[int] | None = None,
    ) -> Snapshot:
        """The objects of these tables whose topic any of the filters selects; None for all.  ``buckets``: of these,
        those whose version is in one of the buckets (`nb_api.core.digests`)."""

    def digests(
        self, tables: Sequence[str] | None = None, topics: Sequence[str] | None = None, *, by_bucket: bool = False
    ) -> StoredDigests:
        """How many objects a snapshot of now would have, and the sum of their versions, by table; or of each bucket.
        What has none is left out.

        A driver whose store can add up overrides this, which reads the objects.
        """
        with self.snapshot(tables, topics) as snapshot:
            parts = add_up(((found.table, found.version) for found in snapshot), by_bucket=by_bucket)
            return StoredDigests(snapshot.revision, parts)

    @abc.abstractmethod
    def allocate(self, name: str) -> int:
        """The next number, from 1, of the named counter: never the same twice, not even after a crash."""

    # -- changes

    @abc.abstractmethod
    def revision(self) -> int:
        """The newest revision that the feed shows, 0 when there is none."""

    @abc.abstractmethod
    def changes(self, after_revision: int, *, limit: int = 1000) -> list[Change]:
        """Changes after a revision, in order, at most ``limit``.

        Raises RevisionTooOld, and RevisionUnknown for a revision that is not 0 and not one of a change: the caller has
        seen it, so the database has lost its history, whatever has happened to it since.
        """

    @abc.abstractmethod
    def changes_of(self, revisions: Sequence[int]) -> list[Change]:
        """The changes with these revisions that are still there, in order."""

    @abc.abstractmethod
    def check_history(self, revisions: Sequence[int]) -> HistoryCheck:
        """Whether these revisions, all above 0, are part of the history.  One read, of no values."""

    @abc.abstractmethod
    def wait(self, after_revision: int, *, timeout_s: float) -> bool:
        """Block until the feed shows something newer, or the time is over.  True when it does.  Uses the store's own
        notification where there is one.  Raises RevisionUnknown for a revision above the newest one; `changes`
        tells the rest."""

    @abc.abstractmethod
    def compact(self, *, keep_changes: int, keep_tombstones_s: float) -> int:
        """Forget changes but the newest ``keep_changes``, and tombstones older than that by the store's clock.

        What is in the outbox stays there, whole; the feed may then go back further than was asked for, or not.  Objects
        and the counter of revisions are untouched.  Returns how many changes the feed has lost.
        """

    # -- outbox

    @abc.abstractmethod
    def unpublished(self, *, older_than_s: float = 0.0, after_revision: int = 0, limit: int = 1000) -> list[Change]:
        """Changes after a revision that are not confirmed as published, oldest first, at least that old.

        By the store's clock, or because an earlier call has seen them so long ago: a clock that was set hides none for
        longer than that.
        """

    @abc.abstractmethod
    def mark_published(self, revisions: Sequence[int]) -> None:
        """Take changes out of the outbox.  Unknown revisions are ignored."""

    # -- reports

    def tell_report(self, name: str, data: bytes) -> ToldReport:  # noqa: ARG002  a driver may do without
        """Keep ``data`` under a name, in place of what was there: what a process tells of itself (`nb_api.fleet`).

        A report is no object: it has no revision, the feed and the outbox do not show it, and it ends no wait.
        One that a crash of the store takes back is told again soon, so no commit waits for a disk where that can be
        had.  Raises LimitReached for what is too large, NotSupported, DbUnavailable.
        """
        raise NotSupported(f"the database driver {type(self).__name__} keeps no reports")

    def reports(self) -> dict[str, bytes]:
        """All reports by name.  Makes nothing.  Raises NotSupported, DbUnavailable."""
        raise NotSupported(f"the database driver {type(self).__name__} keeps no reports")

    def forget_reports(self, names: Sequence[str]) -> None:  # noqa: ARG002
        """Take reports out.  Unknown names are ignored.  Raises NotSupported, DbUnavailable."""
        raise NotSupported(f"the database driver {type(self).__name__} keeps no reports")
