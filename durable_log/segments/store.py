"""What sealing, reading and repairing need of the place where sealed segments are kept: the one interface to it.

`durable_log.segments.directory` keeps segments as files, `durable_log.segments.objects` as objects.  A segment is
*staged*, which makes it durable, then committed in the manifest of the log, then *published*: from then on only
retention, or compaction that has put another in its place, removes it.  What was staged and never committed is an
orphan, and leaves when it is old.
"""

from __future__ import annotations

import abc
import contextlib
import hashlib
import pathlib
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from durable_log.core.fence import Fence
from durable_log.errors import LogCorrupt
from durable_log.log_api import LogApi, Segment
from durable_log.storage.identity import short

_NAME = re.compile(r"(\d{15})-(\d{15})-([0-9a-f]{8})-([0-9a-f]{8})\.parquet")

_READ_BYTES = 1 << 20

Version = Any
"""Of a small content, for `SegmentStore.write`: None where there is none, or where a lock makes it needless."""


class SegmentName(NamedTuple):
    """What the name of a segment says."""

    first: int
    end: int
    log: str
    """`short` identity."""
    token: str

    @classmethod
    def new(cls, first: int, end: int, identity: str) -> SegmentName:
        return cls(first, end, short(identity), secrets.token_hex(4))

    def __str__(self) -> str:
        return f"{self.first:015d}-{self.end:015d}-{self.log}-{self.token}.parquet"


def parse_name(name: str) -> SegmentName | None:
    """None when this is not the name of a segment."""
    found = _NAME.fullmatch(name)
    return None if found is None else SegmentName(int(found[1]), int(found[2]), found[3], found[4])


class FoundSegment(NamedTuple):
    """A segment that is there, of whichever log."""

    shard: int
    name: SegmentName
    path: str


class SegmentStore(abc.ABC):
    """For any thread.  Every method may raise LogUnavailable when the place cannot be reached; then it is not known
    whether a write happened."""

    place: str
    """Where it is, as messages name it."""
    storage_options: Mapping[str, str] = {}
    """See `durable_log.segments.locations`."""

    def path_of(self, shard: int, name: str) -> str:
        """Where a segment is."""
        return f"{self.place}/{shard:04d}/{name}"

    def relative(self, path: str) -> str:
        """The part of a segment's path that is the same wherever the place is mounted."""
        return path.removeprefix(f"{self.place}/")

    # -- the right to change it

    @abc.abstractmethod
    def lock(self, log: LogApi) -> contextlib.AbstractContextManager[None]:
        """Keep all others from changing what is there.  Raises SealingBusy when another process has the lock."""

    def fence(self) -> Fence | None:
        """What a change of the manifest has to name, so that it is refused when another process has taken the lock
        over meanwhile.  None when no process can.  Call it with the lock held."""
        return None

    def check_usable(self) -> None:  # noqa: B027  # a directory needs nothing
        """Raises InvalidConfig when what is kept there would not be safe.  May write and remove something."""

    # -- small contents, by name

    @abc.abstractmethod
    def read(self, name: str) -> tuple[bytes, Version] | None:
        """None when there is none.  Raises OSError."""

    @abc.abstractmethod
    def write(self, name: str, content: bytes, former: Version) -> Version:
        """Write as a whole or not at all, durably, in the place of the version that `read` or `write` has given; None
        stands for none.  Raises LogUnavailable when there is another one, OSError.  Call it with the lock held."""

    @abc.abstractmethod
    def remove(self, name: str) -> None:
        """Nothing happens when there is none."""

    # -- segments

    @abc.abstractmethod
    def new_file(self, shard: int) -> contextlib.AbstractContextManager[pathlib.Path]:
        """An empty file of this host, private, into which a segment of the shard is written.  It is gone when the
        context ends, unless `stage` has moved it.  Raises OSError."""

    @abc.abstractmethod
    def stage(self, file: pathlib.Path, shard: int, name: SegmentName, sha256: str) -> str:
        """Move a file that is complete there, durably and checked; returns the path that the segment will have.
        Raises OSError."""

    @abc.abstractmethod
    def publish(self, segment: Segment) -> None:
        """Say, durably, that a staged segment was committed.  Nothing happens when it is said already.
        Raises OSError."""

    @abc.abstractmethod
    def discard(self, segment: Segment) -> None:
        """Remove what was staged and is certainly not committed."""

    @abc.abstractmethod
    def delete(self, path: str) -> None:
        """Remove a segment, published or not, that retention or compaction has dropped, or an orphan.
        Raises OSError."""

    @abc.abstractmethod
    def set_aside(self, segment: Segment) -> str:
        """Keep what is there of a segment that was given up, without its being in the way.  Returns where it is, empty
        when nothing is there."""

    @abc.abstractmethod
    def exists(self, segment: Segment) -> bool:
        """Whether it is there, published or not."""

    @abc.abstractmethod
    def published(self) -> Iterator[FoundSegment]:
        """Every segment that is published, in order."""

    @abc.abstractmethod
    def unpublished(self) -> Iterator[FoundSegment]:
        """Every segment that is staged, in order, with the path that it would have."""

    @abc.abstractmethod
    def orphans(self, age_s: float) -> list[str]:
        """Paths, for `delete`, of what was staged so long ago.  A segment that was committed may be among them."""

    @abc.abstractmethod
    def check(self, segment: Segment) -> None:
        """Raises LogCorrupt when the segment is missing or is not, byte for byte, what was sealed.  Reads all of it
        where it is."""

    @abc.abstractmethod
    def opened(self, segment: Segment) -> contextlib.AbstractContextManager[str]:
        """The path of a file of this host with the bytes of a segment, as long as the context lasts.  Compared with
        what was sealed when they had to be fetched and that is known.  Raises LogCorrupt, OSError."""


def corrupt(segment: Segment, why: str) -> LogCorrupt:
    return LogCorrupt(
        f"shard {segment.shard}, offsets {segment.first} to {segment.end}: the segment {segment.path} {why}. Put the "
        "right file back, or let 'heliograph log repair --give-up-damaged' go on without what it held",
        shard=segment.shard, first=segment.first, end=segment.end,
    )  # fmt: skip


def digest(path: str | pathlib.Path) -> str:
    """SHA-256 of a file.  Raises OSError."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(_READ_BYTES):
            found.update(data)
    return found.hexdigest()
