"""NbApi: what a program writes and reads objects with, so that all that follow them are told.

A write is one transaction of the database: the object with its new version, the change in the feed and in the outbox.
Then it is published, by a thread of its own, and taken out of the outbox.  Without a bus (``[pubsub]
enable_df_pub_sub`` false, the default) there is no outbox either: controllers follow the database's own feed.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from oslo_config import cfg

from nb_api import config, notify_config
from nb_api.cache.snapshot_source import may_stand_in
from nb_api.coordination.snapshot_limit import PROCESS_DELTAS_MAX, PROCESS_READERS_MAX, ProcessTurns
from nb_api.core.writes import committed_changes
from nb_api.db_api import Change, DbApi, DbObject, Write
from nb_api.errors import DbUnavailable, VersionConflict
from nb_api.late_db import LateDb
from nb_api.loading import build_db
from nb_api.models.table import DeclaredTables, Table
from nb_api.opening import settle
from nb_api.writing.after_commit import AfterCommitCounters, AfterCommitPublisher
from nb_api.writing.compaction import CompactionCounters, FeedCompactor
from nb_api.writing.publishing import ChangePublisher, change_publisher, uses_service
from nb_api.writing.sweeper import OutboxSweeper, SweepCounters
from nb_api.writing.transaction import Transaction
from pubsub_api import Session, tracing
from pubsub_api import open as open_session
from pubsub_api.config import GROUP, check_group
from pubsub_api.core.frame import FRAME_OVERHEAD_BYTES_MAX
from pubsub_api.core.headers import NO_HEADERS, write_headers
from pubsub_api.errors import InvalidConfig, UsageError
from pubsub_api.runtime import forking
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.durations import DurationCounter, DurationHistogram

LOG = logging.getLogger(__name__)

T = TypeVar("T")

_CONFLICT_PAUSE_S = 0.002
_ENVELOPE_BYTES = 4096
"""What an event takes beyond its value, in the worst case: names of 255 characters and the frame around it."""


@dataclasses.dataclass(frozen=True)
class NbStatistics:
    """Counters of this process since its `NbApi` was opened, or since the fork."""

    writes: int
    """Transactions committed."""
    unchanged: int
    """Updates and puts that changed nothing, and so wrote and told nothing."""
    conflicts: int
    """Updates tried again because another writer was faster."""
    mismatches: int
    """Values that did not fit the class of their table (`nb_api.models`): refused, or read and left as they are."""
    handover: AfterCommitCounters
    sweeper: SweepCounters
    compactor: CompactionCounters
    commit_seconds: DurationHistogram
    """How long commits took, those that raised included."""


class NbApi(Closeable):
    """Objects in a database, with notifications.  Every method may be called from any thread; made by `NbApi.open`.

    Fork-safe: a child opens connections and a publisher of its own when it first needs them.  All methods raise
    DbUnavailable after a bounded time when the database cannot be reached; whether a write happened is then not known,
    but if it did, it will be published.
    """

    def __init__(self, conf: cfg.ConfigOpts, db: DbApi, session: Session | None) -> None:
        """``session`` None: there is no bus.  Takes both over and closes them."""
        self._conf = conf
        self._db = db
        self._session = session
        self._is_closed = False
        self._declared = DeclaredTables()
        self._traces = tracing.active
        self._attempts_max: int = notify_config.UPDATE_ATTEMPTS_MAX
        self._publisher: ChangePublisher | None = None
        self._after_commit: AfterCommitPublisher | None = None
        self._sweeper: OutboxSweeper | None = None
        if session is not None:
            self._publisher = change_publisher(session, db)
            self._after_commit = AfterCommitPublisher(db, self._publisher, conf)
            self._sweeper = OutboxSweeper(db, self._publisher, conf, in_hand=self._after_commit.in_hand)
        self.snapshot_turns, self.delta_turns = ProcessTurns(PROCESS_READERS_MAX), ProcessTurns(PROCESS_DELTAS_MAX)
        """Of the local caches that are made with this object."""
        self._compactor = FeedCompactor(db, conf)
        has_service = session is not None and uses_service(session)
        self._upkeep = [] if has_service else self._compactor.threads()
        """What this process does for the database from its first write on."""
        if self._sweeper is not None and not has_service:
            self._upkeep.append(self._sweeper.thread())
        self._reset()
        forking.register(self)

    def _reset(self) -> None:
        self._is_kept_up = False
        self._writes = self._unchanged = self._conflicts = 0
        self._commit_seconds = DurationCounter()

    def after_fork_in_child(self) -> None:
        self._reset()

    @classmethod
    def open(
        cls,
        url: str | None = None,
        *,
        bus: str | None = None,
        config_files: Iterable[str | os.PathLike[str]] | None = None,
        conf: cfg.ConfigOpts | None = None,
    ) -> NbApi:
        """Connect to the database at ``url``, and tell of its changes on ``bus``.  Close it when done.

        URLs count before the configuration: files, or any parsed oslo.config object as ``conf``, on which what it lacks
        is registered.  With no argument the environment configures it (`pubsub_api.opening`).  Opens no link to a bus;
        that happens with the first write.  A database that is away is no error when ``[local_cache] resync_source``
        can stand in for it.

        Raises NoDatabase when nothing names one, InvalidConfig, DbUnavailable, and what loading a driver raises.
        """
        url, conf = settle(url, bus, config_files, conf)
        notify_config.register(conf)
        session = open_session(conf=conf) if conf[GROUP].enable_df_pub_sub else None
        db = build_db(url, conf, with_outbox=session is not None)
        try:
            _check(conf, has_bus=session is not None)
            return cls(conf, _initialized(db), session)
        except BaseException:
            db.close()
            if session is not None:
                session.close()
            raise

    # -- writing

    def create(self, table: str, key: str, value: Any, *, topic: str) -> int:
        """Add an object; returns its version.  Raises ObjectExists, InvalidObject, InvalidTopic, LimitReached."""
        return self._apply([Write("create", table, key, value, topic)])[0]

    def update(
        self,
        table: str,
        key: str,
        value: Any | Callable[[Any], Any],
        *,
        topic: str | None = None,
        expected_version: int | None = None,
    ) -> int:
        """Give an object a new value; returns its version.  ``topic`` None keeps the topic.

        One round trip to the database, unless ``value`` is a function from the present value to the new one, which is
        read first.  The function is called again when another writer changed the object meanwhile, so that no update is
        lost; at most a hundred times.  With ``expected_version`` there is one attempt.  An update that changes neither
        value nor topic writes nothing and publishes nothing; the present version is returned.

        Raises ObjectNotFound, VersionConflict, InvalidObject, InvalidTopic, LimitReached, and what the function raises.
        """
        if not callable(value):
            return self._apply([Write("set", table, key, value, topic, expected_version, if_changed=True)])[0]
        for attempt in range(self._attempts_max):
            try:
                return self._update_by(value, table, key, topic, expected_version)
            except VersionConflict:
                if expected_version is not None or attempt == self._attempts_max - 1:
                    raise
                self._conflicts += 1
                time.sleep(random.uniform(0, _CONFLICT_PAUSE_S) * min(attempt, 10))
        raise AssertionError("update_attempts_max is at least 1")

    def _update_by(
        self, function: Callable[[Any], Any], table: str, key: str, topic: str | None, expected_version: int | None
    ) -> int:
        found = self._db.get(table, key)
        if expected_version not in (None, found.version):
            raise VersionConflict(f"{table} {key!r} has version {found.version}, not {expected_version} as expected")
        wanted = function(found.value)
        return self._apply([Write("set", table, key, wanted, topic, found.version, if_changed=True)])[0]

    def delete(self, table: str, key: str, *, expected_version: int | None = None) -> int:
        """Remove an object; returns the version of its tombstone.  Raises ObjectNotFound, VersionConflict.  A delete
        that is refused publishes nothing."""
        return self._apply([Write("delete", table, key, expected_version=expected_version)])[0]

    def put(self, table: str, key: str, value: Any, *, topic: str, expected_version: int | None = None) -> int:
        """Create the object, or give it this value and topic when it exists; returns its version.  One round trip.

        A put that changes nothing writes nothing and publishes nothing; the present version is returned.  Raises
        InvalidObject, InvalidTopic, LimitReached, and with ``expected_version`` as `update`.
        """
        return self._apply([Write("put", table, key, value, topic, expected_version)])[0]

    def transaction(self, *, headers: Mapping[str, str] = NO_HEADERS) -> Transaction:
        """``with nb.transaction() as txn:`` collects writes that happen all or not at all, and are told together.

        ``headers`` are those of the events that tell of them (`pubsub_api.Event`), as long as this process publishes
        them itself: the database does not keep headers.  Raises UsageError for headers that no event can have.
        """
        if headers is NO_HEADERS:
            return Transaction(self._apply, self.table)
        try:
            write_headers(headers)
        except ValueError as error:
            raise UsageError(str(error)) from error
        return Transaction(functools.partial(self._apply, headers=dict(headers)), self.table)

    def table(self, cls: type[T]) -> Table[T]:
        """The table that a class is declared for (`nb_api.models`), with instances as values.

        From now on everything that this object writes to the table must fit the class.  Raises UsageError.
        """
        return Table(self, self._declared.model(cls), self._declared.mismatches)

    def _apply(self, writes: Sequence[Write], headers: Mapping[str, str] = NO_HEADERS) -> list[int]:
        if not writes:
            return []
        if self._declared:
            self._declared.check(writes)
        checked = self._db.check(writes)
        began = time.monotonic()
        try:
            if self._traces is None:
                written = self._db.commit(checked)
            else:
                with self._traces.commit(len(checked), headers) as with_context:
                    written = self._db.commit(checked)
                headers = with_context
        finally:
            self._commit_seconds.add(time.monotonic() - began)
        changes = committed_changes(checked, written, headers)
        self._unchanged += len(written) - len(changes)
        if changes:
            self._committed(changes)
        return [outcome.version for outcome in written]

    def allocate(self, name: str) -> int:
        """The next number, from 1, of the named counter: never the same twice, not even after a crash."""
        return self._db.allocate(name)

    def _committed(self, changes: Sequence[Change]) -> None:
        """Something was written."""
        self._writes += 1
        if self._after_commit is not None:
            self._after_commit.put(changes)
        if not self._is_kept_up:  # else the next write tries again
            self._is_kept_up = all(thread.try_start() for thread in self._upkeep)

    # -- reading

    def get(self, table: str, key: str) -> DbObject:
        """Raises ObjectNotFound."""
        return self._db.get(table, key)

    def get_all(self, table: str, *, topics: Sequence[str] | None = None) -> list[DbObject]:
        """The objects of a table whose topic any of the filters selects, by key; as of one moment."""
        with self._db.snapshot([table], topics) as snapshot:
            return sorted(snapshot, key=lambda found: found.key)

    # -- the rest

    def _about(self) -> str:
        return f"{self._db!r} {'without a bus' if self._session is None else repr(self._session)}"

    @property
    def conf(self) -> cfg.ConfigOpts:
        return self._conf

    @property
    def db(self) -> DbApi:
        """The database itself.  What is written to it directly is not published before it is swept."""
        return self._db

    @property
    def session(self) -> Session | None:
        """The session on the bus, None when there is none."""
        return self._session

    @property
    def publisher(self) -> ChangePublisher | None:
        """Where changes are published; None when there is no bus."""
        return self._publisher

    def flush(self, *, timeout_s: float) -> None:
        """Return when everything this process has written is published and out of the outbox.  Raises WaitTimeout."""
        if self._after_commit is not None:
            self._after_commit.flush(timeout_s=timeout_s)

    def statistics(self) -> NbStatistics:
        return NbStatistics(
            self._writes,
            self._unchanged,
            self._conflicts,
            self._declared.mismatches.count,
            dataclasses.replace(self._after_commit.counters) if self._after_commit else AfterCommitCounters(),
            dataclasses.replace(self._sweeper.counters) if self._sweeper else SweepCounters(),
            dataclasses.replace(self._compactor.counters),
            self._commit_seconds.read(),
        )

    def close(self) -> None:
        """Publish what waits, for at most ``PUBLISH_TIMEOUT_S``, and release everything.  Idempotent."""
        self._is_closed = True
        for thread in self._upkeep:
            thread.ask_to_stop()
        if self._after_commit is not None:
            self._after_commit.close()
        for thread in self._upkeep:
            thread.stop()
        if self._publisher is not None:
            self._publisher.close()
        if self._session is not None:
            self._session.close()
        self._db.close()


def _initialized(db: DbApi) -> DbApi:
    """Raises DbUnavailable, InvalidConfig."""
    try:
        db.initialize()
    except DbUnavailable as error:
        if not may_stand_in(db.conf):
            raise
        LOG.warning("NbApi: the database is away; until it is back, others stand in for it: %s", error)
        return LateDb(db)
    return db


def _check(conf: cfg.ConfigOpts, *, has_bus: bool) -> None:
    """Refuse what would fail later, one write at a time.  Raises InvalidConfig."""
    check_group(conf, config.GROUP, notify_config.NOTIFY_OPTIONS, others=config.OPTIONS)
    check_group(conf, notify_config.CACHE_GROUP, notify_config.CACHE_OPTIONS)
    options = conf[config.GROUP]
    room = conf[GROUP].frame_bytes_max - 2 * FRAME_OVERHEAD_BYTES_MAX - _ENVELOPE_BYTES
    if has_bus and options.value_bytes_max > room:
        raise InvalidConfig(
            f"[db] value_bytes_max = {options.value_bytes_max} is more than an event can carry with [pubsub] "
            f"frame_bytes_max = {conf[GROUP].frame_bytes_max}: at most {room}"
        )
