"""The report of a member of the fleet: its fields, its stored form, and how it is made from a `ProcessReport`.

A report is a map in msgpack.  Unknown fields are ignored and missing ones have a default, so that releases can read
each other's reports.  Its size is bounded: details are omitted from a report that would be too large.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from nb_api.cache.local_cache import LocalCache
from nb_api.cache.statistics import LocalCacheStatistics
from nb_api.core.checks import REPORT_BYTES_MAX
from pubsub_api import SubscriberStatistics
from pubsub_api.reporting import Reading

FORMAT = 1
"""Increase it when a report of the new format would mislead a reader of the old one.  A new field does not."""

COPIES_MAX = 8
"""Copies in one report."""
FILTERS_MAX = 32
"""Tables, and topics, of a copy in a report.  If a copy has more, an observer cannot see whether it is behind."""
PROBLEMS_MAX = 5
_TEXT_MAX = 200
NAME_CHARACTERS_MAX = 200
INTERVAL_S_MIN, INTERVAL_S_MAX = 0.05, 3600.0
_RESYNCS_MAX = 30

# Any program that can write to the database can write a report: numbers that observers calculate with are bounded.
_Revision = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Seconds = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
_Interval = Annotated[float, msgspec.Meta(ge=INTERVAL_S_MIN, le=INTERVAL_S_MAX)]
_Name = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)]


class CopyReport(msgspec.Struct, omit_defaults=True):
    """A local cache of a member."""

    position: _Revision = 0
    """The copy has all changes up to this revision."""
    newest: _Revision = 0
    """The highest revision that it has received or read."""
    objects: int = 0
    is_complete: bool = False
    tables: list[str] | None = None
    """None: all."""
    topics: list[str] = []
    is_cut: bool = False
    """There are more tables or topics, which are omitted."""
    digest: str = ""
    """Equal copies of the same objects have equal digests; empty when it is not known."""


class FleetReport(msgspec.Struct, omit_defaults=True):
    """What a member reports.  Counters count from its start."""

    format: int
    name: _Name
    incarnation: str
    """Different for each process that uses the name, and after each restart."""
    count: int
    """Rises with every report, so that observers see that the member is alive."""
    interval_s: _Interval
    """Time until the next report."""
    host: str = ""
    pid: int = 0
    role: str = ""
    release: str = ""
    """Release of Heliograph."""
    program_release: str = ""
    """Release of the program, if it gives one."""
    told_at: _Seconds = 0.0
    """Seconds since 1970 by the member's clock: for information, nothing depends on it."""
    up_s: _Seconds = 0.0
    copies: list[CopyReport] = []
    copies_left_out: int = 0
    received: int = 0
    published: int = 0
    lag: int = 0
    """Events that wait before callbacks, operations that are not on disk, events that a group has not acknowledged."""
    waiting: int = 0
    """The part of ``lag`` that are events of the bus before callbacks."""
    handled: int = 0
    """Events of the bus that were given to callbacks."""
    gaps: int | None = None
    """Gaps found in streams; None when this is not reported."""
    repaired: int | None = None
    """Missing events that came from caches."""
    lost: int = 0
    refused: int = 0
    """Frames with a wrong signature, of another release, or garbage."""
    send_failures: int = 0
    has_bus: bool = False
    """It listens to a bus."""
    publishers: int = 0
    """Publishers that it knows."""
    links_up: int = 0
    links_down: int = 0
    resyncs: dict[str, int] = {}
    """Reason -> resyncs."""
    problems: list[str] = []
    failures: int = 0
    """Reports that could not be stored."""


def read(data: bytes) -> FleetReport | None:
    """None for bytes that are no report of a format that this release knows."""
    try:
        found = _decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return found if found.format <= FORMAT else None


def write(report: FleetReport) -> bytes:
    """The stored form, of at most `REPORT_BYTES_MAX` bytes: details are omitted if necessary, and marked as omitted."""
    data = _encode(report)
    if len(data) > REPORT_BYTES_MAX:
        for copy in report.copies:
            copy.tables, copy.topics, copy.is_cut = None, [], True
        report.resyncs = {"all": sum(report.resyncs.values())}
        data = _encode(report)
    return data


def mark_of(data: bytes) -> int:
    """A number that is different for each report, because each has another count or another incarnation."""
    return zlib.crc32(data)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(FleetReport).decode


def summarise(report: FleetReport, readings: Iterable[Reading], problems: Sequence[str]) -> None:
    """Put the numbers of a process into a report."""
    caches: list[LocalCacheStatistics] = []
    listening: list[Any] = []
    for one in readings:
        if isinstance(one.statistics, LocalCacheStatistics):
            caches.append(one.statistics)
        elif isinstance(one.statistics, SubscriberStatistics):
            listening.append(one.statistics)
        elif one.role == "publisher":
            report.published += _number(one.statistics, "events")
            report.send_failures += _number(one.statistics, "send_failures")
        elif one.role in ("durability", "group", "member"):
            report.lag += _number(one.statistics, "lag")
            report.received += _number(one.statistics, "received")
    # If the session of a cache is reported, too, ``listening`` has the cache's subscriber already.
    for bus in listening or [one.bus for one in caches if one.bus is not None]:
        _add_bus(report, bus)
        if bus.resyncs and not caches:  # a cache has the exact reasons for which it read the database
            report.resyncs["the bus"] = report.resyncs.get("the bus", 0) + bus.resyncs
    for cache in caches:
        if cache.bus is None:
            news = cache.news
            report.received += news.created + news.updated + news.deleted + news.stale
        for reason, count in cache.syncs.reasons.items():
            report.resyncs[reason] = report.resyncs.get(reason, 0) + count
    report.resyncs = dict(sorted(report.resyncs.items(), key=lambda item: -item[1])[:_RESYNCS_MAX])
    report.copies = [_copy_of(cache) for cache in caches[:COPIES_MAX]]
    report.copies_left_out = len(caches) - len(report.copies)
    report.problems = [problem[:_TEXT_MAX] for problem in problems[:PROBLEMS_MAX]]


def _add_bus(report: FleetReport, bus: SubscriberStatistics) -> None:
    report.has_bus = True
    report.received += bus.received
    report.lag += bus.lag
    report.waiting += bus.lag
    report.handled += bus.received
    report.gaps = (report.gaps or 0) + bus.repair.gaps
    report.repaired = (report.repaired or 0) + bus.repair.repaired
    report.lost += bus.lost
    report.refused += sum(bus.bad_frames.values())
    report.publishers += bus.peers.publishers
    report.links_up += bus.links_up
    report.links_down += bus.links_down


def _copy_of(cache: LocalCacheStatistics) -> CopyReport:
    tables, topics = cache.followed
    is_cut = len(topics) > FILTERS_MAX or (tables is not None and len(tables) > FILTERS_MAX)
    return CopyReport(
        position=cache.position,
        newest=cache.newest,
        objects=cache.objects,
        is_complete=cache.is_synced and not cache.is_provisional,
        tables=None if tables is None or is_cut else sorted(tables),
        topics=[] if is_cut else sorted(topics),
        is_cut=is_cut,
    )


def digest_of(cache: LocalCache) -> str:
    """The digests of a copy as one short text."""
    digests = sorted((name, str(digest)) for name, digest in cache.digests().items())
    return hashlib.blake2b(repr(digests).encode(), digest_size=8).hexdigest()


def _number(statistics: object, name: str) -> int:
    found = statistics.get(name, 0) if isinstance(statistics, Mapping) else getattr(statistics, name, 0)
    return int(found) if isinstance(found, int | float) else 0
