"""The sources of the console: the database, the log, durability services, the publisher service of this host.

Each is opened when it is first asked, and never created.  The page shows that a source cannot be opened, and the
console tries again.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from heliograph import options
from heliograph.commands.services.status import ask_service
from heliograph.console.comparison import CopyComparison
from heliograph.console.live.rates import RateHistory
from heliograph.console.live.tail import TailRegistry
from heliograph.console.markup import cut
from heliograph.console.sampling import SampleSource
from heliograph.opening import databases, targets
from pubsub_api import Event
from pubsub_api.runtime.closing import Closeable

if TYPE_CHECKING:
    from durability_service.protocol import ServiceStatus
    from durable_log import LogApi
    from durable_log.log_api import Segment, ShardState, StreamState
    from nb_api import DbApi
    from nb_api.core.directory import DirectoryEntry
    from nb_api.fleet import FleetView
    from pubsub_api import Session
    from shared_subscriptions.groups import GroupView
    from shared_subscriptions.redriving import DeadLetter

OUTBOX_SHOWN_MAX = 1000
OUTBOX_AGE_S = 10.0
"""Changes that wait in the outbox for longer than this are a problem."""
OFFSETS_MAX = 10_000
"""How many offsets of each shard are read at most for one group."""
GROUPS_MAX = 200
"""Further groups are only counted."""
DEAD_LETTERS_MAX = 20
"""How many of the newest dead letters of each group are shown."""
_LETTERS_BACK = 500
"""How many offsets at the end of a shard are searched for dead letters."""
_STATUS_S = 2.0


class _HasClose(Protocol):
    def close(self) -> None: ...


H = TypeVar("H", bound=_HasClose)


class LateHandle(Closeable, Generic[H]):
    """A handle that is opened when it is first needed; after a failure the next call tries again.  May be called from
    any thread."""

    def __init__(self, open_: Callable[[], H]) -> None:
        self._open = open_
        self._lock = threading.Lock()
        self._handle: H | None = None
        self._is_closed = False

    def get(self) -> H:
        """The handle, opened if needed.  Blocks while it is opened; raises what opening raises."""
        with self._lock:
            if self._handle is None:
                self._handle = self._open()
            return self._handle

    @property
    def opened(self) -> H | None:
        return self._handle

    def close(self) -> None:
        self._is_closed = True
        if self._handle is not None:
            self._handle.close()


@dataclasses.dataclass(frozen=True)
class RegisteredPublisher:
    entry: DirectoryEntry
    unchanged_s: float
    """Time since the console saw the last renewal."""
    is_late: bool
    """At least two renewals are missing."""


@dataclasses.dataclass(frozen=True)
class DatabaseView:
    fleet: FleetView
    publishers: list[RegisteredPublisher]
    comparison: dict[str, str]
    """Member -> how its copies compare with those of others (`CopyComparison`)."""
    outbox: int
    """Changes that wait in the outbox for longer than `OUTBOX_AGE_S`; `OUTBOX_SHOWN_MAX` means that many or more."""


class DatabaseReader:
    """Reads the database for the console, again and again.  Use it from one thread."""

    def __init__(self, handle: LateHandle[DbApi], rates: RateHistory) -> None:
        from nb_api.coordination.leases import lease_clock
        from pubsub_api.core.leases import LeaseProgress

        self._handle = handle
        self._rates = rates
        self._clock = lease_clock
        self._progress = LeaseProgress()
        self._comparison = CopyComparison()
        self._observer: Any = None

    def read(self) -> DatabaseView:
        """Blocks while the database is read.  Raises HeliographError."""
        from nb_api.coordination.lease_config import read_discovery
        from nb_api.core.directory import TABLE, read_entry
        from nb_api.fleet import FleetObserver

        db = self._handle.get()
        if self._observer is None:
            self._observer = FleetObserver(db)
        fleet = self._observer.look()
        self._rates.add("Received/s", _sum(one.received_per_s for one in fleet.members))
        self._rates.add("Published/s", _sum(one.published_per_s for one in fleet.members))
        self._rates.add("Members that are not ok", sum(one.state != "ok" for one in fleet.members))
        with contextlib.closing(db.snapshot(tables=[TABLE])) as snapshot:
            found = list(snapshot)
        self._progress.observe({one.key: one.version for one in found}, self._clock())
        late_s = 2.5 * read_discovery(db.conf).renew_interval_s
        publishers = []
        for one in found:
            entry, idle_s = read_entry(one), self._progress.idle_s(one.key)
            if entry is not None:
                publishers.append(RegisteredPublisher(entry, idle_s, idle_s > late_s))
        outbox = db.unpublished(older_than_s=OUTBOX_AGE_S, limit=OUTBOX_SHOWN_MAX)
        return DatabaseView(fleet, publishers, self._comparison.observe(fleet.members), len(outbox))


def _sum(rates: Iterable[float | None]) -> float | None:
    """The sum of the known rates; None when none is known."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


@dataclasses.dataclass(frozen=True)
class LogView:
    identity: str
    shards: list[ShardState]
    segments: list[Segment]
    streams: list[tuple[int, StreamState]]
    groups: list[GroupView]
    groups_left_out: int
    dead_letters: dict[str, int]
    """Group -> how many of its dead letters in this log were not redriven."""
    newest_letters: list[tuple[str, DeadLetter]]
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Topic -> events a second since the last reading."""


def count_missing(stream: StreamState) -> int:
    """How many events of a stream are not in the log."""
    return sum(last - first + 1 for first, last in stream.missing)


class LogReader:
    """Reads the log for the console, again and again.  Use it from one thread."""

    def __init__(self, handle: LateHandle[LogApi], rates: RateHistory) -> None:
        self._handle = handle
        self._rates = rates
        self._before: tuple[float, collections.Counter[str]] | None = None

    def read(self) -> LogView:
        """Blocks while the log is read.  Raises HeliographError."""
        found = read_log(self._handle.get())
        counts = collections.Counter[str]()
        for _, stream in found.streams:
            counts[stream.topic] += stream.last - count_missing(stream)
        before, now = self._before, time.monotonic()
        self._before = (now, counts)
        self._rates.add("Lag of all groups", float(sum(one.lag for one in found.groups)))
        if before is None:
            return found
        passed_s = max(now - before[0], 0.001)
        rates = {topic: max(0, count - before[1][topic]) / passed_s for topic, count in counts.items()}
        self._rates.add("Recorded/s", sum(rates.values()))
        return dataclasses.replace(found, rates=rates)


def read_log(log: LogApi) -> LogView:
    """The state of the log and its groups now, without rates.  Blocks.  Raises HeliographError."""
    from shared_subscriptions import groups, redriving
    from shared_subscriptions.errors import GroupNotFound

    states = log.state()
    streams = [(state.shard, stream) for state in states for stream in log.streams(state.shard)]
    names = groups.names(log)
    views = []
    for name in names[:GROUPS_MAX]:
        with contextlib.suppress(GroupNotFound):  # destroyed meanwhile
            views.append(groups.show(log, name, offsets_max=OFFSETS_MAX))
    topics = {redriving.topic_of(name): name for name in names}
    parked = [(topics[one.topic], shard, one) for shard, one in streams if one.topic in topics]
    counts: dict[str, int] = {}
    for group, _, stream in parked:
        counts[group] = counts.get(group, 0) + stream.last
    newest = []
    for group in list(counts):
        done = redriving.progress(log, group)
        counts[group] -= min(done.letters, counts[group])
        # Only the end of the shard is searched; there may be older letters.
        found = redriving.letters(log, group, max(done.until, redriving.end_of(log, group) - _LETTERS_BACK))
        late = collections.deque(map(_short, found), maxlen=DEAD_LETTERS_MAX)
        newest += [(group, letter) for letter in reversed(late)]
    counts = {group: count for group, count in counts.items() if count}
    return LogView(log.identity, states, log.segments(), streams, views, len(names) - len(views), counts, newest)


def _short(letter: DeadLetter) -> DeadLetter:
    """The letter without its value, which may be large."""
    event = letter.event
    shown = Event(topic=event.topic, table=cut(event.table), key=cut(event.key), action=event.action)
    return dataclasses.replace(letter, event=shown, reason=cut(letter.reason, 400))


class ConsoleSources(Closeable):
    """All sources of a console, from the options of its command."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Opens no connection yet.  Raises InvalidConfig."""
        self._stack = contextlib.ExitStack()
        self._is_closed = False
        self.expected: int | None = args.expect
        """How many members there should be, from ``--expect``."""
        self.allows_actions = False
        """Set by the server of the console when it has an admin token."""
        self.rates = RateHistory()
        self.db, self.log_handle, session, client = self._handles(args)
        is_named = bool(args.config_file)
        self.database: SampleSource[DatabaseView] = SampleSource(
            "database", f"the database{_place('db', args.db)}", DatabaseReader(self.db, self.rates).read,
            interval_s=1.0,
        )  # fmt: skip
        self.log: SampleSource[LogView] = SampleSource(
            "log", f"the log{_place('log', args.log)}", LogReader(self.log_handle, self.rates).read,
            interval_s=5.0, is_expected=args.log is not None,
        )  # fmt: skip
        self.durability: SampleSource[list[ServiceStatus]] = SampleSource(
            "durability", f"durability services{_place('bus', args.bus)}",
            (lambda: _answers(client.get())) if is_named or args.bus is not None else None,
            interval_s=5.0, is_expected=False,
        )  # fmt: skip
        self.tails: TailRegistry | None = None
        """None without ``--tail``."""
        if args.tail is not None:
            self.tails = self._stack.enter_context(TailRegistry(session.get, shows_values=args.tail == "values"))
        conf = databases.read_service_conf(args)

        def ask() -> dict[str, Any]:
            if self.tails is not None:
                self.tails.close_unseen()  # here, because this source is always asked
            return ask_service(conf, _STATUS_S)

        self.service: SampleSource[dict[str, Any]] = SampleSource(
            "service", "the publisher service of this host", ask, interval_s=2.0, is_expected=False,
        )  # fmt: skip

    def _handles(
        self, args: argparse.Namespace
    ) -> tuple[LateHandle[DbApi], LateHandle[LogApi], LateHandle[Session], LateHandle[Any]]:
        def open_db() -> DbApi:
            from nb_api import loading
            from pubsub_api.config import new_conf

            return loading.open_db(args.db, new_conf(args.config_file), with_outbox=False, must_exist=True)

        def open_log() -> LogApi:
            import durable_log

            return durable_log.open(args.log, config_files=args.config_file, must_exist=True)

        def open_client() -> Any:
            from durability_service.client import DurabilityClient

            return DurabilityClient(session.get())

        db, log, client = LateHandle(open_db), LateHandle(open_log), LateHandle(open_client)
        session = LateHandle(lambda: options.open_session(args))
        for handle in (db, log, session, client):
            self._stack.enter_context(handle)
        return db, log, session, client

    def all(self) -> tuple[SampleSource[Any], ...]:
        return self.database, self.log, self.durability, self.service

    def close(self) -> None:
        """Idempotent."""
        self._is_closed = True
        self._stack.close()


def _place(option: str, url: str | None) -> str:
    return f" {targets.as_options({option: url}).partition(' ')[2]}" if url else ""


def _answers(client: Any) -> list[ServiceStatus]:
    from durability_service.errors import NoService

    services: list[ServiceStatus] = client.status(timeout_s=_STATUS_S)
    if not services:
        raise NoService(f"no durability service answered within {_STATUS_S:g} s")
    return services
