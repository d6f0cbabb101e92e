"""Bits that flip in the unsealed part of a log are told, never served as data, and never sealed."""

from __future__ import annotations

import contextlib
import pathlib
import random
import sqlite3
from collections.abc import Callable, Iterator

import pytest

import durable_log
from durable_log.errors import LogError
from durable_log.log_api import LogApi
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.sources import Source
from durable_log.upkeep.verifying import verify
from pubsub_api.errors import HeliographError
from tests.helpers.logs import opened
from tests.helpers.servers import RedisServer
from tests.helpers.servers_db import PostgresServer, schema_of

FRAMES, EVENTS = 40, 5
TOPIC = "t"
FLIPS = 60


def readable(log: LogApi, end: int = FRAMES * EVENTS) -> tuple[list[bytes], int]:
    """The frames that can be read, and how often it was told that something cannot."""
    found, offset, told = list[bytes](), 0, 0
    while offset < end:
        try:
            frames = log.read(0, offset)
        except durable_log.LogCorrupt as error:
            told += 1
            if error.end is None:
                break
            offset = max(error.end, offset + 1)
            continue
        if not frames:
            break
        found += [one.frame for one in frames]
        offset = frames[-1].end
    return found, told


def sent_frames(count: int = FRAMES) -> list[bytes]:
    source = Source(bytes(16))
    return [source.frame(TOPIC, EVENTS, value="x" * 300) for _ in range(count)]


def test_of_flipped_bits_in_sqlite_none_is_served(tmp_path: pathlib.Path) -> None:
    """Flips one bit at a time, in a copy of the file, anywhere in it."""
    sent, chance = sent_frames(3 * FRAMES), random.Random(15)
    end = len(sent) * EVENTS
    with opened(f"sqlite://{tmp_path}/log.db?shards=1") as log:
        log.append(sent)
    whole, told = (tmp_path / "log.db").read_bytes(), 0
    for number in range(FLIPS):
        path = tmp_path / f"{number}.db"
        data = bytearray(whole)
        data[chance.randrange(100, len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        try:
            with opened(f"sqlite://{path}") as log:
                frames, errors = readable(log, end)
                assert set(frames) <= set(sent), "a damaged frame was served"
                problems = verify(log).problems
                if frames != sent:
                    told += 1
                    assert errors or log.state()[0].end != end
                    assert problems
                    with contextlib.suppress(LogError):
                        Sealer(log).seal(0)
                    assert set(readable(log, end)[0]) <= set(sent), "a damaged frame was sealed"
        except HeliographError:
            told += 1
    assert told > FLIPS // 3


def change_row(server: PostgresServer, url: str, statement: str) -> None:
    with server.client() as client:
        client.execute(f"SET search_path = {schema_of(url)}")
        assert client.execute(statement.encode()).rowcount == 1


def flip_in_redis(server: RedisServer, data: bytes) -> None:
    """Flip a bit of what the server has on disk, while it is down."""
    server.kill()
    flip_in_files(server.directory, data, len(data) // 2)
    server.restart()


def flip_in_files(directory: pathlib.Path, data: bytes, behind: int) -> None:
    """Flip a bit so many bytes behind the place where some data begins."""
    for path in sorted(directory.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        if data in content:
            place = content.index(data) + behind
            with path.open("r+b") as file:
                file.seek(place)
                file.write(bytes([content[place] ^ 4]))
            return
    raise AssertionError("it is not on the disk of the server")


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def damaged(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[SegmentedLog]:
    """A log whose frame of offsets 50 to 55 has a flipped bit in a value."""
    sent = sent_frames()
    if request.param == "sqlite":
        url = f"sqlite://{tmp_path}/log.db?shards=1"
        with opened(url) as log:
            log.append(sent)
        path = tmp_path / "log.db"
        content = path.read_bytes()
        place = content.index(sent[10][:60]) + 100
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with opened(url) as log:
            yield log
        return
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = f"{server.new_schema()}&shards=1&segment_directory={tmp_path}/segments"
        with opened(url) as log:
            log.append(sent)
            change_row(server, url, "UPDATE frames SET frame = set_byte(frame, 100, 4) WHERE id = 50")
            yield log
        return
    config = {"appendonly": "yes", "appendfsync": "always", "aof-use-rdb-preamble": "no"}
    with RedisServer(config=config) as server:
        url = f"{server.address}?shards=1&segment_directory={tmp_path}/segments"
        with opened(url) as log:
            log.append(sent)
        flip_in_redis(server, sent[10])
        with opened(url) as log:
            yield log


def test_a_damaged_frame_is_named_and_the_rest_can_be_read(damaged: SegmentedLog) -> None:
    sent = sent_frames()
    assert [one.frame for one in damaged.read(0, 0)] == sent[:10]
    with pytest.raises(durable_log.LogCorrupt, match="shard 0, offsets 50 to 55: .* checksum differs") as caught:
        damaged.read(0, 52)
    assert (caught.value.shard, caught.value.first, caught.value.end) == (0, 50, 55)
    assert [one.frame for one in damaged.read(0, 55)] == sent[11:]
    assert ["offsets 50 to 55" in problem for problem in verify(damaged).problems] == [True]
    with pytest.raises(durable_log.LogCorrupt, match="offsets 50 to 55"):
        damaged.read_stream(bytes(16), TOPIC, 51, 55)


def test_a_damaged_frame_is_not_sealed_until_it_is_given_up(damaged: SegmentedLog) -> None:
    sent, sealer = sent_frames(), Sealer(damaged)
    with pytest.raises(durable_log.LogCorrupt, match="offsets 50 to 55"):
        sealer.seal(0)
    assert damaged.state()[0].sealed == 50, "what is before it can be sealed"
    made = sealer.seal(0, gives_up=True)
    assert [(one.first, one.end, one.rows) for one in made] == [(50, 200, 145)]
    assert [one.frame for one in damaged.read(0, 0, events_max=1000)] == sent[:10]
    assert [one.frame for one in damaged.read(0, 50)] == sent[11:]
    assert verify(damaged).problems == []


def test_what_postgresql_cannot_read_is_named_and_the_rest_can_be_read(tmp_path: pathlib.Path) -> None:
    """The server finds a page of its file to be damaged, and gives nothing of it."""
    source = Source(bytes(16))
    sent = [source.frame(TOPIC, EVENTS, value="x" * 5000) for _ in range(FRAMES)]
    with PostgresServer() as server:
        url = f"{server.url()}?shards=1&segment_directory={tmp_path}/segments"
        with opened(url) as log:
            log.append(sent)
            with server.client() as client:
                client.execute("CHECKPOINT")
            server.kill()
            flip_in_files(server.directory / "data" / "base", sent[10][:60], 1000)
            server.restart()
            frames, told = readable(log)
            assert frames == sent[:10] + sent[11:]
            assert told == 1
            with pytest.raises(durable_log.LogCorrupt, match="offsets 50 to 55") as caught:
                log.read(0, 50)
            assert (caught.value.first, caught.value.end) == (50, 55)
            with pytest.raises(durable_log.LogCorrupt, match="offsets 50 to 55"):
                Sealer(log).seal(0)
            Sealer(log).seal(0, gives_up=True)
            assert readable(log)[0] == sent[:10] + sent[11:]


Remove = Callable[[int], None]


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def whole(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[tuple[SegmentedLog, Remove]]:
    """A log, and what removes the frame that begins at an offset from its store."""
    if request.param == "sqlite":
        with opened(f"sqlite://{tmp_path}/log.db?shards=1") as log:
            log.append(sent_frames())

            def remove_row(offset: int) -> None:
                with contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as connection, connection:
                    assert connection.execute("DELETE FROM frames WHERE id = ?", (offset,)).rowcount == 1

            yield log, remove_row
        return
    if request.param == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        url = f"{postgres.new_schema()}&shards=1&segment_directory={tmp_path}/segments"
        with opened(url) as log:
            log.append(sent_frames())
            yield log, lambda offset: change_row(postgres, url, f"DELETE FROM frames WHERE id = {offset}")
        return
    with RedisServer() as server, opened(f"{server.address}?shards=1&segment_directory={tmp_path}/segments") as log:
        log.append(sent_frames())

        def remove_entry(offset: int) -> None:
            with server.client() as client:
                [key] = client.keys("*frames:0")
                assert client.xdel(key, f"{offset}-1") == 1

        yield log, remove_entry


@pytest.fixture
def gapped(whole: tuple[SegmentedLog, Remove]) -> SegmentedLog:
    """A log whose frame of offsets 50 to 55 is gone from the store."""
    log, remove = whole
    remove(50)
    return log


def test_offsets_that_no_frame_has_are_named_and_the_rest_can_be_read(gapped: SegmentedLog) -> None:
    """And the frame before them is not given again and again."""
    sent = sent_frames()
    assert [one.frame for one in gapped.read(0, 0)] == sent[:10]
    for offset in (50, 53):
        with pytest.raises(durable_log.LogCorrupt, match=f"shard 0, offsets {offset} to 55: no frame") as caught:
            gapped.read(0, offset)
        assert (caught.value.shard, caught.value.first, caught.value.end) == (0, offset, 55)
    assert [one.frame for one in gapped.read(0, 55)] == sent[11:]
    assert ["offsets 50 to 55" in problem for problem in verify(gapped).problems] == [True]
    with pytest.raises(durable_log.LogCorrupt, match="offsets 50 to 55"):
        Sealer(gapped).seal(0)
    made = Sealer(gapped).seal(0, gives_up=True)
    assert [(one.first, one.end, one.rows) for one in made] == [(50, 200, 145)]
    assert verify(gapped).problems == []


@pytest.mark.parametrize("gone", [0, 100, 195])
def test_a_time_is_not_looked_for_beyond_offsets_that_no_frame_has(
    whole: tuple[SegmentedLog, Remove], gone: int
) -> None:
    """Bisection would come to the same place again and again."""
    log, remove = whole
    remove(gone)
    with pytest.raises(durable_log.LogCorrupt, match="no frame") as caught:
        log.find(0, log.now_ns() + 10**12 if gone else 0)
    assert (caught.value.shard, caught.value.first, caught.value.end) == (0, gone, gone + EVENTS)


def test_a_damaged_frame_does_not_lead_astray_who_looks_for_a_time(damaged: SegmentedLog) -> None:
    with pytest.raises(durable_log.LogCorrupt, match="offsets 50 to 55: .* checksum differs"):
        damaged.find(0, 0)


@pytest.mark.parametrize("column", ["frame", "count", "appended_ns", "first", "checksum"])
def test_what_a_flipped_bit_has_made_a_text_is_named_and_can_be_given_up(tmp_path: pathlib.Path, column: str) -> None:
    """One bit of a row says whether a column is bytes or text; sqlite3 would not even read it."""
    sent = sent_frames()
    with opened(f"sqlite://{tmp_path}/log.db?shards=1") as log:
        log.append(sent)
        with contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as connection, connection:
            connection.execute(f"UPDATE frames SET {column} = CAST(frame AS TEXT) WHERE id = 50")
        with pytest.raises(durable_log.LogCorrupt, match="offsets 50 to 55: .* checksum differs"):
            log.read(0, 52)
        with pytest.raises(durable_log.LogCorrupt, match="offsets 50 to 55"):
            Sealer(log).seal(0)
        assert any("offsets 50 to 55" in problem for problem in verify(log).problems)
        Sealer(log).seal(0, gives_up=True)
        assert [one.frame for one in log.read(0, 55)] == sent[11:]


def test_a_reader_that_has_met_a_damaged_frame_sees_what_others_commit_later(tmp_path: pathlib.Path) -> None:
    url = f"sqlite://{tmp_path}/log.db?shards=1"
    with opened(url) as log, opened(url) as other:
        log.append(sent_frames())
        with contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as store, store:
            store.execute("UPDATE frames SET frame = zeroblob(length(frame)) WHERE id % 50 = 0")
        with pytest.raises(durable_log.LogCorrupt) as kept:  # with all that its traceback holds, as a program may do
            log.read(0, 52)
        other.append([Source().frame(TOPIC, EVENTS)])
        assert log.state()[0].end == (FRAMES + 1) * EVENTS, kept.value
