"""Appending to Redis: threads share one script call, and positions of streams are compared before they are set.

What is new in a frame is decided here, from the positions that this process remembers.  The script takes the frames
only if those positions are still true, and else tells the true ones: then it is decided again.  One of them always gets
through, and none tries for ever.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from durable_log.config import MISSING_RANGES_MAX
from durable_log.core.placing import NOWHERE, StreamPosition, extend, place
from durable_log.core.positions import decode_position, encode_position, stream_key
from durable_log.errors import LogCorrupt, LogUnavailable
from durable_log.log_api import Appended
from durable_log.storage.shard_map import ShardMap
from heliograph_drivers.log.redis import scripts
from heliograph_drivers.log.redis.config import STREAMS_CACHED_MAX
from heliograph_drivers.log.redis.server import Argument, RedisLogServer
from pubsub_api.core.frame import Header
from pubsub_api.errors import HeliographError
from pubsub_api.runtime import forking

BATCH_MAX = 500
"""Calls that share one script call."""

Head = tuple[bytes, str, int]
"""GUID and topic of a stream, and the number of its last event."""

_Key = tuple[int, bytes]
"""Shard, and GUID and topic in one."""


class _Job:
    __slots__ = ("error", "frames", "heads", "is_done", "result")

    def __init__(self, frames: Sequence[tuple[Header, bytes]], heads: Sequence[Head]) -> None:
        self.frames = frames
        self.heads = heads
        self.result: Appended | None = None
        self.error: HeliographError | None = None
        self.is_done = False


class Appender:
    """``forgotten`` counts missing numbers that were forgotten because a stream had too many holes."""

    def __init__(
        self,
        server: RedisLogServer,
        prefix: str,
        *,
        shards: Callable[[], ShardMap],
        find_shards: Callable[[], None],
        timeout_s: float,
    ) -> None:
        """``shards`` is how many there are, as far as is known; ``find_shards`` learns it anew."""
        self._server = server
        self._shards = shards
        self._find_shards = find_shards
        self._prefix = prefix
        self._timeout_s = timeout_s
        self.identity = ""
        self.forgotten = 0
        self.after_fork_in_child()
        forking.register(self)

    def after_fork_in_child(self) -> None:
        self._turn = threading.Lock()
        self._waiting: collections.deque[_Job] = collections.deque()
        self._known: collections.OrderedDict[_Key, bytes] = collections.OrderedDict()

    def append(self, frames: Sequence[tuple[Header, bytes]], heads: Sequence[Head] = ()) -> Appended:
        """Append frames, and note up to which numbers streams have events.  Raises LogUnavailable, LogError, Closed."""
        job = _Job(frames, heads)
        self._waiting.append(job)
        if not self._turn.acquire(timeout=self._timeout_s):
            job.is_done = True  # for the thread that has the turn: no caller waits for it
            raise LogUnavailable(f"the log was busy with other appends for {self._timeout_s} s")
        try:
            while not job.is_done:
                self._append_waiting()
        finally:
            self._turn.release()
        if job.error is not None:
            raise job.error
        assert job.result is not None
        return job.result

    def _append_waiting(self) -> None:
        jobs: list[_Job] = []
        while self._waiting and len(jobs) < BATCH_MAX:
            job = self._waiting.popleft()
            if not job.is_done:
                jobs.append(job)
        self._append_jobs(jobs)
        if len(jobs) > 1 and isinstance(jobs[0].error, LogCorrupt):
            for job in jobs:  # what is damaged is not of all of them, and nothing was written
                job.error = None
                self._append_jobs([job])

    def _append_jobs(self, jobs: Sequence[_Job]) -> None:
        deadline = time.monotonic() + self._timeout_s
        try:
            while not self._try(jobs):
                if time.monotonic() > deadline:
                    raise LogUnavailable(f"others were faster with the same streams for {self._timeout_s} s")
        except HeliographError as error:
            self._known.clear()  # whether it happened is not known
            for job in jobs:
                job.error = error
        finally:
            for job in jobs:
                job.is_done = True

    def _try(self, jobs: Sequence[_Job]) -> bool:
        """Place all frames and store them; False when a position was not what we thought."""
        shards = self._shards()
        attempt = _Attempt(self._known, shards)
        kept = [attempt.place(job.frames) for job in jobs]
        attempt.extend([head for job in jobs for head in job.heads])
        outcome, *rest = self._server.script(
            scripts.APPEND, self._prefix, *attempt.arguments(), shards.shards, self.identity
        )
        if outcome == scripts.OTHER_SHARDS:
            self._known.clear()
            self._find_shards()
            return False
        [answer] = rest
        if not outcome:
            for index, found in zip(answer[::2], answer[1::2], strict=True):
                self._known[attempt.keys[index - 1]] = found
            return False
        for key, position in attempt.positions.items():
            self._known[key] = encode_position(key[1], position)
            self._known.move_to_end(key)
        while len(self._known) > STREAMS_CACHED_MAX:
            self._known.popitem(last=False)
        self.forgotten += attempt.forgotten
        ends = {int(shard): int(end) for shard, end in zip(answer[::2], answer[1::2], strict=True)}
        for job, (events, touched) in zip(jobs, kept, strict=True):
            total = sum(header.count for header, _ in job.frames)
            grown = {shard: ends[shard] for shard in touched}
            job.result = Appended(events, total - events, grown)
        return True


class _Attempt:
    """One try: where streams would stand, and the frames to store."""

    def __init__(self, known: collections.OrderedDict[_Key, bytes], shards: ShardMap) -> None:
        self._known = known
        self._shards = shards
        self.keys: list[_Key] = []
        self._indices: dict[_Key, int] = {}
        self._opened: dict[tuple[bytes, str], _Key] = {}
        self._parents: dict[_Key, str] = {}
        """The shards that had the stream before, newest first."""
        self.positions: dict[_Key, StreamPosition] = {}
        self.forgotten = 0
        self._frames: list[Argument] = []

    def place(self, frames: Sequence[tuple[Header, bytes]]) -> tuple[int, set[int]]:
        """Returns how many events of one call are new, and the shards that grow by them."""
        events, touched = 0, set[int]()
        for header, frame in frames:
            shard, key = self._open(header.guid, header.topic)
            placement = place(header, self.positions[key], ranges_max=MISSING_RANGES_MAX)
            self.positions[key] = placement.position
            self.forgotten += placement.forgotten
            for first, last in placement.kept:
                self._frames += (
                    shard, self._indices[key], first, last - first + 1, first - header.first, frame,
                    scripts.frame_crc(frame),
                )  # fmt: skip
                events += last - first + 1
                touched.add(shard)
        return events, touched

    def extend(self, heads: Sequence[Head]) -> None:
        for guid, topic, head in heads:
            _, key = self._open(guid, topic)
            self.positions[key] = extend(self.positions[key], head, ranges_max=MISSING_RANGES_MAX)

    def _open(self, guid: bytes, topic: str) -> tuple[int, _Key]:
        """The shard of a stream, and its key, under which `positions` has where it stands."""
        key = self._opened.get((guid, topic))
        if key is None:
            *parents, shard = self._shards.shards_of(topic)
            key = self._opened[guid, topic] = (shard, stream_key(guid, topic))
            self._parents[key] = ",".join(map(str, reversed(parents)))
            self.keys.append(key)
            self._indices[key] = len(self.keys)
            known = self._known.get(key)
            self.positions[key] = decode_position(*key, known) if known else NOWHERE
        return key[0], key

    def arguments(self) -> list[Any]:
        streams: list[Argument] = []
        for shard, name in self.keys:
            known = self._known.get((shard, name), b"")
            position = encode_position(name, self.positions[shard, name])
            streams += (shard, name, known, position, self._parents[shard, name])
        return [len(self.keys), *streams, *self._frames]
