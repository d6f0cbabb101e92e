"""What the console asks: the database, the log, durability services, the publisher service of this host.

Everything is opened when it is first asked, and never made: a place that is not there is told on the page, and asked
again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from heliograph import options
from heliograph.commands.services.status import ask_service
from heliograph.console.comparison import CopyComparison
from heliograph.console.sampling import SampleSource
from heliograph.opening import databases, targets
from pubsub_api.runtime.closing import Closeable

if TYPE_CHECKING:
    from durability_service.protocol import ServiceStatus
    from durable_log import LogApi
    from durable_log.log_api import Segment, ShardState, StreamState
    from nb_api import DbApi
    from nb_api.core.directory import DirectoryEntry
    from nb_api.fleet import FleetView
    from shared_subscriptions.groups import GroupView

OUTBOX_SHOWN_MAX = 1000
OUTBOX_AGE_S = 10.0
"""A change that waits for longer than this should have been published."""
OFFSETS_MAX = 10_000
"""Of each shard, that are looked at for each group."""
GROUPS_MAX = 200
"""That are looked at."""
DEAD_LETTERS_MAX = 20
"""Of each group, that are shown: the newest."""
_LETTERS_BACK = 500
"""Offsets of a shard that are searched for dead letters."""
_STATUS_S = 2.0


class _HasClose(Protocol):
    def close(self) -> None: ...


H = TypeVar("H", bound=_HasClose)


class LateHandle(Closeable, Generic[H]):
    """Something that is opened when it is first needed, and again after a failure.  One thread opens it at a time."""

    def __init__(self, open_: Callable[[], H]) -> None:
        self._open = open_
        self._handle: H | None = None
        self._is_closed = False

    def get(self) -> H:
        """Raises what opening raises."""
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
    """How long the console has seen no renewal."""
    is_late: bool
    """Two renewals at least are missing."""


@dataclasses.dataclass(frozen=True)
class DatabaseView:
    fleet: FleetView
    publishers: list[RegisteredPublisher]
    comparison: dict[str, str]
    """Member -> what holding its copies against those of others has shown."""
    outbox: int
    """Changes that wait to be published for longer than `OUTBOX_AGE_S`; `OUTBOX_SHOWN_MAX` stands for more."""


class DatabaseReader:
    """For one thread."""

    def __init__(self, handle: LateHandle[DbApi]) -> None:
        from nb_api.coordination.leases import lease_clock
        from pubsub_api.core.leases import LeaseProgress

        self._handle = handle
        self._clock = lease_clock
        self._progress = LeaseProgress()
        self._comparison = CopyComparison()
        self._observer: Any = None

    def read(self) -> DatabaseView:
        """Raises HeliographError."""
        from nb_api.coordination.lease_config import read_discovery
        from nb_api.core.directory import TABLE, read_entry
        from nb_api.fleet import FleetObserver

        db = self._handle.get()
        if self._observer is None:
            self._observer = FleetObserver(db)
        fleet = self._observer.look()
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
        return DatabaseView(
            fleet,
            publishers,
            self._comparison.observe(fleet.members),
            len(outbox),
        )


@dataclasses.dataclass(frozen=True)
class DeadLetter:
    group: str
    offset: int
    table: str
    key: str
    topic: str
    reason: str
    attempts: int | None


@dataclasses.dataclass(frozen=True)
class LogView:
    identity: str
    shards: list[ShardState]
    segments: list[Segment]
    streams: list[tuple[int, StreamState]]
    groups: list[GroupView]
    groups_left_out: int
    dead_letters: dict[str, int]
    """Group -> how many were ever parked in this log."""
    newest_letters: list[DeadLetter]


def read_log(log: LogApi) -> LogView:
    """Raises HeliographError."""
    from shared_subscriptions import groups
    from shared_subscriptions.config import DEAD_LETTER_TOPIC
    from shared_subscriptions.errors import GroupNotFound

    states = log.state()
    streams = [(state.shard, stream) for state in states for stream in log.streams(state.shard)]
    names = groups.names(log)
    views = []
    for name in names[:GROUPS_MAX]:
        with contextlib.suppress(GroupNotFound):  # destroyed meanwhile
            views.append(groups.show(log, name, offsets_max=OFFSETS_MAX))
    topics = {DEAD_LETTER_TOPIC.replace("{group}", name): name for name in names}
    parked = [(topics[one.topic], shard, one) for shard, one in streams if one.topic in topics]
    counts: dict[str, int] = {}
    for group, _, stream in parked:
        counts[group] = counts.get(group, 0) + stream.last
    newest = [letter for group in counts for letter in _newest_letters(log, group, states)]
    return LogView(log.identity, states, log.segments(), streams, views, len(names) - len(views), counts, newest)


def _newest_letters(log: LogApi, group: str, states: list[ShardState]) -> list[DeadLetter]:
    """Of what was appended last to the shard of its topic; older ones may be there, too."""
    from durable_log.log_api import shard_of
    from shared_subscriptions.config import DEAD_LETTER_TOPIC

    topic = DEAD_LETTER_TOPIC.replace("{group}", group)
    state = states[shard_of(topic, len(states))]
    found = []
    for stored in log.read(state.shard, max(state.start, state.end - _LETTERS_BACK)):
        if stored.header().topic == topic:
            for place, event in enumerate(stored.events()):
                told = event.value if isinstance(event.value, dict) else {}
                attempts = told.get("attempts")
                found.append(
                    DeadLetter(
                        group, stored.offset + place, event.table, event.key, str(told.get("topic", "")),
                        str(told.get("reason", "")), attempts if isinstance(attempts, int) else None,
                    )
                )  # fmt: skip
    return found[-DEAD_LETTERS_MAX:][::-1]


class ConsoleSources(Closeable):
    """All sources of a console, from the options of its command."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Opens nothing.  Raises InvalidConfig."""
        self._stack = contextlib.ExitStack()
        self._is_closed = False
        self.expected: int | None = args.expect
        """Members that the operator knows to be there."""
        db, log, client = self._handles(args)
        self.db = db
        is_named = bool(args.config_file)
        self.database: SampleSource[DatabaseView] = SampleSource(
            "database", f"the database{_place('db', args.db)}", DatabaseReader(db).read, interval_s=1.0
        )
        self.log: SampleSource[LogView] = SampleSource(
            "log", f"the log{_place('log', args.log)}", lambda: read_log(log.get()), interval_s=5.0,
            is_expected=args.log is not None,
        )  # fmt: skip
        self.durability: SampleSource[list[ServiceStatus]] = SampleSource(
            "durability", f"durability services{_place('bus', args.bus)}",
            (lambda: _answers(client.get())) if is_named or args.bus is not None else None,
            interval_s=5.0, is_expected=False,
        )  # fmt: skip
        conf = databases.read_service_conf(args)
        self.service: SampleSource[dict[str, Any]] = SampleSource(
            "service", "the publisher service of this host", lambda: ask_service(conf, _STATUS_S), interval_s=2.0,
            is_expected=False,
        )  # fmt: skip

    def _handles(self, args: argparse.Namespace) -> tuple[LateHandle[DbApi], LateHandle[LogApi], LateHandle[Any]]:
        def open_db() -> DbApi:
            from nb_api import loading
            from pubsub_api.config import new_conf

            return loading.open_db(args.db, new_conf(args.config_file), with_outbox=False, must_exist=True)

        def open_log() -> LogApi:
            import durable_log

            return durable_log.open(args.log, config_files=args.config_file, must_exist=True)

        def open_client() -> Any:
            from durability_service.client import DurabilityClient

            return DurabilityClient(self._stack.enter_context(options.open_session(args)))

        db, log, client = LateHandle(open_db), LateHandle(open_log), LateHandle(open_client)
        for handle in (db, log, client):
            self._stack.enter_context(handle)
        return db, log, client

    def all(self) -> tuple[SampleSource[Any], ...]:
        return self.database, self.log, self.durability, self.service

    def close(self) -> None:
        """Idempotent."""
        self._is_closed = True
        self._stack.close()


def _place(option: str, url: str | None) -> str:
    return f" {targets.described({option: url}).partition(' ')[2]}" if url else ""


def _answers(client: Any) -> list[ServiceStatus]:
    from durability_service.errors import NoService

    services: list[ServiceStatus] = client.status(timeout_s=_STATUS_S)
    if not services:
        raise NoService(f"no durability service answered within {_STATUS_S:g} s")
    return services
