"""A log in Redis, for several hosts.

Hot frames are entries of Redis streams, whose ids are the offsets.  Every change is one Lua script, so it happens as a
whole; a script sees the positions of streams that it was computed from, or refuses.  A blocked `wait` is a blocked
``XREAD``: the server tells it.

Redis is as durable as it is configured: ``appendonly yes`` with ``appendfsync always`` keeps what `append` promises;
less than that is told with a warning when the log is opened.  Segments need a directory that every host has mounted.
"""

from __future__ import annotations

import itertools
import logging
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import SplitResult

from oslo_config import cfg

from durable_log import config as log_config
from durable_log.core import checks
from durable_log.core.checksums import damaged, gap
from durable_log.core.fence import Fence
from durable_log.core.positions import encode_position, stream_key
from durable_log.errors import LogError, LogUnavailable, RecordConflict
from durable_log.log_api import Appended, Record, ShardState, StoredFrame
from durable_log.storage import shard_map
from durable_log.storage.identity import Lineage, new_identity
from durable_log.storage.segmented import HotRead, RestoredShard, SegmentedLog, replaced, take, used_meanwhile
from durable_log.storage.shard_map import ShardMap
from heliograph_drivers.log.redis import scripts
from heliograph_drivers.log.redis.appending import Appender
from heliograph_drivers.log.redis.config import GROUP, OPTIONS, WAIT_SLICE_S
from heliograph_drivers.log.redis.server import RedisLogServer
from pubsub_api.errors import Closed, InvalidConfig

LOG = logging.getLogger(__name__)

_STATE = ("start", "sealed", "end", "bytes")
_PORTION = 128
"""Frames asked for at first, at most."""
_PORTION_MIN, _PORTION_MAX = 16, 4096
"""Frames asked for when more are wanted; not more than there were before."""
_PURGE_PORTION = 500
_FORGET_PORTION = 1000
_FRAME_FIELDS = 6
_NO_FENCE = ("", b"")
_SECOND_NS = 1_000_000_000


class RedisLog(SegmentedLog):
    """``redis://[user:password@]host:port/db``, or ``rediss://`` for TLS."""

    options: ClassVar[Mapping[str, Sequence[cfg.Opt]]] = {GROUP: OPTIONS}

    def __init__(self, conf: cfg.ConfigOpts, url: SplitResult) -> None:
        super().__init__(conf, url)
        self._limits = conf[log_config.GROUP]
        self._frame_bytes_max = log_config.frame_bytes_max(conf)
        self._options = conf[GROUP]
        self._lineage = Lineage("")
        self._server = RedisLogServer(url, self._options, self._limits)
        self._prefix = self._server.prefix
        self._appender = Appender(
            self._server, self._prefix, shards=lambda: self.shard_map, find_shards=self.find_shards,
            timeout_s=self._limits.operation_timeout,
        )  # fmt: skip

    def exists(self) -> bool:
        return bool(self._server.command("EXISTS", f"{self._prefix}log"))

    def connect(self) -> None:
        try:
            found_format, *found_log = self._server.script(
                scripts.INITIALIZE, self._prefix, self.new_shards(), new_identity()
            )
        except LogUnavailable:
            raise
        except LogError as error:
            raise InvalidConfig(f"{self._server.address} cannot be used for a log: {error}") from error
        if found_format.decode() != scripts.FORMAT:
            raise self._other_format(found_format.decode())
        shards, identity, ancestors = found_log
        self._lineage = Lineage(identity.decode(), frozenset((ancestors or b"").decode().split()))
        self._server.identity = self._appender.identity = self.identity
        self.find_shards(int(shards))

    def check_settings(self) -> list[str]:
        address = self._server.address
        try:
            information = self._server.command("INFO").decode(errors="replace")
        except LogUnavailable:
            raise
        except LogError as error:
            return [f"whether {address} keeps what it is told cannot be asked: {error}"]
        found = []
        if "aof_enabled:1" not in information:
            found.append(f"{address} keeps the log in memory only: set appendonly yes, appendfsync always")
        elif (policy := self._sync_policy()) not in ("always", ""):
            found.append(f"{address} has appendfsync {policy}: a crash of its host loses the last appends; set always")
        if "maxmemory_policy:noeviction" not in information:
            found.append(f"{address} may evict keys of the log: set maxmemory-policy noeviction")
        return found

    def _sync_policy(self) -> str:
        """When the server writes to its disk; empty when we may not ask."""
        try:
            answer = self._server.command("CONFIG", "GET", "appendfsync")
        except LogUnavailable:
            raise
        except LogError:
            return ""
        return answer[1].decode() if len(answer) == 2 else ""

    @property
    def lineage(self) -> Lineage:
        return self._lineage

    def close(self) -> None:
        self._server.close()

    # -- frames

    def append(self, frames: Sequence[bytes]) -> Appended:
        headers = checks.read_headers(frames, bytes_max=self._frame_bytes_max)
        self._server.check_open()
        if not headers:
            return Appended(0, 0, {})
        before = self._appender.forgotten
        appended = self._appender.append(list(zip(headers, frames, strict=True)))
        if self._appender.forgotten > before:
            LOG.warning(
                "more than MISSING_RANGES_MAX holes: %d numbers that never came are forgotten", self._appender.forgotten
            )
        return appended

    def note_missing(self, heads: Sequence[tuple[bytes, str, int]]) -> None:
        self._server.check_open()
        if heads:
            self._appender.append([], heads)

    def stored_states(self) -> list[ShardState]:
        shards = self.shards
        while True:
            commands = [self._state_command(shard) for shard in range(shards)]
            found, *answers = self._transaction([("HGET", f"{self._prefix}log", "shards"), *commands])
            if int(found) == shards:
                return [_state(shard, answer) for shard, answer in enumerate(answers)]
            shards = int(found)

    def wait(self, ends: Mapping[int, int], *, timeout_s: float) -> bool:
        self.check_ends(ends, timeout_s)
        self._server.check_open()
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                states = self.state()
                if any(one.end > ends[one.shard] for one in states if one.shard in ends):
                    return True
                rest = deadline - time.monotonic()
                if rest <= 0:
                    return False
                self._block(states, [shard for shard in ends if shard < len(states)], min(rest, WAIT_SLICE_S))
        except Closed:
            return False

    def _block(self, states: Sequence[ShardState], shards: Sequence[int], timeout_s: float) -> None:
        """Until one of the shards grows, or the time is over."""
        if not shards:
            time.sleep(timeout_s)
            return
        # Ids behind everything that is there now.
        ids = [f"{states[shard].end - 1}-{2**64 - 1}" if states[shard].end else "0-0" for shard in shards]
        milliseconds = max(1, math.ceil(timeout_s * 1000))
        keys = [self._key("frames", shard) for shard in shards]
        self._server.command("XREAD", "COUNT", 1, "BLOCK", milliseconds, "STREAMS", *keys, *ids)

    # -- records

    def get_record(self, name: str) -> Record | None:
        checks.check_name(name)
        value, version = self._transaction([
            ("HGET", f"{self._prefix}values", name), ("HGET", f"{self._prefix}versions", name),
        ])  # fmt: skip
        return None if version is None else Record(name, value, int(version))

    def put_records(self, writes: Sequence[tuple[str, bytes | None, int | None]]) -> list[int]:
        checks.check_writes(writes, bytes_max=log_config.RECORD_BYTES_MAX)
        if not writes:
            self._server.check_open()
            return []
        arguments: list[bytes | str | int] = []
        for name, value, expected in writes:
            arguments += (name, "" if expected is None else expected, int(value is None), value or b"")
        has_won, *answer = self._script(scripts.PUT_RECORDS, *arguments)
        if not has_won:
            name, version, expected_version = (part.decode() for part in answer)
            raise RecordConflict(f"record {name!r} has version {version}, not {expected_version} as expected")
        return [int(version) for version in answer]

    def list_records(self, prefix: str) -> list[Record]:
        raw = prefix.encode()
        limits = (b"[" + raw, b"[" + raw + b"\xff") if raw else (b"-", b"+")
        answer = self._script(scripts.LIST_RECORDS, *limits, changes=False)
        triples = zip(answer[::3], answer[1::3], answer[2::3], strict=True)
        return [Record(name.decode(), value, int(version)) for name, value, version in triples]

    # -- what the sealed part builds on

    def add_shards(self, found: ShardMap, shards: int) -> ShardMap | None:
        value = self._script(scripts.ADD_SHARDS, found.shards, shards, shard_map.RECORD)
        return shard_map.decode(shards, value) if value else None

    def hot_read(self, shard: int, offset: int, *, events_max: int, bytes_max: int) -> HotRead:
        key, place, count = self._key("frames", shard), f"{offset}-1", min(events_max, _PORTION)
        answers = self._transaction([
            self._state_command(shard),
            ("XREVRANGE", key, place, "-", "COUNT", 1),
            ("XRANGE", key, f"({place}", "+", "COUNT", count),
        ])  # fmt: skip
        state = _state(shard, answers[0])
        if not max(state.sealed, state.start) <= offset < state.end:
            return HotRead(state, [])
        portion = [*answers[1], *answers[2]]
        # Entries asked for later may have been sealed since; then there is a gap, behind what this read returns.
        frames = self._frames(state, portion, offset, events_max, is_last=len(answers[2]) < count)
        return HotRead(state, take(frames, offset=offset, events_max=events_max, bytes_max=bytes_max, state=state))

    def _frames(
        self, state: ShardState, portion: list[Any], offset: int, events_max: int, *, is_last: bool
    ) -> Iterator[StoredFrame]:
        """Frames from a portion of entries and those behind it, as many as the caller takes.  Raises LogCorrupt.

        Asks for as many as so many events from the offset on take, if frames go on to be as large as they were.
        """
        shard, key, seen = state.shard, self._key("frames", state.shard), 0
        while portion:
            for entry in portion:
                stored = _stored(shard, entry)
                if stored is None:
                    behind = self._server.command("XRANGE", key, b"(" + entry[0], "+", "COUNT", 1)
                    raise damaged(shard, _offset(entry), _offset(behind[0]) if behind else state.end)
                yield stored
            if is_last:
                return
            last, seen = _offset(portion[-1]), seen + len(portion)
            expected = seen * events_max // max(1, last - offset) - seen + 2
            count = min(max(expected, _PORTION_MIN), seen, _PORTION_MAX)
            portion = self._server.command("XRANGE", key, f"({last}-1", "+", "COUNT", count)
            is_last = len(portion) < count

    def hot_read_stream(self, guid: bytes, topic: str, first: int, last: int, *, bytes_max: int) -> list[StoredFrame]:
        found = [
            stored for shard in self.shards_of(topic)
            for stored in self._hot_read_stream(shard, guid, topic, first, last, bytes_max=bytes_max)
        ]  # fmt: skip
        found.sort(key=lambda stored: stored.header().first + stored.skipped)
        return take(found, offset=0, events_max=sys.maxsize, bytes_max=bytes_max)

    def _hot_read_stream(
        self, shard: int, guid: bytes, topic: str, first: int, last: int, *, bytes_max: int
    ) -> list[StoredFrame]:
        index = f"{self._prefix}numbers:{shard}:".encode() + stream_key(guid, topic)
        before, within = self._transaction([
            ("ZREVRANGEBYSCORE", index, first, "-inf", "LIMIT", 0, 1),
            ("ZRANGEBYSCORE", index, f"({first}", last),
        ])  # fmt: skip
        key, ids = self._key("frames", shard), [offset + b"-1" for offset in (*before, *within)]
        found: list[StoredFrame] = []
        while ids and sum(len(one.frame) for one in found) <= bytes_max:
            portion, ids = ids[:_PORTION], ids[_PORTION:]
            answers = self._transaction([("XRANGE", key, place, place) for place in portion])
            for entry in (entry for entries in answers for entry in entries):
                stored = _stored(shard, entry)
                if stored is None:
                    if not found:
                        self.hot_read(shard, _offset(entry), events_max=1, bytes_max=1)  # raises, and knows its end
                    return found
                if stored.header().first + stored.skipped + stored.count > first:
                    found.append(stored)
        return found

    def now_ns(self) -> int:
        seconds, microseconds = self._server.command("TIME")
        return int(seconds) * _SECOND_NS + int(microseconds) * 1000

    def hot_find(self, shard: int, appended_ns: int) -> int:
        looked_at, place, *gap_end = self._script(scripts.FIND, shard, f"{max(0, appended_ns):019d}", changes=False)
        for entry in looked_at:
            if _stored(shard, entry) is None:
                self.hot_read(shard, _offset(entry), events_max=1, bytes_max=1)  # raises, and knows its end
                raise damaged(shard, _offset(entry), _offset(entry) + 1)
        if gap_end:
            raise gap(shard, int(place), int(gap_end[0]))
        return int(place)

    def positions(self, shard: int) -> list[tuple[bytes, bytes]]:
        (answer,) = self._transaction([("HGETALL", self._key("streams", shard))])
        return sorted(zip(answer[::2], answer[1::2], strict=True))

    def stored_end(self, shard: int) -> int:
        (entries,) = self._transaction([("XREVRANGE", self._key("frames", shard), "+", "-", "COUNT", 1)])
        if not entries:
            return 0
        stored = _stored(shard, entries[0])
        return _offset(entries[0]) + 1 if stored is None else stored.end

    def manifest(self, shard: int | None) -> list[str]:
        shards = range(self.shards) if shard is None else [shard]
        answers = self._transaction([("HGETALL", self._key("segments", one)) for one in shards])
        found: list[str] = []
        for answer in answers:
            entries = zip(map(int, answer[::2]), answer[1::2], strict=True)
            found += [entry.decode() for _, entry in sorted(entries)]
        return found

    def add_segment(self, shard: int, first: int, end: int, entry: str, fence: Fence | None) -> bool:
        return self._change(shard, scripts.ADD_SEGMENT, shard, first, end, entry, *(fence or _NO_FENCE))

    def replace_segments(
        self, shard: int, span: tuple[int, int], old: Sequence[str], entry: str, fence: Fence | None
    ) -> bool:
        return self._change(shard, scripts.REPLACE_SEGMENTS, shard, *span, entry, *(fence or _NO_FENCE), *old)

    def drop(self, shard: int, start: int, sealed_end: int) -> bool:
        return self._change(shard, scripts.DROP, shard, start, sealed_end)

    def forget_streams(self, before_ns: int) -> int:
        gone = 0
        while count := int(self._script(scripts.FORGET, max(0, before_ns) // _SECOND_NS, _FORGET_PORTION)):
            gone += count
        return gone

    def restore(self, lineage: Lineage, shards: Sequence[RestoredShard]) -> None:
        states = self.state()
        for one in shards:
            if states[one.shard].end != one.former_end:
                raise used_meanwhile(one.shard)
        for one in shards:
            for key in one.forgotten:
                self._script(scripts.FORGET_STREAM, one.shard, key)
            keys = {stream_key(*name): position for name, position in one.streams.items()}
            streams = [(key, encode_position(key, position)) for key, position in keys.items()]
            while streams:
                portion, streams = streams[:_FORGET_PORTION], streams[_FORGET_PORTION:]
                self._script(scripts.RESTORE_STREAMS, one.shard, *itertools.chain(*portion))
            entries = [part for entry in one.entries for part in entry]
            self._change(
                one.shard, scripts.RESTORE, one.shard, one.start, one.sealed, one.end, len(one.entries), *entries
            )
        self._script(scripts.RENAME, lineage.identity, " ".join(lineage.ancestors))
        self.connect()

    def directory_token(self) -> str:
        (token,) = self._transaction([("HGET", f"{self._prefix}log", "directory_token")])
        return (token or b"").decode()

    def set_directory_token(self, token: str, fence: Fence | None) -> None:
        self._script(scripts.SET_DIRECTORY_TOKEN, token, *(fence or _NO_FENCE))

    # -- inside

    def _change(self, shard: int, script: str, *arguments: bytes | str | int) -> bool:
        """Run a script that moves where the hot part begins, then let go of what is not hot any more."""
        is_done = bool(self._script(script, *arguments))
        while is_done and self._script(scripts.PURGE, shard, _PURGE_PORTION) == _PURGE_PORTION:
            pass
        return is_done

    def _script(self, source: str, *arguments: bytes | str | int, changes: bool = True) -> Any:
        return self._server.script(source, self._prefix, *arguments, self.identity, changes=changes)

    def _transaction(self, commands: Sequence[Sequence[bytes | str | int]]) -> list[Any]:
        """Run commands that see the same moment, and that the log is still the one that was opened."""
        found, *answers = self._server.transaction([("HGET", f"{self._prefix}log", "identity"), *commands])
        if found != self.identity.encode():
            raise replaced(self._server.address, self.identity, (found or b"").decode(errors="replace"))
        return answers

    def _other_format(self, found: str) -> InvalidConfig:
        made_by = f"format {found}, that of another release" if found else "the format of an earlier release"
        return InvalidConfig(
            f"the log {self._prefix!r} at {self._server.address} has {made_by}; this one reads format "
            f"{scripts.FORMAT} and has changed nothing. Read it with the release that made it. To begin a new log, "
            f"name another [log_redis] key_prefix, or delete the keys that begin with {self._prefix!r}"
        )

    def _key(self, kind: str, shard: int) -> str:
        return f"{self._prefix}{kind}:{shard}"

    def _state_command(self, shard: int) -> tuple[str, ...]:
        return ("HMGET", self._key("shard", shard), *_STATE)


def _state(shard: int, answer: Sequence[bytes | None]) -> ShardState:
    start, sealed, end, size = (int(value or 0) for value in answer)
    return ShardState(shard, start, sealed, end, size)


def _offset(entry: Sequence[Any]) -> int:
    return int(entry[0].partition(b"-")[0])


def _stored(shard: int, entry: Sequence[Any]) -> StoredFrame | None:
    """From an entry of a stream: its id, and names and values in the order of `scripts.APPEND`.

    None when the entry is not what was appended.
    """
    place, values = entry[0].partition(b"-")[0], entry[1][1::2]
    if len(values) != _FRAME_FIELDS:
        return None
    count, skipped, appended_ns, key, frame, mark = values
    if scripts.frame_mark(shard, place, count, skipped, appended_ns, key, frame) != mark:
        return None
    # Without the call of its class: this is done for every frame that is read.
    fields = (shard, int(place), int(count), int(skipped), int(appended_ns), frame)
    return tuple.__new__(StoredFrame, fields)
