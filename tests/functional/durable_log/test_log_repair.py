"""A manifest that was lost, or is an older one, is made anew from the files; and the log is another one then."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

import durable_log
from durable_log.loading import build_log
from durable_log.segments.directory import staged_path
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.sources import Source, check_consistent, numbers, read_frames
from durable_log.upkeep.repairing import RepairReport, repair
from durable_log.upkeep.verifying import verify
from pubsub_api.errors import InvalidConfig, UsageError
from tests.helpers.log_copies import copier_of_postgres, copier_of_redis
from tests.helpers.logs import opened
from tests.helpers.servers import RedisServer
from tests.helpers.servers_db import PostgresServer, schema_of

TOPICS = ["t/a", "t/b", "t/c"]


def repaired(url: str, **options: bool) -> RepairReport:
    with contextlib.closing(build_log(url)) as log:
        assert isinstance(log, SegmentedLog)
        log.connect()
        return repair(log, **options)


def seal_all(log: SegmentedLog) -> None:
    for shard in range(log.shards):
        Sealer(log).seal(shard)


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def place(
    request: pytest.FixtureRequest, server: RedisServer, tmp_path: pathlib.Path
) -> tuple[str, Callable[[], None]]:
    """The URL of a log, and what loses its store."""
    if request.param == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        url = postgres.new_schema()

        def drop() -> None:
            with postgres.client() as client:
                client.execute(f"DROP SCHEMA {schema_of(url)} CASCADE")

        return f"{url}&segment_directory={tmp_path}/segments", drop

    def flush() -> None:
        with server.client() as client:
            client.flushall()

    if request.param == "redis":
        flush()
        return f"{server.address}?segment_directory={tmp_path}/segments", flush
    return f"sqlite://{tmp_path}/log.db", (tmp_path / "log.db").unlink


def test_a_lost_store_is_made_anew_from_the_files(place: tuple[str, Callable[[], None]]) -> None:
    url, lose = place
    source = Source()
    with opened(f"{url}{'&' if '?' in url else '?'}shards=2") as log:
        for _ in range(3):
            log.append([source.frame(topic, 10, lose=1) for topic in TOPICS])
            seal_all(log)
        before = [read_frames(log, shard) for shard in range(2)]
        state, streams = log.state(), [log.streams(shard) for shard in range(2)]
        identity = log.identity
    lose()
    with pytest.raises(durable_log.SegmentsRefused):
        durable_log.open(url)
    plan = repaired(url, is_dry=True)
    with pytest.raises(durable_log.SegmentsRefused):
        durable_log.open(url)
    done = repaired(url)
    assert (plan.files, plan.added, plan.events, plan.notes) == (done.files, done.added, done.events, done.notes)
    assert (done.events, done.notes) == (90, [])
    assert done.listed == done.added == done.files > 2
    with opened(url) as log:
        assert log.identity == done.identity not in (identity, done.former_identity)
        assert [read_frames(log, shard) for shard in range(2)] == before
        assert [(one.start, one.sealed, one.end) for one in log.state()] == [
            (one.start, one.sealed, one.end) for one in state
        ]
        for shard in range(2):
            assert {one[:4] for one in log.streams(shard)} == {one[:4] for one in streams[shard]}
        assert log.append([source.again(topic, 2, 10) for topic in TOPICS]).events == 0, "it knows what it has"
        log.append([source.frame(topic, 10) for topic in TOPICS])
        seal_all(log)
        assert Sealer(log).clean() == []
        check_consistent(log)
    again = repaired(url)
    assert (again.added, again.identity) == (0, done.identity)


def test_an_older_store_gets_what_was_sealed_since(tmp_path: pathlib.Path) -> None:
    url, source = f"sqlite://{tmp_path}/log.db?shards=1&seal_events=8", Source()
    with opened(url) as log:
        log.append([source.frame("t", 10) for _ in range(6)])
        Sealer(log).seal(0, 40)
    shutil.copy(tmp_path / "log.db", tmp_path / "backup")
    with opened(url) as log:
        log.append([source.frame("t", 10) for _ in range(6)])
        Sealer(log).seal(0)
    shutil.copy(tmp_path / "backup", tmp_path / "log.db")
    report = repaired(url)
    assert (report.added, report.events, report.listed) == (2, 80, 3)
    with opened(url) as log:
        assert numbers(log, source.guid, "t") == list(range(1, 121))
        assert log.append([source.again("t", 1, 120)]).duplicates == 120
        check_consistent(log)
        assert verify(log).problems == []


def test_a_damaged_manifest_is_made_anew(tmp_path: pathlib.Path) -> None:
    url, source = f"sqlite://{tmp_path}/log.db?shards=1", Source()
    with opened(url) as log:
        for _ in range(3):
            log.append([source.frame("t", 10)])
            Sealer(log).seal(0)
        with contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as connection, connection:
            connection.execute("UPDATE segments SET entry = '{' WHERE first = 10")
        assert ["damaged entry" in problem for problem in verify(log).problems] == [True]
    report = repaired(url)
    assert (report.added, report.listed, len(report.notes)) == (1, 3, 1)
    with opened(url) as log:
        assert numbers(log, source.guid, "t") == list(range(1, 31))


def test_a_committed_file_without_its_name_is_found(tmp_path: pathlib.Path) -> None:
    url, source = f"sqlite://{tmp_path}/log.db?shards=1", Source()
    with opened(url) as log:
        log.append([source.frame("t", 10)])
        [segment] = Sealer(log).seal(0)
        path = pathlib.Path(segment.path)
    path.rename(staged_path(str(path)))
    (tmp_path / "log.db").unlink()
    assert repaired(url).added == 1
    with opened(url) as log:
        assert numbers(log, source.guid, "t") == list(range(1, 11))


def test_what_cannot_be_used_is_named_and_left_alone(tmp_path: pathlib.Path) -> None:
    url, source = f"sqlite://{tmp_path}/log.db?shards=1", Source()
    with opened(url) as log:
        for _ in range(3):
            log.append([source.frame("t", 50)])
            Sealer(log).seal(0)
        paths = [pathlib.Path(segment.path) for segment in log.segments()]
    data = bytearray(paths[1].read_bytes())
    data[len(data) // 3] ^= 1
    paths[1].write_bytes(data)
    (tmp_path / "log.db").unlink()
    report = repaired(url)
    assert (report.added, len(report.notes)) == (2, 1)
    assert str(paths[1]) in report.notes[0]
    assert all(path.exists() for path in paths)
    with opened(url) as log:
        assert log.read(0, 0)[0].count == 50
        with pytest.raises(durable_log.LogCorrupt, match="no segment has offset 50") as caught:
            log.read(0, 50)
        assert caught.value.end is not None
        assert log.read(0, caught.value.end)[0].offset == 100
        found = verify(log)
        assert found.events == 100, "what comes after the hole is read, too"
        assert found.problems != []


def test_two_logs_are_not_made_one(tmp_path: pathlib.Path) -> None:
    first, second = (f"sqlite://{tmp_path}/{name}.db?shards=1&segment_directory={tmp_path}/s" for name in "ab")
    with opened(first) as log:
        log.append([Source().frame("t", 5)])
        Sealer(log).seal(0)
        with contextlib.closing(durable_log.open(second.replace("/s", "/other"))) as other:
            other.append([Source().frame("t", 5)])
        with pytest.raises(durable_log.SegmentsRefused, match="two logs cannot be made one"):
            repaired(second)
    with contextlib.closing(build_log(f"sqlite://{tmp_path}/c.db?shards=3&segment_directory={tmp_path}/s")) as log:
        assert isinstance(log, SegmentedLog)
        log.connect()
        with pytest.raises(InvalidConfig, match="1 shards, and the store was made with 3"):
            repair(log)


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def rewound(
    request: pytest.FixtureRequest, server: RedisServer, tmp_path: pathlib.Path
) -> Iterator[tuple[str, Callable[[], Callable[[], None]]]]:
    """The URL of a log of one shard, and what copies its store and returns what restores the copy."""
    if request.param == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        url = f"{postgres.new_schema()}&shards=1&segment_directory={tmp_path}/segments"
        yield url, copier_of_postgres(postgres, url)
        return
    if request.param == "sqlite":

        def copy_file() -> Callable[[], None]:
            shutil.copy(tmp_path / "log.db", tmp_path / "backup")
            return restore_file

        def restore_file() -> None:
            shutil.copy(tmp_path / "backup", tmp_path / "log.db")

        yield f"sqlite://{tmp_path}/log.db?shards=1&segment_directory={tmp_path}/segments", copy_file
        return
    with server.client() as client:
        client.flushall()
    yield f"{server.address}?shards=1&segment_directory={tmp_path}/segments", copier_of_redis(server)


def used_after_a_restore(url: str, copy: Callable[[], Callable[[], None]]) -> tuple[Source, Source]:
    """An older store was restored and used while its segments could not be seen.  Returns who published before that,
    120 events of which 60 are in the store, and who did after it, 20 events that are in the store only."""
    before, after = Source(), Source()
    with opened(url) as log:
        log.append([before.frame("t", 10) for _ in range(6)])
    restore = copy()
    with opened(url) as log:
        Sealer(log).seal(0, 40)
        log.append([before.frame("t", 10) for _ in range(6)])
        Sealer(log).seal(0)
    restore()
    with opened(url.replace("/segments", "/elsewhere")) as log:
        log.append([after.frame("t", 20)])
    return before, after


def test_what_only_an_older_store_has_is_not_lost_when_files_take_its_place(
    rewound: tuple[str, Callable[[], Callable[[], None]]],
) -> None:
    url, copy = rewound
    before, after = used_after_a_restore(url, copy)
    with pytest.raises(durable_log.SegmentsRefused, match="later state"):
        durable_log.open(url)
    assert repaired(url, is_dry=True).moved == 20
    report = repaired(url)
    assert (report.added, report.events, report.moved, report.notes) == (2, 120, 20, [])
    with opened(url) as log:
        assert numbers(log, before.guid, "t") == list(range(1, 121))
        assert numbers(log, after.guid, "t") == list(range(1, 21))
        assert verify(log).problems == []
        check_consistent(log)
        assert not (pathlib.Path(log.segment_store.place) / ".moved-frames").exists()


@pytest.mark.parametrize("dies", [False, True])
def test_an_older_store_gets_the_shards_that_its_log_had_been_given(
    rewound: tuple[str, Callable[[], Callable[[], None]]], monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """And each topic keeps its order: what is in its former shard comes first, also what was sealed after the copy."""
    url, copy = rewound
    source, topics = Source(), [f"t/{number}" for number in range(8)]
    with opened(url) as log:
        log.append([source.frame(topic, 2) for topic in topics])
    restore = copy()
    with opened(url) as log:
        for shards in (2, 4):
            log.append([source.frame(topic, 2) for topic in topics])
            log.set_shards(shards)
            log.append([source.frame(topic, 2) for topic in topics])
            seal_all(log)
    restore()
    grown = url.replace("shards=1", "shards=4")  # the configuration of today
    for place in (url, grown):
        with pytest.raises(durable_log.SegmentsRefused, match="heliograph log repair"):
            durable_log.open(place)
    assert repaired(url, is_dry=True).events == 8 * 2 * 5
    if dies:
        with contextlib.closing(build_log(grown)) as older:
            assert isinstance(older, SegmentedLog)
            older.connect()
            find_shards, had = older.find_shards, older.shards

            def die(made_with: int = 0) -> None:
                find_shards(made_with)
                if older.shards > had:
                    raise KeyboardInterrupt  # as if it was killed there

            monkeypatch.setattr(older, "find_shards", die)
            with pytest.raises(KeyboardInterrupt):
                repair(older)
    assert repaired(grown).listed > 0
    with opened(grown) as log:
        assert verify(log).problems == []
        assert log.append([source.again(topic, 1, 10) for topic in topics]).events == 0
        states = log.state()
        assert [len(state.after) for state in states] == [0, 1, 1, 2]
        for topic in topics:
            assert numbers(log, source.guid, topic) == list(range(1, 11))
            *former, home = log.shards_of(topic)
            assert {shard for shard, _ in states[home].after} == {*former}
        assert all(offset == states[shard].end for state in states for shard, offset in state.after)
    assert repaired(grown).added == 0


def test_a_repair_that_dies_before_it_has_appended_again_is_completed_by_the_next(
    rewound: tuple[str, Callable[[], Callable[[], None]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, copy = rewound
    _, after = used_after_a_restore(url, copy)
    with contextlib.closing(build_log(url)) as log:
        assert isinstance(log, SegmentedLog)
        log.connect()

        def die(_frames: object) -> NoReturn:
            raise KeyboardInterrupt

        monkeypatch.setattr(log, "append", die)  # as if it was killed there
        with pytest.raises(KeyboardInterrupt):
            repair(log)
    repaired(url)
    with opened(url) as log:
        assert numbers(log, after.guid, "t") == list(range(1, 21))
        assert log.streams(0)[-1].missing == ()
        check_consistent(log)


def test_a_shard_that_an_older_store_lacks_is_told_to_who_has_the_log_open(postgres: PostgresServer) -> None:
    url = f"{postgres.new_schema()}&shards=1"
    with opened(url) as log:
        restore = copier_of_postgres(postgres, url)()
        log.set_shards(2)
        restore()
        with pytest.raises(UsageError, match="no shard 1 any more"):
            log.read(1, 0)
        assert [one.shard for one in log.state()] == [0]


def test_a_store_that_went_back_while_it_was_open_is_not_sealed(server: RedisServer, tmp_path: pathlib.Path) -> None:
    """A server that starts from an older snapshot has the same log, with fewer events."""
    url, source = f"{server.address}?shards=1&segment_directory={tmp_path}/segments", Source()
    with server.client() as client:
        client.flushall()
        with opened(url) as log:
            log.append([source.frame("t", 10)])
            keys = {key: client.dump(key) for key in client.scan_iter()}
            log.append([source.frame("t", 10)])
            Sealer(log).seal(0)
            client.flushall()
            for key, value in keys.items():
                client.restore(key, 0, value)
            with pytest.raises(durable_log.SegmentsRefused, match="later state"):
                Sealer(log).seal(0)
            assert log.state()[0].sealed == 0


def test_what_is_appended_while_a_log_is_repaired_is_not_lost(
    rewound: tuple[str, Callable[[], Callable[[], None]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has the log open goes on; the repair is refused, and can be done again."""
    url, _ = rewound
    source = Source()
    with opened(url) as recorded, contextlib.closing(build_log(url)) as log:
        assert isinstance(log, SegmentedLog)
        recorded.append([source.frame("t", 10)])
        [segment] = Sealer(recorded).seal(0)
        pathlib.Path(segment.path).rename(tmp_name := pathlib.Path(segment.path).with_suffix(".away"))
        repaired(url)  # it is no longer listed
        tmp_name.rename(segment.path)
        log.connect()
        restore = log.restore

        def restore_late(*arguments: Any) -> None:
            with opened(url) as other:
                other.append([source.frame("t", 10)])
            restore(*arguments)

        monkeypatch.setattr(log, "restore", restore_late)
        with pytest.raises(durable_log.LogUnavailable, match="appended to shard 0 while the log was repaired"):
            repair(log)
    assert repaired(url).added == 1
    with opened(url) as log:
        assert numbers(log, source.guid, "t") == list(range(1, 21))
        check_consistent(log)
