"""Where streams and shards stand decides what is stored: when that is damaged it is told, not believed."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import durable_log
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.sources import Source, read_frames
from durable_log.upkeep.repairing import repair
from durable_log.upkeep.verifying import verify
from tests.helpers.servers import RedisServer
from tests.helpers.servers_db import PostgresServer, schema_of

TOPIC = "t"
GUID = bytes(range(16))


@dataclasses.dataclass
class Stored:
    log: SegmentedLog
    change_position: Callable[[Callable[[bytes], bytes]], None]
    """Changes what is stored of the stream of `GUID`."""
    set_end: Callable[[int], None]


@contextlib.contextmanager
def _in_sqlite(tmp_path: pathlib.Path) -> Iterator[Stored]:
    def execute(sql: str, *parameters: bytes | int) -> list[tuple[bytes]]:
        with contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as connection, connection:
            return connection.execute(sql, parameters).fetchall()

    def change_position(change: Callable[[bytes], bytes]) -> None:
        [(before,)] = execute("SELECT position FROM streams WHERE guid = ?", GUID)
        execute("UPDATE streams SET position = ? WHERE guid = ?", change(before), GUID)

    with contextlib.closing(durable_log.open(f"sqlite://{tmp_path}/log.db?shards=1")) as log:
        assert isinstance(log, SegmentedLog)
        yield Stored(log, change_position, lambda end: (execute('UPDATE shards SET "end" = ?', end), None)[1])


@contextlib.contextmanager
def _in_redis(tmp_path: pathlib.Path) -> Iterator[Stored]:
    with RedisServer() as server, server.client() as client:
        url = f"{server.address}?shards=1&segment_directory={tmp_path}/segments"

        def change_position(change: Callable[[bytes], bytes]) -> None:
            [name] = client.keys("*streams:0")
            key = GUID + TOPIC.encode()
            client.hset(name, key, change(client.hget(name, key)))

        def set_end(end: int) -> None:
            [name] = client.keys("*shard:0")
            client.hset(name, "end", end)

        with contextlib.closing(durable_log.open(url)) as log:
            assert isinstance(log, SegmentedLog)
            yield Stored(log, change_position, set_end)


@contextlib.contextmanager
def _in_postgres(tmp_path: pathlib.Path, server: PostgresServer) -> Iterator[Stored]:
    url = f"{server.new_schema()}&shards=1&segment_directory={tmp_path}/segments"
    with server.client() as client:
        client.execute(f"SET search_path = {schema_of(url)}")

        def change_position(change: Callable[[bytes], bytes]) -> None:
            [(number, before)] = [
                (number, position)
                for number, key, position in client.execute("SELECT id, key, position FROM streams").fetchall()
                if isinstance(key, bytes) and key.startswith(GUID)
            ]
            assert isinstance(before, bytes)
            client.execute("UPDATE streams SET position = %s WHERE id = %s", (change(before), number))

        def set_end(end: int) -> None:
            client.execute('UPDATE shards SET "end" = %s', (end,))

        with contextlib.closing(durable_log.open(url)) as log:
            assert isinstance(log, SegmentedLog)
            yield Stored(log, change_position, set_end)


@pytest.fixture(params=[_in_sqlite, _in_redis, _in_postgres], ids=["sqlite", "redis", "postgres"])
def stored(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Stored]:
    servers = [request.getfixturevalue("postgres")] if request.param is _in_postgres else []
    with request.param(tmp_path, *servers) as stored:
        yield stored


def _flip(place: int) -> Callable[[bytes], bytes]:
    def flip(data: bytes) -> bytes:
        number = int.from_bytes(data, "big") ^ 1 << place % (8 * len(data))
        return number.to_bytes(len(data), "big")

    return flip


@pytest.mark.parametrize("change", [*map(_flip, range(0, 64, 7)), lambda _: b"\0", lambda _: b"\xc1"])
def test_a_damaged_position_is_told_and_found_anew(stored: Stored, change: Callable[[bytes], bytes]) -> None:
    log, source = stored.log, Source(GUID)
    sent = [source.frame(TOPIC, 3), source.frame(TOPIC, 3)]
    log.append([sent[0]])
    Sealer(log).seal(0)
    log.append([sent[1]])
    identity = log.identity
    stored.change_position(change)
    with pytest.raises(durable_log.LogCorrupt, match="'heliograph log repair'"):
        log.append([source.frame(TOPIC, 10)])
    with pytest.raises(durable_log.LogCorrupt, match=GUID.hex()):
        log.streams(0)
    assert [GUID.hex() in problem for problem in verify(log).problems] == [True]
    assert log.append([Source().frame(TOPIC, 1)]).events == 1, "the others are stored"
    repair(log)
    assert verify(log).problems == []
    assert log.identity == identity, "all offsets mean what they did"
    assert log.append(sent).events == 0, "they are there"
    assert log.append([source.frame(TOPIC, 10)]).events == 10
    [one] = [one for one in log.streams(0) if one.guid == GUID]
    assert (one.last, one.missing) == (26, ((7, 16),))


def test_a_damaged_position_of_a_stream_without_frames_is_forgotten(stored: Stored) -> None:
    log = stored.log
    log.append([Source(GUID).frame(TOPIC, 3)])
    log.trim(0, 3)
    stored.change_position(lambda _: b"\0")
    repair(log)
    assert log.streams(0) == []
    assert log.append([Source(GUID).frame(TOPIC, 3)]).events == 3


def test_who_appends_at_the_same_time_does_not_suffer_from_a_damaged_position(stored: Stored) -> None:
    log, source = stored.log, Source(GUID)
    log.append([source.frame(TOPIC, 3)])
    stored.change_position(_flip(3))

    def append(source: Source) -> int:
        try:
            return sum(log.append([source.frame(TOPIC, 1)]).events for _ in range(20))
        except durable_log.LogCorrupt:
            return -1

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(append, [Source(), source, Source(), Source()])) == [20, -1, 20, 20]


@pytest.mark.parametrize("end", [0, 5, 7])
def test_an_end_that_is_too_low_is_told_and_found_anew(stored: Stored, end: int) -> None:
    log, source = stored.log, Source(GUID)
    sent = [source.frame(TOPIC, 3) for _ in range(4)]
    for frame in sent[:2]:
        log.append([frame])
    if end:
        Sealer(log).seal(0)
    for frame in sent[2:]:
        log.append([frame])
    stored.set_end(end)
    later = source.frame(TOPIC, 3)
    with pytest.raises(durable_log.LogCorrupt, match="behind its end"):
        log.append([later])
    assert any("behind its end" in problem for problem in verify(log).problems)
    repair(log)
    assert verify(log).problems == []
    assert log.append([later]).ends == {0: 15}
    assert [one.frame for one in read_frames(log, 0)] == [*sent, later]
