"""A log that was given more shards, with what is built on it: groups, dead letters, repair, compaction, files."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
import time

import pytest

import durable_log
import durable_log.loading
import pubsub_api
from durable_log.log_api import shard_of
from durable_log.recording.recorder import Recorder
from durable_log.segments.compaction import SegmentCompactor
from durable_log.segments.ownership import read_mark
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from durable_log.storage.shard_map import ShardMap
from durable_log.testing.sources import Source, read_events
from durable_log.transfer.exporting import export
from durable_log.transfer.importing import import_file, try_import
from durable_log.upkeep.repairing import repair
from durable_log.upkeep.verifying import verify
from pubsub_api.errors import UsageError
from shared_subscriptions import groups, redriving
from shared_subscriptions.consuming.subscriber import GroupSubscriber
from tests.helpers.group_nodes import groups_conf
from tests.helpers.logs import opened
from tests.helpers.waiting import wait_until

TOPICS = [f"t/{number}" for number in range(12)]
MOVED = next(topic for topic in TOPICS if shard_of(topic, 2) != shard_of(topic, 4))


def seal(log: SegmentedLog) -> None:
    for shard in range(log.shards):
        Sealer(log).seal(shard)


def event(topic: str, number: int) -> pubsub_api.Event:
    return pubsub_api.Event(topic=topic, table="t", key="k", action="set", value=number, version=number)


def test_a_group_gets_each_topic_in_order_while_the_log_grows(tmp_path: pathlib.Path) -> None:
    url, got = f"sqlite://{tmp_path}/log.db?shards=2", dict[str, list[int]]()
    with pubsub_api.open("memory://here", log=url) as session, opened(url) as log:
        groups.declare(log, "g", "#", lanes=2)
        publisher = session.publisher()
        with session.group("g", "#", lambda one: got.setdefault(one.topic, []).append(one.value)) as member:
            member.wait_ready(timeout_s=60)
            for number in range(1, 61):
                publisher.send_events([event(topic, number) for topic in TOPICS])
                publisher.flush(timeout_s=60)
                if number in (20, 40):
                    log.set_shards(2 * len(log.state()))
            expected = {topic: list(range(1, 61)) for topic in TOPICS}
            wait_until(lambda: got == expected, 60, "everything, in order")
    with opened(url) as log:
        assert len(log.state()) == 8
        view = groups.show(log, "g")
        assert (view.lag, view.expired) == (0, 0)
        assert {one.shard for one in view.streams} - {0, 1}


def test_a_new_shard_waits_for_what_comes_before_it(tmp_path: pathlib.Path) -> None:
    """A group that is far behind, and moved back: the parent is always finished first."""
    url, source = f"sqlite://{tmp_path}/log.db?shards=2", Source()
    with opened(url) as log:
        groups.declare(log, "g", MOVED)
        log.append([source.frame(MOVED, 5) for _ in range(100)])
        log.set_shards(4)
        log.append([source.frame(MOVED, 5) for _ in range(100)])
    for _ in range(2):
        got = list[int]()
        with (
            pubsub_api.open("memory://here", log=url) as session,
            session.group("g", MOVED, lambda one: got.append(one.version)),  # noqa: B023
        ):
            wait_until(lambda: len(got) == 1000, 60, "all events")  # noqa: B023
        assert got == list(range(1, 1001))
        with opened(url) as log:
            groups.seek(log, "g", "earliest")


def test_a_group_that_drains_leaves_new_shards_alone(tmp_path: pathlib.Path) -> None:
    source = Source()
    with opened(f"sqlite://{tmp_path}/log.db?shards=2") as log:
        groups.declare(log, "g", "#")
        log.append([source.frame(topic) for topic in TOPICS])
        groups.drain(log, "g")
        ends = [state.end for state in log.state()]
        log.set_shards(4)
        log.append([source.frame(topic) for topic in TOPICS])
        assert groups.show(log, "g").lag == 2 * len(TOPICS)
        found = groups.get(log, "g")
        assert [found.until_of(shard) for shard in range(4)] == [*ends, 0, 0]


def test_dead_letters_of_both_shards_are_redriven_once(tmp_path: pathlib.Path) -> None:
    name = next(name for name in (f"g{number}" for number in range(99))
                if shard_of(f"dead-letter/{name}", 1) != shard_of(f"dead-letter/{name}", 2))  # fmt: skip
    url, source, conf = f"sqlite://{tmp_path}/log.db?shards=1", Source(), groups_conf(attempts_max=1)

    def refuse(_: pubsub_api.GroupEvent) -> None:
        raise ValueError("no")

    with opened(url) as log:
        groups.declare(log, name, "orders")
        with GroupSubscriber(durable_log.open(url, conf=conf), conf, [f"$shared/{name}/orders"], on_event=refuse):
            for number in (1, 2, 3, 4):
                log.append([source.frame("orders")])
                wait_until(lambda: len(list(redriving.letters(log, name))) == number, 60, "the letter")  # noqa: B023
                if number == 2:
                    log.set_shards(2)
        found = list(redriving.letters(log, name))
        assert [one.event.version for one in found] == [1, 2, 3, 4]
        assert len({one.offset for one in found}) == 4
        assert [one.offset for one in found] == sorted(one.offset for one in found)
        assert redriving.redrive(log, name, until=found[2].offset).letters == 2
        assert redriving.redrive(log, name).letters == 2
        assert redriving.redrive(log, name).letters == 0
        assert [one.event.version for one in read_events(log) if one.event.topic == "orders"][4:] == [1, 2, 3, 4]


def test_a_store_that_was_lost_is_made_anew_with_its_order(tmp_path: pathlib.Path) -> None:
    url, source = f"sqlite://{tmp_path}/log.db?segment_directory={tmp_path}/s", Source()
    with opened(f"{url}&shards=2") as log:
        log.append([source.frame(topic, 4) for topic in TOPICS])
        seal(log)
        log.set_shards(4)
        log.append([source.frame(topic, 4) for topic in TOPICS])
        seal(log)
    for file in tmp_path.glob("log.db*"):
        file.unlink()
    with contextlib.closing(durable_log.loading.build_log(url)) as log:
        assert isinstance(log, SegmentedLog)
        log.connect()
        assert log.shards == 4, "the directory of segments says so"
        assert repair(log).listed > 0
        states = log.state()
        assert [state.after for state in states] == [(), (), ((0, states[0].end),), ((1, states[1].end),)]
        assert verify(log).problems == []
        again = [source.again(topic, 1, 8) for topic in TOPICS]
        assert log.append(again).events == 0, "streams stand where they stood"


def test_a_damaged_position_is_found_anew_from_both_shards(tmp_path: pathlib.Path) -> None:
    url, source = f"sqlite://{tmp_path}/log.db?shards=2", Source()
    with opened(url) as log:
        log.append([source.frame(MOVED, 4)])
        log.set_shards(4)
        log.append([source.frame(MOVED, 4)])
        log._store.write(  # type: ignore[attr-defined]
            lambda connection: connection.execute("UPDATE streams SET position = x'00'")
        )
        repair(log)
        assert log.append([source.again(MOVED, 1, 8)]).events == 0
        [stream] = log.streams(shard_of(MOVED, 4))
        assert (stream.last, stream.missing) == (8, ())


def test_a_delete_stays_while_the_former_shard_has_the_object(tmp_path: pathlib.Path) -> None:
    options = f"shards=2&compact_topics={MOVED}&compact_tombstone_age=0"
    with pubsub_api.open("memory://here") as session, opened(f"sqlite://{tmp_path}/log.db?{options}") as log:
        recorder = Recorder(session, log, ["#"])
        with contextlib.closing(recorder):
            recorder.wait_ready(timeout_s=60)
            publisher = session.publisher()
            publisher.send_event(event(MOVED, 1))
            publisher.flush(timeout_s=60)
            wait_until(lambda: len(read_events(log)) == 1, 60, "the event")
            seal(log)
            log.set_shards(4)
            publisher.send_event(pubsub_api.Event(topic=MOVED, table="t", key="k", action="delete", version=2))
            publisher.flush(timeout_s=60)
            wait_until(lambda: len(read_events(log)) == 2, 60, "the delete")
        seal(log)
        home = shard_of(MOVED, 4)
        compactor = SegmentCompactor(log, Sealer(log))
        compactor.compact(home, time.time_ns() + 1_000_000_000)
        assert [one.event.action for one in read_events(log, home)] == ["delete"]
        log.trim(home % 2, log.state()[home % 2].end)
        compactor.compact(home, time.time_ns() + 2_000_000_000)
        assert read_events(log, home) == []


def test_files_keep_the_order_of_a_log_that_has_grown(tmp_path: pathlib.Path) -> None:
    source = Source()
    with opened(f"sqlite://{tmp_path}/a.db?shards=2") as log:
        log.append([source.frame(topic, 2) for topic in TOPICS])
        log.set_shards(4)
        log.append([source.frame(topic, 2) for topic in TOPICS])
        starts = {state.shard: state.start for state in log.state()}
        export(log, tmp_path / "events.jsonl", starts=starts, filters=["#"])
        assert try_import(log, tmp_path / "events.jsonl").events == 0
    with opened(f"sqlite://{tmp_path}/b.db?shards=3") as log:
        assert import_file(log, tmp_path / "events.jsonl").events == 4 * len(TOPICS)
        for topic in TOPICS:
            assert [one.number for one in read_events(log) if one.event.topic == topic] == [1, 2, 3, 4]


def test_who_has_a_log_open_goes_on_when_a_copy_from_before_it_grew_is_put_back(tmp_path: pathlib.Path) -> None:
    """The same file goes on to be used, with fewer shards than the writer knows."""
    source, path = Source(), tmp_path / "log.db"
    with opened(f"sqlite://{path}?shards=2") as log:
        log.append([source.frame(topic) for topic in TOPICS])
        with (
            contextlib.closing(sqlite3.connect(path)) as present,
            contextlib.closing(sqlite3.connect(":memory:")) as old,
        ):
            present.backup(old)
            log.set_shards(4)
            old.backup(present)
        with pytest.raises(UsageError, match="no shard 3 any more"):
            log.read(3, 0)
        log.append([source.frame(topic) for topic in TOPICS])
        assert [one.after for one in log.state()] == [(), ()]
        assert len(read_events(log)) == 2 * len(TOPICS)
        assert log.set_shards(4)
        log.append([source.frame(topic) for topic in TOPICS])
        assert len(read_events(log)) == 3 * len(TOPICS)


def test_of_two_who_want_other_numbers_of_shards_the_slower_one_leaves_nothing_behind(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where segments are is said how many shards the log has: a wrong number would keep it from being repaired."""
    url, source = f"sqlite://{tmp_path}/log.db?shards=2", Source()
    with opened(url) as log, opened(url) as slower:
        log.append([source.frame(topic) for topic in TOPICS])
        seal(log)
        add_shards = slower.add_shards

        def add_after_the_other(found: ShardMap, shards: int) -> ShardMap | None:
            log.set_shards(4)
            return add_shards(found, shards)

        monkeypatch.setattr(slower, "add_shards", add_after_the_other)
        with pytest.raises(UsageError, match="4 shards"):
            slower.set_shards(6)
        mark = read_mark(log.segment_store)
        assert mark is not None
        assert mark.shards == 4
        log.note_shards(12)  # and is killed
        assert not slower.set_shards(4)
        mark = read_mark(log.segment_store)
        assert mark is not None
        assert mark.shards == 4
