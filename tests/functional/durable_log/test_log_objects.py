"""Segments on object storage: what holds for files holds for objects, and servers that fail lose nothing."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import shutil
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import durable_log
from durable_log.core.fence import Fence
from durable_log.errors import LeaseLost
from durable_log.loading import build_log
from durable_log.segments import object_client, sealing
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.log_child import log_process
from durable_log.testing.log_conformance.base import SHARDS, NewUrl
from durable_log.testing.log_conformance.sealing import SealConformance
from durable_log.testing.sources import Source, check_consistent, read_frames
from durable_log.upkeep.damaged_segments import give_up_damaged
from durable_log.upkeep.maintenance import Maintainer
from durable_log.upkeep.repairing import RepairReport, repair
from durable_log.upkeep.verifying import verify
from pubsub_api.errors import DriverDependencyMissing, HeliographError, InvalidConfig
from pubsub_api.testing.conformance.forks import in_forked_child
from pubsub_api.testing.ports import free_port
from tests.helpers.logs import in_time, opened
from tests.helpers.s3_server import ACCESS, S3Proxy, S3Server, keys

TOPIC = "t"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def place(s3: S3Server) -> str:
    return s3.new_prefix()


@pytest.fixture
def url(s3: S3Server, place: str, tmp_path: pathlib.Path) -> str:
    return f"sqlite://{tmp_path}/log.db?shards=1&seal_events=60&{s3.options(place)}"


@pytest.fixture
def proxy(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    monkeypatch.setattr(object_client, "_RETRIES", 1)  # what it refuses once it refuses again
    with S3Proxy(s3.port).running() as proxy:
        yield proxy


@pytest.fixture
def log(url: str) -> Iterator[SegmentedLog]:
    with opened(url) as log:
        yield log


def fill(log: SegmentedLog, source: Source, frames: int = 20) -> list[bytes]:
    """Events of which two segments are made."""
    sent = [source.frame(TOPIC, 30) for _ in range(frames)]
    log.append(sent)
    return sent


def read(log: SegmentedLog) -> list[bytes]:
    return [one.frame for one in read_frames(log, 0)]


def repaired(url: str) -> RepairReport:
    with contextlib.closing(build_log(url)) as log:
        assert isinstance(log, SegmentedLog)
        log.connect()
        return repair(log)


class TestSealingToObjects(SealConformance):
    @pytest.fixture
    def new_url(self, s3: S3Server, tmp_path: pathlib.Path) -> NewUrl:
        return lambda: f"sqlite://{tmp_path}/{uuid.uuid4().hex}.db?shards={SHARDS}&{s3.options(s3.new_prefix())}"

    test_a_damaged_segment_is_named = None  # type: ignore[assignment]  # damages files; objects: below


# -- damage


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "missing", "exchanged"])
def test_a_damaged_object_is_named(s3: S3Server, place: str, url: str, log: SegmentedLog, damage: str) -> None:
    sent = fill(log, Source())
    first, second = Sealer(log).seal(0)
    store, key = s3.objects(place), first.path.removeprefix(f"{place}/")
    content = bytes(store.get(key).bytes())
    if damage == "missing":
        store.delete(key)
    else:
        other = bytes(store.get(second.path.removeprefix(f"{place}/")).bytes())
        flipped = content[:99] + bytes([content[99] ^ 1]) + content[100:]
        store.put(key, {"flipped": flipped, "cut": content[:-1], "empty": b"", "exchanged": other}[damage])
    with opened(url) as reader:
        with pytest.raises(durable_log.LogCorrupt, match=f"offsets 0 to 300: the segment {first.path}") as caught:
            reader.read(0, 0)
        assert "hidden" not in str(caught.value)
        assert [one.frame for one in reader.read(0, 300)] == sent[10:]
        assert [first.path in problem for problem in verify(reader).problems] == [True, True]
        if damage in ("cut", "missing"):
            report = repair(reader)
            give_up_damaged(reader, report)
            assert report.given_up == 300
            assert [one.frame for one in read_frames(reader, 0)] == sent[10:]
            assert verify(reader).problems == []


# -- who may seal


def test_a_sealer_whose_lease_was_taken_over_changes_nothing(s3: S3Server, place: str, url: str) -> None:
    with opened(url) as slow, opened(url) as fast:
        sent = fill(slow, Source())
        now_ns = fast.now_ns

        def overtake(step: str) -> None:
            if step == "write":
                with pytest.raises(durable_log.LogUnavailable, match="its lease ends in"):
                    Sealer(fast).seal(0)
                fast.now_ns = lambda: now_ns() + 40 * 10**9  # type: ignore[method-assign]
                assert len(Sealer(fast).seal(0)) == 2

        with pytest.raises(LeaseLost):
            Sealer(slow, on_step=overtake).seal(0)
        listed = [segment.path for segment in slow.segments()]
        assert [f"{place}/{key}" for key in keys(s3.objects(place), ".parquet")] == listed
        assert read(slow) == sent
        assert verify(slow).problems == []


@pytest.mark.parametrize("step", ["write", "commit"])  # all are in the long runs, and with files
def test_a_sealer_that_is_killed_harms_nothing(
    s3: S3Server, place: str, url: str, log: SegmentedLog, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = fill(log, Source())
    with log_process(url) as child:
        child.receive()
        with pytest.raises(HeliographError):
            child.ask(seal=0, die_after=step, lease_s=1.0)
    assert read(log) == sent
    listed = 1 if step == "commit" else 0
    assert len(log.segments()) == listed
    assert in_time(lambda: [Sealer(log).clean()]) == [[]], "what is young may be wanted by somebody"
    objects = s3.objects(place)
    assert len(keys(objects, ".sealed")) == listed
    assert len(keys(objects, ".parquet")) == 1
    monkeypatch.setattr(sealing, "STAGED_AGE_S", -3600.0)
    assert len(Sealer(log).clean()) == (1 if step == "write" else 0)
    Sealer(log).seal(0)
    assert read(log) == sent
    assert {f"{place}/{key}" for key in keys(objects, ".parquet")} == {one.path for one in log.segments()}
    check_consistent(log)
    assert verify(log).problems == []


def test_a_commit_of_unknown_outcome_is_looked_at_and_nothing_is_removed(
    s3: S3Server, place: str, log: SegmentedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, add, is_done = fill(log, Source()), log.add_segment, [True]

    def add_in_doubt(shard: int, first: int, end: int, entry: str, fence: Fence | None) -> bool:
        if is_done[0]:
            add(shard, first, end, entry, fence)
        raise durable_log.LogUnavailable("no answer")

    monkeypatch.setattr(log, "add_segment", add_in_doubt)
    for happened in (True, False):
        is_done[0] = happened
        with pytest.raises(durable_log.LogUnavailable, match="no answer"):
            Sealer(log).seal(0)
    objects = s3.objects(place)
    assert (len(keys(objects, ".parquet")), len(keys(objects, ".sealed"))) == (2, 0)
    monkeypatch.undo()
    monkeypatch.setattr(sealing, "STAGED_AGE_S", -3600.0)
    assert len(Sealer(log).clean()) == 1, "that which is not in the manifest"
    assert [f"{place}/{key}" for key in keys(objects, ".parquet")] == [one.path for one in log.segments()]
    assert len(keys(objects, ".sealed")) == 1
    assert read(log) == sent
    Sealer(log).seal(0)
    assert read(log) == sent


def test_what_is_published_is_removed_by_retention_only(
    s3: S3Server, place: str, log: SegmentedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = fill(log, Source())
    first, second = Sealer(log).seal(0)
    objects, foreign = s3.objects(place), "0000/000000000000600-000000000000700-0a0b0c0d-01020304.parquet"
    objects.put(foreign, b"of an earlier state")
    objects.put(f"{foreign}.sealed", b"")
    monkeypatch.setattr(sealing, "STAGED_AGE_S", -3600.0)
    assert Sealer(log).clean() == []
    assert log.trim(0, 300) == 300
    assert keys(objects, ".parquet") == [second.path.removeprefix(f"{place}/"), foreign]
    assert len(keys(objects, ".sealed")) == 2
    assert read(log) == sent[10:]
    assert not log.segment_store.exists(first)


# -- whose the prefix is


def test_two_logs_cannot_have_one_prefix(s3: S3Server, place: str, log: SegmentedLog, tmp_path: pathlib.Path) -> None:
    other = f"sqlite://{tmp_path}/other.db?shards=1&{s3.options(place)}"
    with opened(other) as second:  # nothing says yet whose prefix it is
        fill(log, Source())
        fill(second, Source())
        Sealer(log).seal(0)
        with pytest.raises(durable_log.SegmentsRefused, match=f"{place} has the segments of the log {log.identity}"):
            Sealer(second).seal(0)
    with pytest.raises(durable_log.SegmentsRefused, match=place):
        durable_log.open(other)


def test_of_two_copies_of_a_store_one_is_refused(s3: S3Server, place: str, url: str, tmp_path: pathlib.Path) -> None:
    with opened(url) as log:
        sent = fill(log, Source())
    shutil.copy(tmp_path / "log.db", tmp_path / "copy.db")
    copy = f"sqlite://{tmp_path}/copy.db?shards=1&seal_events=60&{s3.options(place)}"
    with opened(url) as log, opened(copy) as second:
        barrier = ThreadPoolExecutor(2)
        with barrier as pool:
            outcomes = [pool.submit(Sealer(one).seal, 0) for one in (log, second)]
        failed = [one.exception() for one in outcomes if one.exception() is not None]
        assert len(failed) == 1, "both have a lease of their own; the prefix has one owner"
        assert isinstance(failed[0], durable_log.SegmentsRefused | durable_log.LogUnavailable)
        winner = log if outcomes[0].exception() is None else second
        assert read(winner) == sent
        assert verify(winner).problems == []
        with pytest.raises(durable_log.SegmentsRefused):
            Sealer(second if winner is log else log).seal(0)


def test_a_lost_store_is_made_anew_from_the_objects(url: str, tmp_path: pathlib.Path) -> None:
    with opened(url) as log:
        sent, identity = fill(log, Source()), log.identity
        Sealer(log).seal(0)
    (tmp_path / "log.db").unlink()
    with pytest.raises(durable_log.SegmentsRefused, match=identity):
        durable_log.open(url)
    report = repaired(url)
    assert (report.files, report.added, report.events, report.notes) == (2, 2, 600, [])
    with opened(url) as log:
        assert read(log) == sent
        log.append([Source().frame(TOPIC, 30)])
        Sealer(log).seal(0)
        assert len(read(log)) == 21
        assert verify(log).problems == []


# -- servers


def test_a_store_that_ignores_conditions_is_refused(s3: S3Server, proxy: S3Proxy, tmp_path: pathlib.Path) -> None:
    proxy.rule = lambda _method, _path, _headers: "unconditional"
    place = s3.new_prefix()
    with pytest.raises(InvalidConfig, match=f"{place} cannot be used for segments: this object store overwrites"):
        durable_log.open(f"sqlite://{tmp_path}/log.db?{s3.options(place, proxy.port)}")
    proxy.rule = lambda _method, _path, headers: "unconditional" if "if-match" in headers else "pass"
    with pytest.raises(InvalidConfig, match="replaces an object that has another version"):
        durable_log.open(f"sqlite://{tmp_path}/log.db?{s3.options(place, proxy.port)}")
    assert keys(s3.objects(place)) == []


def test_an_upload_whose_answer_is_lost_is_looked_at(s3: S3Server, proxy: S3Proxy, tmp_path: pathlib.Path) -> None:
    place = s3.new_prefix()
    with opened(f"sqlite://{tmp_path}/log.db?shards=1&{s3.options(place, proxy.port)}") as log:
        sent = fill(log, Source())
        proxy.rule = lambda method, path, _: "lose-answer" if (method, path[-8:]) == ("PUT", ".parquet") else "pass"
        [segment] = Sealer(log).seal(0)
        assert [f"{place}/{key}" for key in keys(s3.objects(place), ".parquet")] == [segment.path]
        assert read(log) == sent
        log.append([Source().frame(TOPIC, 30)])
        proxy.rule = lambda method, path, _: "lose-answer" if (method, path[-5:]) == ("PUT", ".json") else "pass"
        assert len(Sealer(log).seal(0)) == 1, "it is not taken for another copy of the store"


def test_a_server_that_is_away_costs_nothing_but_time(
    s3: S3Server, proxy: S3Proxy, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    place, source = s3.new_prefix(), Source()
    url = f"sqlite://{tmp_path}/log.db?shards=1&{s3.options(place, proxy.port)}"
    with opened(url) as log, opened(url) as reader:
        sent = fill(log, source)
        Sealer(log).seal(0)
        sent += fill(log, source, 1)
        proxy.rule = lambda _method, _path, _headers: "refuse"
        with pytest.raises(durable_log.LogUnavailable, match=place) as caught:
            reader.read(0, 0)
        assert caught.value.retriable
        assert reader.read(0, 600)[0].frame == sent[20], "what is not sealed is in the store"
        maintainer = Maintainer(log)
        with caplog.at_level(logging.INFO), contextlib.suppress(durable_log.LogUnavailable):
            maintainer.run_once()
        assert maintainer.statistics.errors == 1
        with pytest.raises(durable_log.LogUnavailable):
            durable_log.open(url)
        proxy.rule = lambda _method, _path, _headers: "pass"
        assert in_time(lambda: read(reader)) == sent
    assert ACCESS["secret_access_key"] not in caplog.text + str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        "s3://", "s3://bucket/a%20b", "s3://b/p?endpoint", "s3://b/p?no_such_option=secret", "s3://key:secret@bucket/p",
        "s3://bucket/p&key=secret", "s3://bucket/p#key=secret", "hdfs://user:secret@host/p", " s3://bucket/p",
        "s3:bucket/p", "s3//bucket/p", "s3://bucket/p?region=x&timeout=5",
    ],
)  # fmt: skip
def test_an_address_that_cannot_be_used_is_refused(tmp_path: pathlib.Path, given: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        open_at(tmp_path, given)
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "log.db-segments").exists()


def test_a_password_in_the_address_of_the_server_is_not_shown(tmp_path: pathlib.Path) -> None:
    server = f"endpoint=http://user:secret@127.0.0.1:{free_port()}&allow_http=true"
    with pytest.raises(durable_log.LogUnavailable) as caught:
        open_at(tmp_path, f"s3://bucket/p?region=x&access_key_id=a&secret_access_key=b&{server}")
    assert "secret" not in str(caught.value)


def open_at(tmp_path: pathlib.Path, segments: str) -> durable_log.LogApi:
    from urllib.parse import quote

    return durable_log.open(f"sqlite://{tmp_path}/log.db?segment_directory={quote(segments, safe='')}")


def test_a_bucket_that_does_not_exist_is_named(s3: S3Server, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InvalidConfig, match="s3://nowhere/log: there is no such bucket"):
        durable_log.open(f"sqlite://{tmp_path}/log.db?{s3.options('s3://nowhere/log')}")


def test_without_obstore_the_extra_is_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(DriverDependencyMissing, match=r"pip install 'heliograph\[objects\]'"):
        open_at(tmp_path, "s3://bucket/log")


def test_a_forked_child_is_refused_and_does_not_hang(log: SegmentedLog) -> None:
    fill(log, Source())
    Sealer(log).seal(0)
    assert "Forked(" in in_forked_child(lambda: str(log.segment_store.exists(log.segments()[0])))
    assert in_forked_child(lambda: str(log.state()[0].end)) == "600"


def test_where_segments_are_is_told_to_other_readers(place: str, log: SegmentedLog) -> None:
    fill(log, Source())
    Sealer(log).seal(0)
    found = durable_log.segment_locations(log)
    assert [one.path.startswith(f"{place}/0000/") for one in found.segments] == [True, True]
    assert {name: found.storage_options[name] for name in ACCESS} == ACCESS
