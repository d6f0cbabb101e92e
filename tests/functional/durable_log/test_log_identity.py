"""Sealed data that the manifest does not list is never deleted: the directory says whose it is, and is refused."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

import durable_log
from durable_log.core.fence import Fence
from durable_log.loading import build_log
from durable_log.log_api import shard_of
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.sources import Source, read_frames
from durable_log.upkeep.damaged_segments import give_up_damaged
from durable_log.upkeep.maintenance import Maintainer
from durable_log.upkeep.repairing import repair
from pubsub_api.errors import InvalidConfig
from pubsub_api.testing.conformance.forks import in_forked_child
from tests.helpers.logs import opened
from tests.helpers.servers import RedisServer

TOPIC = "t"


def files(directory: pathlib.Path) -> set[str]:
    return {str(path) for path in directory.glob("*/*.parquet")}


def maintain(log: SegmentedLog) -> None:
    with Maintainer(log) as maintainer:
        maintainer.run_once()


@pytest.mark.parametrize("shards", [1, 2, 16])
def test_a_file_that_was_exchanged_while_it_is_open_is_not_taken_for_the_same_log(
    tmp_path: pathlib.Path, shards: int
) -> None:
    source = Source()
    with opened(f"sqlite://{tmp_path}/log.db?shards=2") as log:
        log.append([source.frame(TOPIC, 10)])
        Sealer(log).seal(shard_of(TOPIC, 2))
        for path in tmp_path.glob("log.db*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        with opened(f"sqlite://{tmp_path}/log.db?shards={shards}") as other:
            other.append([Source().frame(TOPIC, 20)])
            before = other.state()
            for call in (
                lambda: log.append([source.frame(TOPIC, 5)]),
                lambda: log.read(0, 0),
                log.state,
                lambda: log.wait({0: 0}, timeout_s=0),
                lambda: log.put_records([("name", b"value", None)]),
                lambda: Sealer(log).seal(0),
            ):
                with pytest.raises(durable_log.LogReplaced) as caught:
                    call()
                assert (caught.value.opened, caught.value.found) == (log.identity, other.identity)
            assert other.state() == before
            assert other.get_record("name") is None
    with opened(f"sqlite://{tmp_path}/log.db") as other:
        assert len(read_frames(other, shard_of(TOPIC, shards))) == 1


def test_a_file_without_a_log_that_takes_its_place_is_told(tmp_path: pathlib.Path) -> None:
    with opened(f"sqlite://{tmp_path}/log.db?shards=2") as log:
        (tmp_path / "other").touch()
        (tmp_path / "other").replace(tmp_path / "log.db")
        with pytest.raises(durable_log.LogReplaced) as caught:
            log.append([Source().frame(TOPIC, 5)])
        assert caught.value.found == ""


def test_an_older_store_does_not_get_the_segments_of_a_newer_one(tmp_path: pathlib.Path) -> None:
    url, source = f"sqlite://{tmp_path}/log.db?shards=1", Source()
    with opened(url) as log:
        log.append([source.frame(TOPIC, 50)])
        Sealer(log).seal(0)
    shutil.copy(tmp_path / "log.db", tmp_path / "backup")
    with opened(url) as log:
        log.append([source.frame(TOPIC, 50)])
        Sealer(log).seal(0)
        before = files(pathlib.Path(log.segment_store.place))
    assert len(before) == 2
    shutil.copy(tmp_path / "backup", tmp_path / "log.db")
    with pytest.raises(durable_log.SegmentsRefused, match="later state .* up to offset 100 .* ends at 50"):
        durable_log.open(url)
    assert files(tmp_path / "log.db-segments") == before


def test_a_store_that_is_older_and_has_all_events_goes_on_after_a_repair(tmp_path: pathlib.Path) -> None:
    """What was sealed later is hot in it.  The file that it does not know stays."""
    url, source = f"sqlite://{tmp_path}/log.db?shards=1", Source()
    with opened(url) as log:
        log.append([source.frame(TOPIC, 50)])
        former = log.identity
    shutil.copy(tmp_path / "log.db", tmp_path / "backup")
    with opened(url) as log:
        [first] = Sealer(log).seal(0)
    shutil.copy(tmp_path / "backup", tmp_path / "log.db")
    with pytest.raises(durable_log.SegmentsRefused, match="another copy of the store .*heliograph log repair"):
        durable_log.open(url)
    with contextlib.closing(build_log(url)) as broken:
        assert isinstance(broken, SegmentedLog)
        broken.connect()
        repair(broken)
    with opened(url) as log:
        assert log.identity != former, "its offsets may mean something else now"
        log.append([source.frame(TOPIC, 50)])
        maintain(log)
        Sealer(log).seal(0)
        assert sum(one.count for one in read_frames(log, 0)) == 100
        assert Sealer(log).clean() == []
        assert files(pathlib.Path(log.segment_store.place)) == {first.path, *(one.path for one in log.segments())}


@pytest.fixture(params=["sqlite", "redis"])
def copied(request: pytest.FixtureRequest, server: RedisServer, tmp_path: pathlib.Path) -> tuple[str, str]:
    """The URLs of a log with two sealed segments and unsealed events, and of its copy, with one directory."""
    if request.param == "sqlite":
        urls = [f"sqlite://{tmp_path}/{name}.db?shards=1&segment_directory={tmp_path}/s" for name in "ab"]
    else:
        urls = [f"{server.address}?shards=1&key_prefix={name}:&segment_directory={tmp_path}/s" for name in "ab"]
        with server.client() as client:
            client.flushall()
    source = Source()
    with opened(urls[0]) as log:
        for _ in range(2):
            log.append([source.frame(TOPIC, 50)])
            Sealer(log).seal(0)
        log.append([source.frame(TOPIC, 50)])
    if request.param == "sqlite":
        shutil.copy(tmp_path / "a.db", tmp_path / "b.db")
    else:
        with server.client() as client:
            for key in client.keys(b"a:*"):
                client.copy(key, b"b" + key[1:])
    return urls[0], urls[1]


@pytest.mark.parametrize("is_original_first", [True, False])
def test_of_two_copies_of_a_store_one_has_the_directory(
    copied: tuple[str, str], tmp_path: pathlib.Path, is_original_first: bool
) -> None:
    """Whichever changes it first.  The other one deletes and seals nothing, also when it was opened before."""
    winner_url, loser_url = copied if is_original_first else reversed(copied)
    with opened(winner_url) as winner, opened(loser_url) as loser:
        assert winner.identity == loser.identity
        Sealer(winner).seal(0)
        before, state = files(tmp_path / "s"), loser.state()
        for call in (
            lambda: Sealer(loser).seal(0), lambda: Sealer(loser).clean(), lambda: maintain(loser),
            lambda: loser.trim(0, 50), lambda: loser.trim(0, 150), lambda: durable_log.open(loser_url),
        ):  # fmt: skip
            with pytest.raises(durable_log.SegmentsRefused, match="another copy of the store"):
                call()
        assert files(tmp_path / "s") == before
        assert loser.state() == state
        assert sum(one.count for one in read_frames(loser, 0)) == 150, "what it has can be read"
        assert winner.trim(0, 50) == 50
        maintain(winner)
        assert len(files(tmp_path / "s")) == len(before) - 1
        assert sum(one.count for one in read_frames(winner, 0)) == 100


def test_of_two_copies_the_one_that_drops_first_has_the_directory(copied: tuple[str, str]) -> None:
    with opened(copied[0]) as original, opened(copied[1]) as copy:
        assert copy.trim(0, 50) == 50
        with pytest.raises(durable_log.SegmentsRefused, match="another copy of the store"):
            Sealer(original).seal(0)


def test_a_copy_that_is_repaired_gets_the_directory(copied: tuple[str, str]) -> None:
    with opened(copied[0]) as original:
        Sealer(original).seal(0)
        with contextlib.closing(build_log(copied[1])) as broken:
            assert isinstance(broken, SegmentedLog)
            broken.connect()
            repair(broken)
        with opened(copied[1]) as copy:
            assert original.identity != copy.identity
            copy.append([Source().frame(TOPIC, 50)])
            Sealer(copy).seal(0)
        with pytest.raises(durable_log.SegmentsRefused):
            Sealer(original).clean()


@pytest.mark.parametrize("is_stored", [False, True])
def test_who_dies_while_it_says_that_it_changes_the_directory_is_no_copy(
    tmp_path: pathlib.Path, is_stored: bool
) -> None:
    url = f"sqlite://{tmp_path}/log.db?shards=1"
    with opened(url) as log:
        for _ in range(2):
            log.append([Source().frame(TOPIC, 5)])
            Sealer(log).seal(0)
        log.append([Source().frame(TOPIC, 5)])
        store = log.set_directory_token

        def die(token: str, fence: Fence | None) -> None:
            if is_stored:
                store(token, fence)
            os.kill(os.getpid(), signal.SIGKILL)

        def seal() -> str:
            log.set_directory_token = die  # type: ignore[method-assign]
            Sealer(log).seal(0)
            return "alive"

        assert in_forked_child(seal) == ""
    with opened(url) as log:
        assert len(Sealer(log).seal(0)) == 1
        assert len(read_frames(log, 0)) == 3


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_copy_that_comes_first_after_a_crash_has_the_directory_and_nothing_is_lost(
    copied: tuple[str, str], tmp_path: pathlib.Path, is_stored: bool
) -> None:
    """Who died had not changed the directory yet: both know all of it, as before, and the first one has it."""
    with opened(copied[0]) as original:
        before, former, store = files(tmp_path / "s"), original.directory_token(), original.set_directory_token

        class Died(Exception):
            pass

        def die(token: str, fence: Fence | None) -> None:
            if is_stored:
                store(token, fence)
            raise Died

        original.set_directory_token = die  # type: ignore[method-assign]
        with pytest.raises(Died):
            Sealer(original).seal(0)
        assert (original.directory_token() == former) is not is_stored
    assert files(tmp_path / "s") == before
    with opened(copied[1]) as copy:
        Sealer(copy).seal(0)
        assert sum(one.count for one in read_frames(copy, 0)) == 150
        assert files(tmp_path / "s") > before
        with pytest.raises(durable_log.SegmentsRefused, match="another copy of the store"):
            durable_log.open(copied[0])


def test_who_opens_a_log_that_is_being_sealed_is_no_copy(tmp_path: pathlib.Path) -> None:
    url = f"sqlite://{tmp_path}/log.db?shards=1"
    with opened(url) as log, ThreadPoolExecutor(1) as pool:

        def seal() -> None:
            for _ in range(30):
                log.append([Source().frame(TOPIC, 5)])
                Sealer(log).seal(0)

        sealing = pool.submit(seal)
        while not sealing.done():
            durable_log.open(url).close()
        sealing.result()


@pytest.mark.parametrize("is_new", [False, True])
def test_two_logs_cannot_have_one_directory(tmp_path: pathlib.Path, is_new: bool) -> None:
    first_url, second_url = (f"sqlite://{tmp_path}/{n}.db?shards=1&segment_directory={tmp_path}/s" for n in "ab")
    with opened(first_url) as first, opened(second_url) as second:
        for log in (first, second):
            log.append([Source().frame(TOPIC, 50)])
        Sealer(first).seal(0)
        if is_new:
            (tmp_path / "s" / ".log.json").unlink()
        before = files(tmp_path / "s")
        for call in (lambda: Sealer(second).seal(0), lambda: Sealer(second).clean(), lambda: maintain(second)):
            with pytest.raises(
                durable_log.SegmentsRefused, match=f"{first.identity[:8]}.* this is the log {second.identity}"
            ):
                call()
        with pytest.raises(durable_log.SegmentsRefused):
            durable_log.open(second_url)
        assert files(tmp_path / "s") == before
        assert len(Sealer(first).clean()) == 0
        assert len(read_frames(first, 0)) == len(read_frames(second, 0)) == 1


def test_a_mark_that_cannot_be_read_is_named(tmp_path: pathlib.Path) -> None:
    with opened(f"sqlite://{tmp_path}/log.db?shards=1") as log:
        log.append([Source().frame(TOPIC, 5)])
        Sealer(log).seal(0)
        (pathlib.Path(log.segment_store.place) / ".log.json").write_bytes(b"{")
        with pytest.raises(durable_log.LogCorrupt, match="whose segments these are"):
            Sealer(log).clean()


@pytest.mark.parametrize("place", ["hdfs://host/log", "abfss://host/log", "file:///tmp/log"])
def test_the_url_of_another_store_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidConfig, match="segment_directory = .* mount them"):
        durable_log.open(f"sqlite://{tmp_path}/log.db?segment_directory={place}")
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    "damage", ['{"shard"', "[]", '{"shard": "zero"}', '{"shard": 0, "first": 0}', "first+1", "type", "path"]
)
def test_a_damaged_manifest_entry_is_named(tmp_path: pathlib.Path, damage: str) -> None:
    import sqlite3

    with opened(f"sqlite://{tmp_path}/log.db?shards=1") as log:
        log.append([Source().frame(TOPIC, 5)])
        Sealer(log).seal(0)
        [entry] = log.manifest(0)
        fields = msgspec.json.decode(entry)
        changes = {"first+1": {"first": 1}, "type": {"rows": "five"}, "path": {"path": "../../etc/" + fields["path"]}}
        if damage in changes:
            damage = msgspec.json.encode(fields | changes[damage]).decode()
        with contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as connection, connection:
            connection.execute("UPDATE segments SET entry = ?", (damage,))
        for call in (log.segments, lambda: log.read(0, 0), lambda: log.trim(0, 5)):
            with pytest.raises(durable_log.LogCorrupt, match="damaged entry"):
                call()


def test_an_empty_place_is_refused_when_segments_are_elsewhere(tmp_path: pathlib.Path) -> None:
    store, right, wrong = f"sqlite://{tmp_path}/log.db?shards=1", tmp_path / "right", tmp_path / "wrong"
    source = Source()
    with opened(f"{store}&segment_directory={wrong}") as early, opened(f"{store}&segment_directory={right}") as log:
        log.append([source.frame(TOPIC, 10)])
        Sealer(log).seal(0)
        log.append([source.frame(TOPIC, 10)])
        with pytest.raises(durable_log.SegmentsRefused, match="is empty"):
            Sealer(early).seal(0)
        with pytest.raises(durable_log.SegmentsRefused, match="1 sealed segments") as caught:
            durable_log.open(f"{store}&segment_directory={wrong}")
        assert (caught.value.identity, caught.value.found) == (log.identity, "")
        Sealer(log).seal(0)
    assert files(wrong) == set()
    right.rename(tmp_path / "not-mounted")
    with pytest.raises(durable_log.SegmentsRefused, match="is empty"):
        durable_log.open(f"{store}&segment_directory={right}")
    shutil.copytree(tmp_path / "not-mounted", wrong, dirs_exist_ok=True)
    with opened(f"{store}&segment_directory={wrong}") as log:
        assert len(read_frames(log, 0)) == 2


def test_a_log_whose_segments_are_all_lost_goes_on_when_they_are_given_up(tmp_path: pathlib.Path) -> None:
    url, source = f"sqlite://{tmp_path}/log.db?shards=1", Source()
    with opened(url) as log:
        log.append([source.frame(TOPIC, 10)])
        Sealer(log).seal(0)
        log.append([source.frame(TOPIC, 10)])
    shutil.rmtree(tmp_path / "log.db-segments")
    with contextlib.closing(build_log(url)) as log:
        assert isinstance(log, SegmentedLog)
        log.connect()
        with pytest.raises(durable_log.SegmentsRefused, match="is empty"):
            repair(log)
        assert len(log.segments()) == 1
        report = repair(log, gives_up=True)
        give_up_damaged(log, report)
        assert report.given_up == 10
    with opened(url) as log:
        assert [one.offset for one in read_frames(log, 0)] == [10]
