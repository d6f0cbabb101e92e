"""What log drivers share: one log out of hot frames in a store and sealed segments in files.

A driver keeps hot frames, and one manifest entry per segment, in a store that changes both in one transaction.  This
class decides where an offset is read and hides the difference.  It knows nothing of the store.
"""

from __future__ import annotations

import abc
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from durable_log import checks, config
from durable_log.errors import LogCorrupt, OffsetTooOld
from durable_log.log_api import LogApi, Segment, ShardState, StoredFrame, shard_of
from pubsub_api.errors import InvalidConfig


class HotRead(NamedTuple):
    """What the store has, all of the same moment."""

    state: ShardState
    frames: list[StoredFrame]
    """Empty when the offset is sealed."""


class SegmentedLog(LogApi):
    """Implements `read`, `read_stream`, `find`, `trim` and `segments` over what a driver has to provide."""

    default_directory: pathlib.Path | None = None
    """Where segments go when ``[log] segment_directory`` does not say.  None: there is no such place."""

    # -- what a driver provides

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
    def manifest(self, shard: int | None) -> list[str]:
        """The entries of a shard's segments, or of all, by shard and first offset."""

    @abc.abstractmethod
    def add_segment(self, shard: int, first: int, end: int, entry: str) -> bool:
        """Add an entry and drop the hot frames of its range, in one transaction.

        False, and nothing happens, when ``first`` is not where the shard's sealed part ends: somebody else was faster.
        """

    @abc.abstractmethod
    def replace_segments(self, shard: int, span: tuple[int, int], old: Sequence[str], entry: str) -> bool:
        """Put one entry in the place of all that begin from ``span[0]`` up to but without ``span[1]``, in one
        transaction.  False, and nothing happens, when those are not exactly ``old``."""

    @abc.abstractmethod
    def drop(self, shard: int, start: int, sealed: int) -> bool:
        """Drop all before ``start``, which is the beginning of a segment or of a hot frame: entries and hot frames, in
        one transaction.  False, and nothing happens, when the shard's sealed part does not end at ``sealed``."""

    # -- what follows from it

    def read(self, shard: int, offset: int, *, events_max: int = 10_000, bytes_max: int = 4 << 20) -> list[StoredFrame]:
        checks.check_shard(shard, self.shards)
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
            raise LogCorrupt(f"shard {shard}: offsets from {offset} to {state.sealed} cannot be read")

    def read_stream(self, guid: bytes, topic: str, first: int, last: int, *, bytes_max: int = 4 << 20) -> list[bytes]:
        checks.check_limit(bytes_max, "bytes_max")
        shard_of(topic, self.shards)
        return [one.frame for one in self.hot_read_stream(guid, topic, first, last, bytes_max=bytes_max)]

    def find(self, shard: int, appended_ns: int) -> int:
        checks.check_shard(shard, self.shards)
        return self.hot_find(shard, appended_ns)

    def trim(self, shard: int, before: int) -> int:
        checks.check_shard(shard, self.shards)
        checks.check_offset(before)
        while True:
            state, frames = self.hot_read(shard, before, events_max=1, bytes_max=1)
            start = self._cut(state, before, frames)
            if start <= state.start:
                return 0
            if self.drop(shard, start, state.sealed):
                return start - state.start

    def segments(self, shard: int | None = None) -> list[Segment]:
        if shard is not None:
            checks.check_shard(shard, self.shards)
        return [self.decode_entry(entry) for entry in self.manifest(shard)]

    def _cut(self, state: ShardState, before: int, frames: Sequence[StoredFrame]) -> int:
        """The last offset up to ``before`` at which a whole frame or segment begins, or the shard's end."""
        if before >= state.sealed:
            return frames[0].offset if frames else state.end
        return max((one.first for one in self.segments(state.shard) if one.first <= before), default=state.start)

    # -- manifest entries

    @property
    def directory(self) -> pathlib.Path:
        """Where segments are.  Raises InvalidConfig when nobody said so."""
        configured = self.conf[config.GROUP].segment_directory
        directory = pathlib.Path(configured) if configured else self.default_directory
        if directory is None:
            raise InvalidConfig(
                "this log has no place for sealed segments: set [log] segment_directory to a directory that every host "
                "of the log has mounted"
            )
        return directory.absolute()

    def encode_entry(self, segment: Segment) -> str:
        """The manifest entry of a segment.  The file is named relative to the directory, which each host may mount at a
        place of its own."""
        file = pathlib.Path(segment.path).relative_to(self.directory)
        return msgspec.json.encode(segment._replace(path=str(file))._asdict()).decode()

    def decode_entry(self, entry: str) -> Segment:
        segment = Segment(**msgspec.json.decode(entry))
        return segment._replace(path=str(self.directory / segment.path))
