"""What must outlive the sudden death of the publisher service: batches taken, and where its streams stood.

Every batch is written here before anything of it is published.  The numbers of its events follow from the order of the
batches, so after ``kill -9`` the next service knows exactly which batches were taken from whom, how far each stream of
its predecessor went, and the events themselves as far back as the journal goes.

It is in the page cache: ``write`` without ``fsync``.  That survives the death of the process, which is what it is
for; it does not survive the machine, and neither do the workers whose batches it remembers.

Two files take turns.  Each begins with a *checkpoint*, which says everything that the files before it said of
numbers, and goes on with batches.  When one is full the other is emptied and begun.  A new *incarnation*, which is
one run of the service, goes on where the last one ended, with a checkpoint: so a service that dies several times
within a minute can still repair what the first one published.  A record is ``length, CRC-32, number`` and its
payload; records are numbered through, so that a torn or stale tail ends the reading and never misleads it.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from publisher_service.core import messages
from publisher_service.core.messages import GUID_BYTES, Group, WorkerBatch
from publisher_service.errors import JournalError, MalformedMessage, WorkerProtocolError
from pubsub_api.core import frame as frames
from pubsub_api.core.events import pack_body
from pubsub_api.core.frame import Kind
from pubsub_api.core.sending.publisher import Predecessor
from pubsub_api.core.settings import FrameSettings
from pubsub_api.errors import UnsafeFile
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.files import open_private, read_private

LOG = logging.getLogger(__name__)

MAGIC = b"HGJ1"
INCARNATIONS_MAX = 4
"""Incarnations that are remembered: enough for a service that dies again and again within a minute."""

_RECORD = struct.Struct(">4sIIQ")
"""Magic, length of the payload, CRC-32 of number and payload, number of the record."""
_BEFORE_NUMBER = struct.Struct(">4sII")
"""Its beginning."""
_NUMBER = struct.Struct(">Q")
_BATCH = struct.Struct(f">B{GUID_BYTES}sQQ")
"""Kind, worker, number of the batch, when it was taken."""
_REFUSED = struct.Struct(f">B{GUID_BYTES}sQ")
"""Kind, worker, how many of its events could not be published so far."""
_CHECKPOINT_KIND = b"C"
_REFUSED_KIND = b"R"
_BATCH_KIND = ord("B")
_UNUSABLE = (WorkerProtocolError, struct.error, msgspec.MsgspecError, IndexError, UnicodeDecodeError, RecursionError)
"""What a record raises that is whole and says nothing that makes sense."""


class Incarnation(msgspec.Struct, array_like=True):
    """One run of the service, from a start to an end: the GUID of its publisher and the heads of its streams."""

    guid: bytes
    heads: dict[str, int]


class JournalCheckpoint(msgspec.Struct, array_like=True):
    """Everything the records before it said, but for the events."""

    incarnations: list[Incarnation]
    """The last one is the one that writes."""
    taken: dict[bytes, int]
    refused: dict[bytes, int] = {}


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Events of one stream that follow each other, the first with number ``first``."""

    guid: bytes
    topic: str
    first: int
    encoded: list[bytes]
    stamp: int


@dataclasses.dataclass
class RecoveredJournal:
    """What a journal told.  Empty when there was none, or none that could be believed."""

    incarnations: list[Incarnation] = dataclasses.field(default_factory=list)
    taken: dict[bytes, int] = dataclasses.field(default_factory=dict)
    refused: dict[bytes, int] = dataclasses.field(default_factory=dict)
    """Of workers some of whose events could not be published, how many."""
    stretches: list[Stretch] = dataclasses.field(default_factory=list)
    number: int = 0
    """Of the last record."""
    turn: int = 1
    """Which file that is in."""
    end: int | None = None
    """Where that record ends; None when the file cannot be gone on with."""
    age_s: float = 0.0
    """How long ago it was written last, by the clock of this host."""
    is_damaged: bool = False
    """Files were there and nothing in them could be believed."""


_encode = msgspec.msgpack.Encoder().encode
_decode_checkpoint = msgspec.msgpack.Decoder(JournalCheckpoint).decode


class Journal(Closeable):
    """The writing side.  One owner at a time, which holds the lock of the service and serialises calls."""

    def __init__(self, path: pathlib.Path, *, bytes_max: int, workers_max: int = 10_000) -> None:
        self._paths = (path.with_name(path.name + ".0"), path.with_name(path.name + ".1"))
        self._segment_bytes = bytes_max // 2
        self._workers_max = workers_max
        self._file = -1
        self._at = 0
        self._turn = 0
        self._number = 0
        self._incarnations: list[Incarnation] = []
        self._heads: dict[str, int] = {}
        self._taken: dict[bytes, int] = {}
        """The number of the last batch of every worker, the one heard longest ago first."""
        self._refused: dict[bytes, int] = {}
        """Of those that are in there."""
        self.records = 0
        self.rotations = 0

    def recover(self) -> RecoveredJournal:
        """Read what the last owner left.  Never raises for what is in the files, only OSError, and UnsafeFile."""
        found = [(turn, list(_records(path))) for turn, path in enumerate(self._paths)]
        recovered = RecoveredJournal()
        for turn, records in sorted((one for one in found if one[1]), key=lambda one: one[1][0].number):
            is_whole = _replay(records, recovered)
            if recovered.number >= records[0].number:
                recovered.turn, recovered.end = turn, records[-1].end if is_whole else None
        written = [path.stat().st_mtime for path in self._paths if path.exists()]
        recovered.age_s = max(0.0, time.time() - max(written)) if written else 0.0
        recovered.is_damaged = not recovered.incarnations and any(_has_content(path) for path in self._paths)
        return recovered

    def start(self, guid: bytes, recovered: RecoveredJournal) -> None:
        """Begin a new incarnation behind the earlier ones, or in the other file.  Raises JournalError."""
        # The file that holds the newest record stays until it is its turn: should this process die at once, it is all
        # there is.  Only whole checkpoints count, so a torn new one hides nothing.
        self._turn = recovered.turn
        self._number = recovered.number
        self._incarnations = [*recovered.incarnations[-(INCARNATIONS_MAX - 1) :], Incarnation(guid, {})]
        self._heads = self._incarnations[-1].heads
        self._taken = dict(recovered.taken)
        self._refused = dict(recovered.refused)
        checkpoint = self._checkpoint()
        if recovered.end is not None and recovered.end + len(checkpoint) < self._segment_bytes * 3 // 4:
            self._open_file(os.O_RDWR)
            self._at = recovered.end
            self._write(checkpoint, b"")
        else:
            self._begin_segment()

    def append(
        self, worker: bytes, number: int, stamp: int, groups: Iterable[Group], payload: bytes | memoryview
    ) -> None:
        """A batch is about to be published: ``payload`` is its message, ``groups`` what that says.  Number 0 is for
        batches that no worker would send again.  Raises JournalError."""
        if self._at + _RECORD.size + _BATCH.size + len(payload) > self._segment_bytes:
            self._begin_segment()
        self._write(_BATCH.pack(_BATCH_KIND, worker, number, stamp), payload)
        heads = self._heads
        for topic, encoded in groups:
            heads[topic] = heads.get(topic, 0) + len(encoded)
        if number:
            taken = self._taken
            taken.pop(worker, None)
            taken[worker] = number
            if len(taken) > self._workers_max:
                self.forget(next(iter(taken)))

    def refuse(self, worker: bytes, events: int) -> None:
        """So many events of a worker cannot be published.  Before the batch they are in, so that none is forgotten when
        the service dies in between; then the worker sends the batch again, and they count twice.  Raises JournalError.
        """
        if self._at + _RECORD.size + _REFUSED.size > self._segment_bytes:
            self._begin_segment()
        self._refused[worker] = self._refused.get(worker, 0) + events
        self._write(_REFUSED.pack(ord(_REFUSED_KIND), worker, self._refused[worker]), b"")

    def forget(self, worker: bytes) -> None:
        """A worker has ended in good order."""
        self._taken.pop(worker, None)
        self._refused.pop(worker, None)

    def heads(self) -> Mapping[str, int]:
        """The head that every stream of this incarnation will have when all that is written here is published."""
        return self._heads

    @property
    def path(self) -> pathlib.Path:
        """The file that is written to now."""
        return self._paths[self._turn]

    @property
    def written_bytes(self) -> int:
        """In that file."""
        return self._at

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def is_writable(self) -> bool:
        """Whether files can be made, replaced and written where the journal is.  `discard` failed where they cannot."""
        probe = self._paths[0].with_name(self._paths[0].name + ".probe")
        try:
            os.close(open_private(probe, os.O_WRONLY | os.O_CREAT))
            probe.unlink()
            for path in self._paths:
                if path.exists():
                    os.close(open_private(path, os.O_RDWR))
        except (OSError, UnsafeFile) as error:
            LOG.warning("The journal %s cannot be written: %s", self._paths[0], error)
            return False
        return True

    def discard(self) -> None:
        """What is written here is not true any more: remove it, or empty it where that cannot be.  Never raises.

        A file that can be neither is told of in the log; `is_writable` says so to the next service, which then does not
        believe it.
        """
        self.close()
        for path in self._paths:
            try:
                path.unlink(missing_ok=True)
            except OSError:
                self._empty(path)

    def _empty(self, path: pathlib.Path) -> None:
        try:
            os.close(open_private(path, os.O_WRONLY | os.O_TRUNC))
        except (OSError, UnsafeFile) as error:
            LOG.error("The journal %s is not true any more, and can be neither removed nor emptied: %s", path, error)

    def _begin_segment(self) -> None:
        self.close()
        self._turn = 1 - self._turn
        checkpoint = self._checkpoint()
        self._open_file(os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._at = 0
        self.rotations += 1
        self._write(checkpoint, b"")

    def _open_file(self, flags: int) -> None:
        path = self._paths[self._turn]
        try:
            self._file = open_private(path, flags)
            # Reserved now, so that a full file system is refused here and not in the middle of a batch.
            os.posix_fallocate(self._file, 0, self._segment_bytes)
        except (OSError, UnsafeFile) as error:
            raise JournalError(f"the journal {path} cannot be begun: {error}") from error

    def _checkpoint(self) -> bytes:
        checkpoint = _CHECKPOINT_KIND + _encode(JournalCheckpoint(self._incarnations, self._taken, self._refused))
        if _RECORD.size + len(checkpoint) > self._segment_bytes // 2:
            raise JournalError(
                f"the heads of {len(self._heads)} streams do not fit a journal of {2 * self._segment_bytes} bytes: "
                "raise journal_bytes_max"
            )
        return checkpoint

    def _write(self, start: bytes, rest: bytes | memoryview) -> None:
        self._number += 1
        size = len(start) + len(rest)
        start = _NUMBER.pack(self._number) + start
        record = _BEFORE_NUMBER.pack(MAGIC, size, zlib.crc32(rest, zlib.crc32(start)))
        try:
            written = os.pwritev(self._file, (record, start, rest), self._at)
        except OSError as error:
            raise JournalError(f"the journal {self._paths[self._turn]} cannot be written: {error}") from error
        if written != _RECORD.size + size:
            raise JournalError(f"the journal {self._paths[self._turn]} took {written} of {_RECORD.size + size} bytes")
        self._at += written
        self.records += 1


class _Record(NamedTuple):
    number: int
    payload: bytes
    end: int
    """Where it ends in the file."""


def _records(path: pathlib.Path) -> Iterator[_Record]:
    """The sound records at the front of a file."""
    try:
        content = read_private(path)
    except FileNotFoundError:
        return
    at, expected = 0, None
    while at + _RECORD.size <= len(content):
        magic, size, checksum, number = _RECORD.unpack_from(content, at)
        at += _RECORD.size + size
        payload = content[at - size : at]
        is_next = expected is None or number == expected
        if magic != MAGIC or not is_next or zlib.crc32(payload, zlib.crc32(_NUMBER.pack(number))) != checksum:
            return
        yield _Record(number, payload, at)
        expected = number + 1


def _has_content(path: pathlib.Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _replay(records: list[_Record], into: RecoveredJournal) -> bool:
    """Add what one file says, as far as it can be used; True when that is all of it."""
    if records[0].payload[:1] != _CHECKPOINT_KIND:
        LOG.warning("A file of the journal does not begin with a checkpoint; it is ignored.")
        return False
    for record in records:
        try:
            if record.payload[:1] == _CHECKPOINT_KIND:
                checkpoint = _decode_checkpoint(record.payload[1:])
                into.incarnations, into.taken = checkpoint.incarnations, checkpoint.taken
                into.refused = checkpoint.refused
            elif record.payload[:1] == _REFUSED_KIND:
                _, worker, refused = _REFUSED.unpack(record.payload)
                into.refused[worker] = refused
            else:
                _replay_batch(record.payload, into)
        except _UNUSABLE as error:
            LOG.warning("Record %d of the journal cannot be used, nor what follows it: %s", record.number, error)
            return False
        into.number = record.number
    return True


def _replay_batch(payload: bytes, into: RecoveredJournal) -> None:
    _, worker, number, stamp = _BATCH.unpack_from(payload)
    message = messages.read_from_worker(payload[_BATCH.size :])
    if not isinstance(message, WorkerBatch):
        raise MalformedMessage(f"{type(message).__name__} instead of a batch")
    incarnation = into.incarnations[-1]
    for topic, encoded in message.groups:
        head = incarnation.heads.get(topic, 0)
        into.stretches.append(Stretch(incarnation.guid, topic, head + 1, encoded, stamp))
        incarnation.heads[topic] = head + len(encoded)
    if number:
        into.taken[worker] = number


def predecessor_of(recovered: RecoveredJournal, settings: FrameSettings) -> Predecessor | None:
    """What the next publisher tells its subscribers: the last incarnation with those before it, and its events as
    frames.  None when there was none."""
    predecessor: Predecessor | None = None
    for incarnation in recovered.incarnations:
        is_last = incarnation is recovered.incarnations[-1]
        predecessor = Predecessor(
            incarnation.guid,
            incarnation.heads,
            frames=_rebuild(recovered.stretches, settings) if is_last else (),
            former=predecessor,
        )
    return predecessor


def _rebuild(stretches: list[Stretch], settings: FrameSettings) -> list[bytes]:
    """The frames that hold these events.  Others than those that were sent, of the same numbers: that is what counts.

    What does not fit a frame under the present configuration is left out, and cannot be repaired.
    """
    room = settings.bytes_max - 2 * frames.FRAME_OVERHEAD_BYTES_MAX
    made = []
    for stretch in stretches:
        body = pack_body(stretch.encoded)
        if stretch.encoded and len(body) <= room:
            made.append(
                frames.pack(
                    Kind.DATA, stretch.guid, stretch.topic, body, first=stretch.first, after=stretch.first - 1,
                    count=len(stretch.encoded), timestamp=stretch.stamp, key=settings.key,
                )
            )  # fmt: skip
    return made
