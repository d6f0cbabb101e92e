"""What passes on the bus gets into the log, once; and what memory has forgotten is repaired from it."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
from collections.abc import Iterator

import pytest

import durable_log
import pubsub_api
from durable_log.log_api import LogApi
from durable_log.recording.log_cache import LogStore
from durable_log.recording.recorder import Recorder
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.sources import Source, read_events
from pubsub_api.core.frame import Kind
from pubsub_api.core.messages import Want
from pubsub_api.testing.faults import Faults
from pubsub_api.testing.faulty import FaultyPubSub
from tests.functional.conftest import Bus, Consumer, event
from tests.helpers.waiting import wait_joined, wait_until

TOPIC = "tenant-7/port"


@pytest.fixture
def log_url(tmp_path: pathlib.Path) -> str:
    return f"sqlite://{tmp_path}/log.db?shards=2"


@pytest.fixture
def log(log_url: str) -> Iterator[LogApi]:
    with contextlib.closing(durable_log.open(log_url)) as log:
        yield log


def versions(log: LogApi, topic: str = TOPIC) -> list[int]:
    return [one.event.version for one in read_events(log) if one.event.topic == topic]


def send(publisher: pubsub_api.Publisher, numbers: range, topic: str = TOPIC) -> None:
    publisher.send_events([event(number, topic) for number in numbers])
    publisher.flush(timeout_s=20)


def test_everything_that_the_filters_select_is_recorded_in_order(bus: Bus, log: LogApi) -> None:
    publisher = bus.session().publisher()
    with Recorder(bus.session(), log, ["tenant-7/#"], addresses=bus.addresses(publisher)) as recorder:
        recorder.wait_ready(timeout_s=20)
        for start in range(0, 2000, 100):
            send(publisher, range(start, start + 100))
            send(publisher, range(start, start + 100), "tenant-7/other")
            send(publisher, range(start, start + 10), "tenant-8/port")
        wait_until(lambda: recorder.statistics().events >= 4000, 60, "everything to be recorded")
    assert versions(log) == versions(log, "tenant-7/other") == list(range(2000))
    assert versions(log, "tenant-8/port") == []
    statistics = recorder.statistics()
    assert (statistics.events, statistics.lost, statistics.failed, statistics.refused) == (4000, 0, 0, 0)
    assert statistics.appends <= statistics.frames


def test_a_recorder_that_starts_again_asks_for_what_it_missed(bus: Bus, log: LogApi) -> None:
    publisher = bus.session().publisher()
    for start in (0, 300, 600):
        send(publisher, range(start, start + 150))  # while nobody records
        with Recorder(bus.session(), log, ["#"], addresses=bus.addresses(publisher)) as recorder:
            recorder.wait_ready(timeout_s=20)
            send(publisher, range(start + 150, start + 300))
            wait_until(lambda end=start + 300: len(versions(log)) == end, 60, "everything to be recorded")
    assert sorted(versions(log)) == list(range(900))
    assert all(stream.missing == () for shard in range(log.shards) for stream in log.streams(shard))


def test_two_recorders_store_each_event_once(bus: Bus, log: LogApi, log_url: str) -> None:
    publisher = bus.session().publisher()
    addresses = bus.addresses(publisher)
    with (
        contextlib.closing(durable_log.open(log_url)) as other_log,
        Recorder(bus.session(), log, ["#"], addresses=addresses) as one,
        Recorder(bus.session(), other_log, ["#"], addresses=addresses) as other,
    ):
        for recorder in (one, other):
            recorder.wait_ready(timeout_s=20)
        for start in range(0, 500, 50):
            send(publisher, range(start, start + 50))

        def has_both() -> bool:
            return all(part.statistics().events + part.statistics().duplicates >= 500 for part in (one, other))

        wait_until(has_both, 60, "both to have seen everything")
        assert one.statistics().events + other.statistics().events == 500
    assert versions(log) == list(range(500))


def test_a_frame_that_the_log_refuses_does_not_take_others_with_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durable_log.config.frame_bytes_max", lambda _conf: 65_536)
    with contextlib.closing(durable_log.open(f"sqlite://{tmp_path}/small.db")) as log:
        bus = Bus("memory", f"memory://{tmp_path.name}")
        publisher = bus.session().publisher()
        with Recorder(bus.session(), log, ["#"]) as recorder:
            recorder.wait_ready(timeout_s=20)
            publisher.send_event(event(1))
            publisher.send_event(event(2, "large", value="x" * 70_000))
            publisher.send_event(event(3))
            publisher.flush(timeout_s=20)
            wait_until(lambda: recorder.statistics().refused == 1 and len(versions(log)) == 2, 30, "the others")
        bus.close()
    assert recorder.statistics().events == 2


def test_a_damaged_stream_does_not_take_others_with_it(log: LogApi, tmp_path: pathlib.Path) -> None:
    bus = Bus("memory", f"memory://{tmp_path.name}")
    damaged, sound = bus.session().publisher(), bus.session().publisher()
    with Recorder(bus.session(), log, ["#"]) as recorder:
        recorder.wait_ready(timeout_s=20)
        send(damaged, range(1))
        wait_until(lambda: recorder.statistics().events == 1, 30, "the stream to be known")
        with contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as connection, connection:
            connection.execute("UPDATE streams SET position = x'00'")
        for number in range(1, 50):
            send(damaged, range(number, number + 1))
            send(sound, range(1000 + number, 1001 + number))
        expected = [0, *range(1001, 1050)]
        wait_until(lambda: versions(log) == expected and recorder.statistics().failed > 0, 30, "the others")
    bus.close()


def test_a_log_that_is_gone_is_counted_and_does_not_stop_the_bus(log_url: str, tmp_path: pathlib.Path) -> None:
    log = durable_log.open(log_url)
    bus = Bus("memory", f"memory://{tmp_path.name}")
    publisher = bus.session().publisher()
    with Recorder(bus.session(), log, ["#"]) as recorder:
        recorder.wait_ready(timeout_s=20)
        log.close()
        send(publisher, range(10))
        wait_until(lambda: recorder.statistics().failed > 0, 30, "the failure to be counted")
    bus.close()


def test_loss_is_repaired_from_the_log_when_no_memory_holds_it(bus: Bus, log: LogApi, consumer: Consumer) -> None:
    assert isinstance(log, SegmentedLog)
    publisher = bus.session(with_cache=False).publisher()
    # A cache whose memory has room for next to nothing.
    cache = bus.session(history=1, cache_bytes_max=1024).cache(
        ["#"], addresses=bus.addresses(publisher), store=LogStore(log)
    )
    faults = Faults(seed=1)
    lossy = bus.session(
        wrap_driver=lambda driver: FaultyPubSub(driver, faults), repair_attempts_max=12, missed_hellos_max=1000,
    )  # fmt: skip
    with Recorder(bus.session(), log, ["#"], addresses=bus.addresses(publisher)) as recorder:
        recorder.wait_ready(timeout_s=20)
        addresses = bus.addresses(publisher, cache)
        subscriber = lossy.subscriber(["#"], consumer.on_event, on_resync=consumer.on_resync, addresses=addresses)
        wait_joined(subscriber, addresses)
        send(publisher, range(50))
        wait_until(lambda: len(consumer.versions) == 50, 30, "the first events")
        faults.set(drop=1.0, kinds={Kind.DATA, Kind.HELLO})
        for start in range(50, 250, 50):
            send(publisher, range(start, start + 50))
        wait_until(lambda: len(versions(log)) == 250, 60, "everything to be recorded")
        Sealer(log).seal(durable_log.shard_of(TOPIC, log.shards), 200)
        faults.heal()
        send(publisher, range(250, 260))
        wait_until(lambda: len(consumer.versions) == 260, 60, "the loss to be repaired")
    assert consumer.versions == list(range(260))
    assert {resync.reason for resync in consumer.resyncs} <= {pubsub_api.Reason.INITIAL, pubsub_api.Reason.NEW_LINK}
    assert cache.statistics().from_store > 0
    assert cache.statistics().store_errors == 0


def test_a_store_knows_what_it_holds(log: LogApi) -> None:
    source, store = Source(), LogStore(log)
    log.append([source.frame(TOPIC, 5), source.frame(TOPIC, 5, lose=5), source.frame(TOPIC, 5, skip=5)])

    def holds(first: int, last: int) -> bool:
        return store.holds(Want(source.guid, TOPIC, first, last))

    assert holds(1, 5)
    assert holds(11, 15)
    assert holds(12, 22), "numbers skipped on purpose do not exist"
    assert not holds(1, 6)
    assert not holds(5, 12)
    assert not holds(24, 26)
    assert not LogStore(log, bytes_max=1).holds(Want(source.guid, TOPIC, 11, 25)), "too much to tell"
    assert [len(store.find(Want(source.guid, TOPIC, first, 99))) for first in (1, 6, 25, 26)] == [3, 2, 1, 0]


def test_what_nobody_has_is_a_hole_that_everybody_sees(
    log: LogApi, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when nothing of the stream ever comes again."""
    monkeypatch.setattr("durable_log.recording.missing_events._ATTEMPTS_MAX", 1)
    bus = Bus("memory", f"memory://{tmp_path.name}")
    publisher = bus.session(with_cache=False).publisher()
    faults = Faults(seed=1)
    session = bus.session(wrap_driver=lambda driver: FaultyPubSub(driver, faults), repair_attempts_max=1)
    with Recorder(session, log, ["#"]) as recorder:
        recorder.wait_ready(timeout_s=20)
        send(publisher, range(10))
        wait_until(lambda: len(versions(log)) == 10, 60, "the first")
        faults.set(drop=1.0, kinds={Kind.DATA})
        send(publisher, range(10, 30))
        wait_until(lambda: recorder.statistics().missing == 20, 60, "the loss to be final")
        statistics = recorder.statistics()
        assert (statistics.lost, statistics.recovered) == (20, 0)
        assert statistics.asked > 0
    streams = [one for shard in range(log.shards) for one in log.streams(shard)]
    assert [(one.last, one.missing) for one in streams] == [(30, ((11, 30),))]
    bus.close()


def test_what_comes_back_within_reach_is_asked_for_again(log: LogApi, tmp_path: pathlib.Path) -> None:
    """A cache that could not be reached when the loss was told."""
    bus = Bus("memory", f"memory://{tmp_path.name}")
    publisher = bus.session().publisher()
    faults = Faults(seed=1)
    session = bus.session(wrap_driver=lambda driver: FaultyPubSub(driver, faults), repair_attempts_max=1)
    with Recorder(session, log, ["#"]) as recorder:
        recorder.wait_ready(timeout_s=20)
        send(publisher, range(10))
        wait_until(lambda: len(versions(log)) == 10, 60, "the first")
        faults.set(drop=1.0, kinds={Kind.DATA, Kind.REPLY})
        send(publisher, range(10, 30))
        wait_until(lambda: recorder.statistics().lost == 20, 60, "the loss to be told")
        faults.heal()
        wait_until(lambda: len(versions(log)) == 30, 60, "it to be recorded after all")
        wait_until(lambda: recorder.statistics().recovered == 20, 60, "that to be noticed")
        assert recorder.statistics().missing == 0
    assert sorted(versions(log)) == list(range(30))
    bus.close()
