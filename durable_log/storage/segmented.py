"""What log drivers share: one log out of hot frames in a store and sealed segments in files.

A driver keeps hot frames, and one manifest entry per segment, in a store that changes both in one transaction.  This
class decides where an offset is read and hides the difference.  It knows nothing of the store.
"""

from __future__ import annotations

import abc
import bisect
import logging
import operator
import pathlib
import secrets
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import SplitResult

import msgspec
from oslo_config import cfg

from durable_log import config
from durable_log.core import checks
from durable_log.core.checksums import gap
from durable_log.core.fence import Fence
from durable_log.core.placing import StreamPosition
from durable_log.core.positions import decode_position, split_key
from durable_log.errors import LogCorrupt, LogReplaced, LogUnavailable, OffsetTooOld
from durable_log.log_api import DroppedRange, Segment, ShardState, StoredFrame, StreamState
from durable_log.segments.files import SegmentReader
from durable_log.segments.ownership import (
    check_last,
    check_not_newer,
    check_owner,
    read_mark,
    refuse_unless_last,
    stored_mark,
    write_mark,
)
from durable_log.segments.places import segment_store
from durable_log.segments.store import SegmentStore, parse_name
from durable_log.storage.growing import GrowingLog
from durable_log.storage.identity import Lineage

LOG = logging.getLogger(__name__)


class HotRead(NamedTuple):
    """What the store has, all of the same moment."""

    state: ShardState
    frames: list[StoredFrame]
    """Empty when the offset is sealed."""


class RestoredShard(NamedTuple):
    """Where a shard stands after a repair."""

    shard: int
    start: int
    sealed: int
    end: int
    entries: Sequence[tuple[int, str]]
    """Its whole manifest: first offset and entry."""
    streams: Mapping[tuple[bytes, str], StreamPosition]
    """GUID and topic -> position, of the streams that are to be set."""
    forgotten: Collection[bytes]
    """Keys of streams that the store is to forget."""
    former_end: int
    """Where it ended when this was made up: what was appended meanwhile must not be lost."""


class SegmentedLog(GrowingLog):
    """Implements `read`, `read_stream`, `find`, `trim` and `segments` over what a driver has to provide."""

    default_directory: pathlib.Path | None = None
    """Where segments go when ``[log] segment_directory`` does not say.  None: there is no such place."""

    # -- what a driver provides

    @abc.abstractmethod
    def connect(self) -> None:
        """What `initialize` has to do but for the directory of segments.  Raises what that raises."""

    @property
    @abc.abstractmethod
    def lineage(self) -> Lineage:
        """The log's identity and those that it had before it was repaired, as found when it was opened."""

    @abc.abstractmethod
    def hot_read(self, shard: int, offset: int, *, events_max: int, bytes_max: int) -> HotRead:
        """The shard's state, and its hot frames from the one that covers ``offset`` on when that is not sealed."""

    @abc.abstractmethod
    def hot_read_stream(self, guid: bytes, topic: str, first: int, last: int, *, bytes_max: int) -> list[StoredFrame]:
        """The hot frames that hold any of these numbers of a stream, by number."""

    @abc.abstractmethod
    def hot_find(self, shard: int, appended_ns: int) -> int:
        """The first hot offset appended at or after a time; the end when there is none."""

    @abc.abstractmethod
    def positions(self, shard: int) -> list[tuple[bytes, bytes]]:
        """Of every stream of a shard its key and where it stands, as `durable_log.core.positions` makes them."""

    @abc.abstractmethod
    def stored_end(self, shard: int) -> int:
        """Where the last frame ends that the store has of a shard, 0 when it has none."""

    @abc.abstractmethod
    def manifest(self, shard: int | None) -> list[str]:
        """The entries of a shard's segments, or of all, by shard and first offset."""

    @abc.abstractmethod
    def add_segment(self, shard: int, first: int, end: int, entry: str, fence: Fence | None) -> bool:
        """Add an entry and drop the hot frames of its range, in one transaction.

        False, and nothing happens, when ``first`` is not where the shard's sealed part ends: another process was
        faster.  Raises LeaseLost, and nothing happens, when in that transaction the fence does not hold.
        """

    @abc.abstractmethod
    def replace_segments(
        self, shard: int, span: tuple[int, int], old: Sequence[str], entry: str, fence: Fence | None
    ) -> bool:
        """Put one entry in the place of all that begin from ``span[0]`` up to but without ``span[1]``, in one
        transaction.  False, and nothing happens, when those are not exactly ``old``.  Raises LeaseLost as
        `add_segment` does."""

    @abc.abstractmethod
    def drop(self, shard: int, start: int, sealed: int) -> bool:
        """Drop all before ``start``, which is the beginning of a segment or of a hot frame: entries and hot frames, in
        one transaction.  False, and nothing happens, when the shard's sealed part does not end at ``sealed``."""

    @abc.abstractmethod
    def forget_streams(self, before_ns: int) -> int:
        """Forget streams to which nothing was appended since a time by the store's clock; returns how many.

        Should their events ever be appended again, they are stored again.
        """

    @abc.abstractmethod
    def restore(self, lineage: Lineage, shards: Sequence[RestoredShard]) -> None:
        """Set where shards stand, their manifests and the positions of these streams, drop hot frames that are sealed
        now, and give the log another identity.  When it dies half way, doing it again completes it.  Raises
        `used_meanwhile` when something was appended to one of them."""

    @abc.abstractmethod
    def directory_token(self) -> str:
        """What `set_directory_token` has set last, empty when nothing was."""

    @abc.abstractmethod
    def set_directory_token(self, token: str, fence: Fence | None) -> None:
        """Keep what tells this store from its copies, see `durable_log.segments.ownership`.  Durable when it
        returns.  Raises LeaseLost as `add_segment` does."""

    def unsealed_bytes(self) -> int:
        """What the unsealed part takes where it is stored, as far as that can be told."""
        return sum(state.bytes for state in self.state())

    def release(self) -> None:
        """Give back to the system what sealing and dropping have freed in the store.  Others go on meanwhile."""

    def check_store(self) -> list[str]:
        """What the store itself finds to be wrong with its files, a sentence each.  Reads all of them."""
        return []

    # -- what follows from it

    def __init__(self, conf: cfg.ConfigOpts, url: SplitResult) -> None:
        super().__init__(conf, url)
        self.segment_reader = SegmentReader(lambda: self.segment_store, cache_bytes_max=config.SEGMENT_CACHE_BYTES)
        self._segment_store: SegmentStore | None = None
        self._known_segments: dict[int, list[Segment]] = {}

    def initialize(self) -> None:
        self.connect()
        for said in self.check_settings():
            LOG.warning("%s", said)
        if self.has_place:
            if read_mark(self.segment_store) is None:
                self.segment_store.check_usable()
            self.check_place()
        self.check_wanted_shards()  # after the place, which knows when this is a copy from before the log grew

    def check_place(self) -> None:
        """Raises SegmentsRefused when the place is of another log, a later state of this one, or another copy of it."""
        store = self.segment_store
        check_owner(store, self.lineage, lambda: len(self.segments()))
        check_not_newer(store, self.lineage, lambda: {one.shard: one.end for one in self.state()})
        check_last(store, self.lineage, self.directory_token)

    def note_change(self, *, takes_over: bool = False) -> None:
        """Say, durably, that this store is about to change the place of segments: its copies are refused from now on.
        ``takes_over`` even when it is one of them.  Call it with the lock held.  Raises SegmentsRefused,
        LogUnavailable."""
        store, former, token = self.segment_store, self.directory_token(), secrets.token_hex(8)
        mark, version = stored_mark(store)
        if not takes_over:
            refuse_unless_last(store, self.lineage, mark, former)
        version = write_mark(store, self.lineage, self.shards, version, former, token)
        self.set_directory_token(token, store.fence())
        write_mark(store, self.lineage, self.shards, version, token)

    @property
    def identity(self) -> str:
        return self.lineage.identity

    def note_shards(self, shards: int) -> None:
        """Say it in the place of segments first: a repair of the store needs to know."""
        if not self.has_place or read_mark(self.segment_store) is None:
            return
        store = self.segment_store
        with store.lock(self):
            mark, version = stored_mark(store)
            refuse_unless_last(store, self.lineage, mark, self.directory_token())
            write_mark(store, self.lineage, shards, version, self.directory_token())

    @property
    def maker(self) -> tuple[str, int]:
        """What segments say of the log that makes them."""
        return self.identity, self.shards

    def new_shards(self) -> int:
        """How many shards to make, when there is no log yet: as many as its segments have, should there be any."""
        configured: int | None = self.conf[config.GROUP].shards
        mark = read_mark(self.segment_store) if self.has_place else None
        return configured or (mark.shards if mark is not None else config.SHARDS_DEFAULT)

    def read(self, shard: int, offset: int, *, events_max: int = 10_000, bytes_max: int = 4 << 20) -> list[StoredFrame]:
        self.check_shard(shard)
        checks.check_offset(offset)
        checks.check_limit(events_max, "events_max")
        checks.check_limit(bytes_max, "bytes_max")
        while True:
            state, frames = self.hot_read(shard, offset, events_max=events_max, bytes_max=bytes_max)
            if offset < state.start:
                raise OffsetTooOld(
                    f"shard {shard}: offset {offset} is gone, the oldest is {state.start}", start=state.start
                )
            if offset >= state.sealed:
                return frames
            segment = self._segment_at(shard, offset, state)
            if segment is None:
                continue
            try:
                found = self.segment_reader.frames(segment, offset)
                frames = take(found, offset=offset, events_max=events_max, bytes_max=bytes_max)
            except LogCorrupt:
                if self.is_listed(segment):
                    raise
                continue
            if frames:
                return frames
            offset = segment.end  # compaction has left nothing there

    def read_stream(self, guid: bytes, topic: str, first: int, last: int, *, bytes_max: int = 4 << 20) -> list[bytes]:
        checks.check_limit(bytes_max, "bytes_max")
        # Hot first: what is sealed between the two is then found twice, and not missed.
        hot = self.hot_read_stream(guid, topic, first, last, bytes_max=bytes_max)
        sealed = self._sealed_stream(guid, topic, first, last, bytes_max=bytes_max)
        found = dict(sealed) | {one.header().first + one.skipped: one for one in hot}
        stored = (found[number] for number in sorted(found))
        return [one.frame for one in take(stored, offset=0, events_max=sys.maxsize, bytes_max=bytes_max)]

    def streams(self, shard: int) -> list[StreamState]:
        self.check_shard(shard)
        return [StreamState(*split_key(key), *decode_position(shard, key, one)) for key, one in self.positions(shard)]

    def find(self, shard: int, appended_ns: int) -> int:
        self.check_shard(shard)
        hot = self.hot_find(shard, appended_ns)  # first, for the same reason
        for segment in self.segments(shard):
            if segment.appended_ns_max >= appended_ns:
                return min(hot, self.segment_reader.find(segment, appended_ns))
        return hot

    def appended_at(self, shard: int, offset: int) -> int | None:
        self.check_shard(shard)
        checks.check_offset(offset)
        try:
            state, frames = self.hot_read(shard, offset, events_max=1, bytes_max=1)
            if offset >= state.sealed:
                return frames[0].appended_ns if frames else None
            segment = self._segment_at(shard, offset, state) if offset >= state.start else None
            if segment is None:
                return None
            # One column of the file: `read` would build all frames around it.
            batches = self.segment_reader.batches(segment, offset, offset + 1, ["appended_ns"])
            return next((int(batch.column(0)[0].as_py()) for batch in batches if batch.num_rows), None)
        except LogCorrupt:
            return None

    def trim(self, shard: int, before: int) -> int:
        self.check_shard(shard)
        checks.check_offset(before)
        while True:
            state, frames = self.hot_read(shard, before, events_max=1, bytes_max=1)
            segments = self.segments(shard)
            start = _cut(state, segments, before, frames)
            if start <= state.start:
                return 0
            dropped = [segment for segment in segments if segment.first < start]
            if dropped:
                check_last(self.segment_store, self.lineage, self.directory_token)
            if self.drop(shard, start, state.sealed):
                if dropped:
                    self._remove_dropped(dropped)
                return start - state.start

    def _remove_dropped(self, segments: Sequence[Segment]) -> None:
        """Remove the files of segments that were dropped, unless another process seals now: then the next cleaning
        does."""
        try:
            with self.segment_store.lock(self):
                self.note_change()
                self.remove_files(segments)
        except LogUnavailable as error:
            LOG.info("The files of %d segments that were dropped stay for now: %s", len(segments), error)

    def segments(self, shard: int | None = None) -> list[Segment]:
        if shard is not None:
            self.check_shard(shard)
        return [self.decode_entry(entry) for entry in self.manifest(shard)]

    def remove_files(self, segments: Sequence[Segment]) -> None:
        """Remove the files of segments that were dropped, or replaced by compaction.  Call it with the lock held.  One
        that cannot be removed stays, and the next cleaning tries again."""
        for segment in segments:
            self.segment_reader.forget(segment)
            try:
                self.segment_store.delete(segment.path)
            except (OSError, LogUnavailable) as error:
                LOG.warning("The segment %s is dropped but cannot be removed: %s", segment.path, error)

    def _segment_at(self, shard: int, offset: int, state: ShardState) -> Segment | None:
        """From what is known, else from the manifest: segments do not change, they only come and go.

        None when it was trimmed meanwhile.  Raises LogCorrupt when the manifest has a hole.
        """
        for is_fresh in (False, True):
            if is_fresh:
                self._known_segments[shard] = self.segments(shard)
            known = self._known_segments.get(shard, [])
            position = bisect.bisect_right(known, offset, key=operator.attrgetter("first")) - 1
            if position >= 0 and known[position].end > offset:
                return known[position]
        if self.state()[shard].start == state.start:
            end = min((one.first for one in known if one.first > offset), default=state.sealed)
            raise LogCorrupt(
                f"shard {shard}: no segment has offset {offset}, nor any up to {end}, and they are sealed",
                shard=shard, first=offset, end=end,
            )  # fmt: skip
        return None

    def is_listed(self, segment: Segment) -> bool:
        """Whether a segment that could not be read ought to be there: it may have been replaced or dropped."""
        self.segment_reader.forget(segment)
        self._known_segments.pop(segment.shard, None)
        return segment in self.segments(segment.shard)

    def _sealed_stream(
        self, guid: bytes, topic: str, first: int, last: int, *, bytes_max: int
    ) -> list[tuple[int, StoredFrame]]:
        """The frames of a stream that segments have, the oldest numbers first, with the numbers where they begin."""
        reader = self.segment_reader
        places = [
            (low, segment, group)
            for shard in self.shards_of(topic)
            for segment in self.segments(shard)
            for low, high, group in reader.stream_ranges(segment, guid, topic)
            if low <= last and high >= first
        ]
        found: list[tuple[int, StoredFrame]] = []
        size = 0
        for _, segment, group in sorted(places, key=operator.itemgetter(0)):
            if size > bytes_max:
                break
            some = reader.stream_frames(segment, group, guid, topic, first, last)
            size += sum(len(one.frame) for _, one in some)
            found += some
        return found

    # -- manifest entries

    @property
    def has_place(self) -> bool:
        """Whether it is known where segments are."""
        return bool(self.conf[config.GROUP].segment_directory) or self.default_directory is not None

    @property
    def segment_store(self) -> SegmentStore:
        """Where segments are.  Raises InvalidConfig when no option says so, or it cannot be used."""
        if self._segment_store is None:
            options = self.conf[config.GROUP]
            self._segment_store = segment_store(
                options.segment_directory, self.default_directory, timeout_s=options.operation_timeout
            )
        return self._segment_store

    def storage_options(self) -> Mapping[str, str]:
        """What a program needs to read segments at their paths without this log, see
        `durable_log.segments.locations`."""
        return self.segment_store.storage_options if self.has_place else {}

    def encode_entry(self, segment: Segment) -> str:
        """The manifest entry of a segment.  It is named relative to the place, which each host may mount where it
        likes."""
        path = self.segment_store.relative(segment.path)
        fields = segment._replace(path=path)._asdict()
        if not segment.dropped:
            del fields["dropped"]  # as in entries of older releases, which are compared with this
        return msgspec.json.encode(fields).decode()

    def decode_entry(self, entry: str) -> Segment:
        """Raises LogCorrupt when the entry is damaged."""
        try:
            fields = msgspec.json.decode(entry, type=dict[str, int | str | tuple[DroppedRange, ...]])
            segment = Segment(**fields)  # type: ignore[arg-type]  # looked at below
        except (msgspec.MsgspecError, TypeError) as error:
            raise _damaged_entry(entry, str(error)) from error
        if any(type(found) is not kind for found, kind in zip(segment, _ENTRY_TYPES, strict=True)):
            raise _damaged_entry(entry, "a field has another type")
        folder, _, file = segment.path.partition("/")
        name = parse_name(file)
        if name is None or (name.first, name.end) != (segment.first, segment.end) or folder != f"{segment.shard:04d}":
            raise _damaged_entry(entry, "the name of the file and the offsets do not belong together")
        return segment._replace(path=self.segment_store.path_of(segment.shard, file))


_NOT_NUMBERS = {"path": str, "sha256": str, "replaces": str, "lost": str, "dropped": tuple}
_ENTRY_TYPES = [_NOT_NUMBERS.get(name, int) for name in Segment._fields]


def _damaged_entry(entry: str, why: str) -> LogCorrupt:
    return LogCorrupt(
        f"the manifest has a damaged entry, {entry!r:.200}: {why}. 'heliograph log repair' makes it anew from the files"
    )


def used_meanwhile(shard: int) -> LogUnavailable:
    return LogUnavailable(
        f"something was appended to shard {shard} while the log was repaired, and would have been lost: nothing was "
        "changed. Stop the processes that append to it, and repair it again"
    )


def replaced(place: str, opened: str, found: str) -> LogReplaced:
    """The error when another log is there than the one that was opened."""
    there = f"the log {found}" if found else "none"
    return LogReplaced(
        f"the log {opened} was opened at {place}, and there is {there} now: the store was emptied or exchanged. "
        "Nothing was written; open the log again to use what is there",
        opened=opened, found=found,
    )  # fmt: skip


def take(
    found: Iterable[StoredFrame], *, offset: int, events_max: int, bytes_max: int, state: ShardState | None = None
) -> list[StoredFrame]:
    """Frames within the limits, and one at least.  Events before ``offset`` do not count towards them.

    With a ``state`` they are hot frames from the one that covers ``offset`` on, up to the end that it says, and there
    must be no offset that none of them has.  What lies before damage can be read; the next read begins with the damage,
    and raises LogCorrupt.
    """
    taken: list[StoredFrame] = []
    events = size = 0
    place = offset
    try:
        for stored in found:
            _, first, count, _, _, frame = stored  # each is looked at: attributes would cost more
            end = first + count
            if state is not None and first != place:
                if end <= place:
                    continue  # the one before a gap
                if first > place:
                    raise gap(state.shard, place, first)
            size += len(frame)
            if taken and size > bytes_max:
                return taken
            taken.append(stored)
            events += count if first >= offset else end - offset
            if events >= events_max:
                return taken
            place = end
        if state is not None and place < state.end:
            raise gap(state.shard, place, state.end)
    except LogCorrupt:
        if not taken:
            raise
    return taken


def _cut(state: ShardState, segments: Sequence[Segment], before: int, frames: Sequence[StoredFrame]) -> int:
    """The last offset up to ``before`` at which a whole frame or segment begins, or the shard's end."""
    if before >= state.sealed:
        return frames[0].offset if frames else state.end
    return max((segment.first for segment in segments if segment.first <= before), default=state.start)
