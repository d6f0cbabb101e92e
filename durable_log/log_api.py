"""The contract of a log driver: frames in shards, dense event offsets, and compare-and-set records.

A *log* has a number of *shards*.  A frame goes, undecoded, to the shard that the hash of its topic selects
(`shard_of`), so a topic, and each key in it, keeps its order.  Every event has an *offset* in its shard: dense, from 0,
in order of appending.  A stored frame covers a range of offsets.

A log can be given more shards (`LogApi.set_shards`).  A new shard takes topics over from an old one, its parent, where
that ended at that moment; a reader of both has to finish the parent up to there first: `ShardState.after`.

The log knows where each stream (publisher GUID and topic) stands.  Events that it holds already are not stored again,
so appending is idempotent: after a crash, or with several recorders, the same frames may be appended as often as one
likes.

*Records* are small named values with a version, written by compare-and-set.  They carry leader registration, leases and
progress.  A record may have a lease, judged by the store's own clock or by observed progress, never by comparing the
clocks of two hosts.
"""

from __future__ import annotations

import abc
import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, NamedTuple
from urllib.parse import SplitResult

from oslo_config import cfg

from durable_log.core.dropped_ranges import DroppedRange, common_parts
from durable_log.errors import LogCorrupt, OffsetTooOld
from pubsub_api.core import events as event_codec
from pubsub_api.core import frame as frames
from pubsub_api.core.events import Event
from pubsub_api.core.frame import Header
from pubsub_api.core.topics import overlap
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.plugins import without_password

__all__ = [
    "Appended",
    "DroppedRange",
    "LogApi",
    "Record",
    "Segment",
    "ShardState",
    "StoredFrame",
    "StreamState",
    "shard_of",
]

CLOCK_AHEAD_MAX_NS = 3600 * 1_000_000_000
"""What was appended longer than this after now was stamped by a clock that was wrong then."""

_ANY_SIZE = 1 << 40  # what is in the log was measured when it was appended


def shard_of(topic: str, shards: int) -> int:
    """The shard to which events of a topic go in a log that has so many: the same in every process, on every host, in
    every release."""
    return zlib.crc32(topic.encode()) % shards


class StoredFrame(NamedTuple):
    """A frame at its place in a shard."""

    shard: int
    offset: int
    """Offset of the first event that counts."""
    count: int  # type: ignore[assignment]  # shadows tuple.count, which is not needed here
    """How many events count: those of the frame that the log did not hold before.  Normally all; but a frame whose
    middle was known already is stored as two, and then events behind ``skipped + count`` do not count either."""
    skipped: int
    """Events at the front of the frame that stand elsewhere in the log and do not count here.  Normally 0."""
    appended_ns: int
    """The store's wall clock when the frame was appended."""
    frame: bytes

    @property
    def end(self) -> int:
        """Offset of the event after the last one of this frame."""
        return self.offset + self.count

    def header(self) -> Header:
        """The frame's header.  Its numbers are those of all events of the frame, also of those that do not count."""
        return frames.unpack(self.frame, bytes_max=_ANY_SIZE)

    def events(self) -> list[Event]:
        """The events that count; the first has offset ``offset``.  Raises UndecodableBody."""
        decoded = event_codec.decode_events(self.frame, self.header(), skip=self.skipped)
        return decoded[: self.count]


class ShardState(NamedTuple):
    """Which offsets of a shard can be read: from ``start`` on, up to but without ``end``."""

    shard: int
    start: int
    sealed: int
    """Offsets before this one are in sealed segments."""
    end: int
    bytes: int
    """Size of what is not sealed yet."""
    after: tuple[tuple[int, int], ...] = ()
    """Shards, and up to which offset each of them has to be read before this one, so that topics keep their order.
    Empty for a shard that the log was made with."""


class Segment(NamedTuple):
    """A sealed Parquet file, or object: offsets ``first`` up to but without ``end`` of a shard.  Does not change until
    it is dropped."""

    shard: int
    first: int
    end: int
    path: str
    """Where the file is, absolute, or the URI of the object, as in ``s3://bucket/prefix/0000/NAME.parquet``.  Spark,
    DuckDB and Polars read it natively; its columns: `durable_log.segments.columns`."""
    rows: int
    """Events in it: all of the range, unless it was compacted."""
    bytes: int
    sha256: str
    appended_ns_min: int
    appended_ns_max: int
    timestamp_min: int
    """Smallest and largest timestamp of the events, 0 when none of them could be decoded."""
    timestamp_max: int
    replaces: str = ""
    """Name of the file in whose place compaction has put this one, empty when there was none."""
    lost: str = ""
    """Offsets that were damaged and given up, as ``50-55 70-72``: each from the first up to but without the second."""
    dropped: tuple[DroppedRange, ...] = ()
    """What retention by topic has removed from it.  A segment of an older release does not say it."""


class StreamState(NamedTuple):
    """Where a stream stands in the log."""

    guid: bytes
    topic: str
    last: int
    """Number of its last event in the log."""
    missing: tuple[tuple[int, int], ...]
    """Ranges of numbers before ``last`` that never came, oldest first, both ends included: what was lost, and what was
    sent before recording began.  When such events come later they are appended then, and the hole is gone."""


class Appended(NamedTuple):
    """What an append did."""

    events: int
    """Events stored."""
    duplicates: int
    """Events that the log held already."""
    ends: Mapping[int, int]
    """Shard -> its end, for the shards that grew."""


class Record(NamedTuple):
    """A named value.  ``version`` rises with every write of the record and is never used again, not even after it was
    deleted."""

    name: str
    value: bytes
    version: int


class LogApi(Closeable):
    """A log.  Every method may be called from any thread and from several processes at once.

    All methods raise LogUnavailable after a bounded time when the store cannot be reached, LogReplaced when another log
    is in the place of the one that was opened, and Closed after `close`.
    After ``fork()`` a child's copy opens handles of its own at its next call and never touches inherited ones.
    """

    options: ClassVar[Mapping[str, Sequence[cfg.Opt]]] = {}
    """Option group -> options that this driver adds.  Registered on ``conf`` before the constructor is called."""
    url_words: ClassVar[Collection[str]] = ()
    """What may stand in the query of a URL beside options; it is the driver's own and stays in the URL."""

    def __init__(self, conf: cfg.ConfigOpts, url: SplitResult) -> None:
        self.conf = conf
        self.url = url

    def _about(self) -> str:
        return without_password(f"{self.url.scheme}://{self.url.netloc}{self.url.path}")

    @abc.abstractmethod
    def initialize(self) -> None:
        """Connect, create what is missing, check what is there.  Safe to call from many processes at once.
        Raises LogUnavailable, InvalidConfig (a number of shards that the log does not have and never had), LogCorrupt,
        and SegmentsRefused when the directory of segments belongs to another log or to a later state of this one."""

    def exists(self) -> bool:
        """Whether there is a log that `initialize`, which is called after this, would not make.  Makes nothing.  A
        driver that cannot tell says True.  Raises LogUnavailable."""
        return True

    def check_settings(self) -> list[str]:
        """What in the settings of the store lets it lose what was appended, a sentence each.  Asks the store."""
        return []

    @property
    @abc.abstractmethod
    def shards(self) -> int:
        """How many shards the log has, as far as this handle knows: others may have given it more since the last call
        of `state`."""

    @abc.abstractmethod
    def set_shards(self, shards: int) -> bool:
        """Give the log so many shards, a multiple of those that it has; durable when it returns.  False when it has so
        many already.  Readers and writers go on meanwhile, and find out by themselves.

        Raises UsageError when it is no multiple, or too many.
        """

    def shards_of(self, topic: str) -> tuple[int, ...]:
        """Every shard that may have events of a topic, in the order in which they are to be read.  New ones go to the
        last."""
        return (shard_of(topic, self.shards),)

    @property
    @abc.abstractmethod
    def identity(self) -> str:
        """Which log this is: made by chance when the log is made, the same whenever it is opened again, another one for
        a log that was made anew in the same place.  An offset means something only together with it."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release every handle and end every `wait`.  Idempotent, from any thread."""

    # -- frames

    @abc.abstractmethod
    def append(self, frames: Sequence[bytes]) -> Appended:
        """Store DATA frames, in order; durable when it returns.  Calls of several threads may share one commit.

        Events the log holds already are left out and counted.  A stream may skip numbers: the hole is remembered.
        Raises a FrameError for bytes that are no frame; then none of the call's frames is stored.
        """

    @abc.abstractmethod
    def note_missing(self, heads: Sequence[tuple[bytes, str, int]]) -> None:
        """Remember that streams, ``(guid, topic, last)``, have events up to a number, whether the log has them or not:
        what it lacks of them is a hole from now on.  Durable when it returns."""

    @abc.abstractmethod
    def read(self, shard: int, offset: int, *, events_max: int = 10_000, bytes_max: int = 4 << 20) -> list[StoredFrame]:
        """Frames from the one that covers ``offset`` on, in order, at least one if there is any, within the limits.

        Works for sealed and unsealed offsets alike.  Empty at the end of the shard.  Raises OffsetTooOld when retention
        has dropped the offset, LogCorrupt naming what cannot be read.
        """

    @abc.abstractmethod
    def read_stream(self, guid: bytes, topic: str, first: int, last: int, *, bytes_max: int = 4 << 20) -> list[bytes]:
        """Frames that hold events ``first..last`` of a stream, those that are still there, oldest first."""

    @abc.abstractmethod
    def state(self) -> list[ShardState]:
        """Every shard, in order of its number."""

    @abc.abstractmethod
    def streams(self, shard: int) -> list[StreamState]:
        """Every stream that has events in the shard, and was not met since in a shard that took its topic over."""

    @abc.abstractmethod
    def find(self, shard: int, appended_ns: int) -> int:
        """The first offset appended at or after this time by the store's clock; the end when there is none."""

    def appended_at(self, shard: int, offset: int) -> int | None:
        """When the event at an offset was appended, by the store's clock, as `StoredFrame.appended_ns`; None when it is
        not there or cannot be read.

        Keep this of the event before an offset together with the offset: in a log that was restored from an older
        copy, and has grown beyond the offset since, it differs.
        """
        try:
            found = self.read(shard, offset, events_max=1, bytes_max=1)
        except (OffsetTooOld, LogCorrupt):
            return None
        return found[0].appended_ns if found and found[0].offset <= offset else None

    def now_ns(self) -> int:
        """The time by the store's clock, which stamps what is appended: the host's, unless the store has its own."""
        return time.time_ns()

    @abc.abstractmethod
    def wait(self, ends: Mapping[int, int], *, timeout_s: float) -> bool:
        """Block until any of these shards has grown beyond the end given, or the time is over.  True when one has."""

    @abc.abstractmethod
    def trim(self, shard: int, before: int) -> int:
        """Drop everything before an offset, unsealed or sealed.  Returns how many offsets went.  Whole frames only, and
        whole segments only."""

    @abc.abstractmethod
    def segments(self, shard: int | None = None) -> list[Segment]:
        """The sealed files of a shard, or of all, in order.  A file may be gone when `trim` ran meanwhile."""

    def dropped(
        self, shard: int, holes: Sequence[tuple[int, int]], topic_filter: str, *, since_ns: int = 0
    ) -> list[tuple[int, int]]:
        """The parts of holes in a shard that retention has made, and not compaction, since a time by the store's clock.

        ``holes`` are offsets that were not found by reading, in order, each from the first up to but without the
        second.  Only topics that the filter selects count, as far as it is known of which topic something was.
        """
        if not holes:
            return []
        low, high = holes[0][0], holes[-1][1]
        found = [
            (one.first, one.end)
            for segment in self.segments(shard)
            if segment.first < high and segment.end > low
            for one in segment.dropped
            if one.dropped_ns >= since_ns and overlap(one.topic, topic_filter)
        ]
        start = self.state()[shard].start  # the segment may have been dropped since the holes were found
        return common_parts(holes, [*found, (0, start)])

    # -- records

    @abc.abstractmethod
    def get_record(self, name: str) -> Record | None:
        """The record, None when there is none."""

    @abc.abstractmethod
    def put_records(self, writes: Sequence[tuple[str, bytes | None, int | None]]) -> list[int]:
        """Write several records, all or nothing: ``(name, value, expected_version)``.

        ``value`` None deletes.  ``expected_version`` 0 means that there must be none, None that anything goes.  Durable
        when it returns; returns the new versions.  Raises RecordConflict naming the first record that differs.
        """

    @abc.abstractmethod
    def list_records(self, prefix: str) -> list[Record]:
        """Every record whose name starts so, by name."""
