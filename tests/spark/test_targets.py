"""What a write delivers takes effect once: whatever died in between, and whatever order the rows come in again."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator, Sequence

import msgspec
import pytest

import durable_log
import durable_log.config
import pubsub_api
from durable_log.segments.columns import events_batch
from nb_api import NbApi
from pubsub_api.errors import InvalidEvent, NotSupported, UsageError
from spark_pipeline.errors import CheckpointCopied, JobNameTaken, PipelineError
from spark_pipeline.writing import staged_files
from spark_pipeline.writing.targets import MicroBatch, Target, open_target
from spark_pipeline.writing.targets import log as log_targets
from spark_pipeline.writing.targets.bus import BusTarget
from spark_pipeline.writing.targets.db import DbTarget
from spark_pipeline.writing.targets.log import LogTarget
from spark_pipeline.writing.targets.target import Ledger
from tests.helpers.servers import RedisServer, free_port
from tests.helpers.waiting import WAIT_S, wait_until
from tests.spark.conftest import stage, stage_rows

CHECKPOINT = "the mark of a checkpoint"


class Rig:
    """A target and what arrived there, oldest first."""

    def __init__(self, target: Target, directory: pathlib.Path) -> None:
        self.target = target
        self.directory = directory

    def deliver(self, query: str, batch: int, *files: Sequence[str]) -> None:
        self.target.deliver(MicroBatch(query, CHECKPOINT, batch), [stage(self.directory, *keys) for keys in files])

    def arrived(self) -> list[str]:
        raise NotImplementedError


class LogRig(Rig):
    def arrived(self) -> list[str]:
        with contextlib.closing(durable_log.open(self.target.url)) as log:
            stored = log.read(durable_log.shard_of("t", log.shards), 0)
            return list(events_batch(stored).column("key").to_pylist()) if stored else []


class DbRig(Rig):
    def arrived(self) -> list[str]:
        with contextlib.closing(NbApi.open(url=self.target.url)) as nb:
            return [change.key for change in nb.db.changes(0) if change.table == "port"]


class BusRig(Rig):
    def __init__(self, target: Target, directory: pathlib.Path, subscriber: pubsub_api.Subscriber) -> None:
        super().__init__(target, directory)
        self.events: list[pubsub_api.Event] = []
        self.subscriber = subscriber

    def arrived(self) -> list[str]:
        wait_until(lambda: self.subscriber.statistics().lag == 0, WAIT_S, "an empty queue")
        return [event.key for event in self.events]


@pytest.fixture(params=["log", "db", "bus"])
def rig(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Rig]:
    staged = tmp_path / "staged"
    if request.param == "log":
        yield LogRig(LogTarget(f"sqlite://{tmp_path}/log.db?shards=4", str(staged)), staged)
    elif request.param == "db":
        yield DbRig(DbTarget(f"sqlite://{tmp_path}/objects.db", str(staged)), staged)
    else:
        url = f"memory://{tmp_path.name}"
        with pubsub_api.open(url) as session:
            taken: list[pubsub_api.Event] = []
            subscriber = session.subscriber(["#"], taken.append)
            subscriber.wait_ready(timeout_s=WAIT_S)
            made = BusRig(BusTarget(url, str(staged)), staged, subscriber)
            made.events = taken
            yield made


def test_a_batch_that_runs_again_has_no_second_effect(rig: Rig) -> None:
    rig.deliver("q", 0, ["a", "b"], ["c"])
    rig.deliver("q", 0, ["c", "a", "b"])
    rig.deliver("q", 1, ["d"])
    rig.deliver("another", 0, ["e"])
    wait_until(lambda: len(rig.arrived()) >= 5, WAIT_S, "all rows")
    assert rig.arrived() == ["a", "b", "c", "d", "e"]
    assert list(rig.directory.glob(f"*{staged_files.SUFFIX}")) == [], "nothing is left behind"


@pytest.mark.parametrize("moment", ["before", "between", "after"])
def test_a_commit_that_died_delivers_the_files_it_had_named(
    rig: Rig, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before, while, or after the rows were delivered; the retry has them in another order."""
    keys = [f"k{number}" for number in range(150)]  # more than one transaction
    whole = Target.portions

    def die(target: Target, ledger: Ledger) -> Iterator[staged_files.StagedPortion]:
        if moment == "before":
            raise KeyboardInterrupt
        for number, portion in enumerate(whole(target, ledger)):
            if number and moment == "between":
                raise KeyboardInterrupt
            yield portion
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Target, "portions", die)
        with pytest.raises(KeyboardInterrupt):
            rig.deliver("q", 5, keys[:100], keys[100:])
    assert len(rig.target.named()) == 2, "abort must leave these alone"
    rig.deliver("q", 5, keys[75:], keys[:75])
    wait_until(lambda: len(rig.arrived()) >= 150, WAIT_S, "all rows")
    assert sorted(rig.arrived()) == sorted(keys)
    assert rig.target.named() == set()
    assert list(rig.directory.glob(f"*{staged_files.SUFFIX}")) == []


def test_rows_of_a_database_create_change_and_delete_objects(tmp_path: pathlib.Path) -> None:
    url = f"sqlite://{tmp_path}/objects.db"
    target = DbTarget(url, str(tmp_path))
    target.deliver(MicroBatch("q", CHECKPOINT, 0), [stage(tmp_path, "a", "b", "a")])
    target.deliver(MicroBatch("q", CHECKPOINT, 1), [stage(tmp_path, "a", "missing", action="delete")])
    target.deliver(MicroBatch("once", "", 0), [stage(tmp_path, "c")], is_only=True)
    with contextlib.closing(NbApi.open(url=url)) as nb:
        assert [found.key for found in nb.get_all("port")] == ["b", "c"]
        assert [found.key for found in nb.get_all("spark_sink")] == ["q"], "a write of its own leaves no note"


def test_two_writers_under_one_name_are_told(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite://{tmp_path}/log.db?shards=4"
    target = LogTarget(url, str(tmp_path))
    whole = Target.portions

    def meanwhile(of: Target, ledger: Ledger) -> Iterator[staged_files.StagedPortion]:
        monkeypatch.setattr(Target, "portions", whole)
        mine = list(whole(of, ledger))
        target.deliver(MicroBatch("q", CHECKPOINT, 6), [stage(tmp_path, "theirs")])
        return iter(mine)

    monkeypatch.setattr(Target, "portions", meanwhile)
    with pytest.raises(PipelineError, match="two writers"):
        target.deliver(MicroBatch("q", CHECKPOINT, 6), [stage(tmp_path, "mine")])


def test_the_option_names_the_kind_of_target_and_each_has_a_directory(tmp_path: pathlib.Path) -> None:
    options = {"log": f"sqlite://{tmp_path}/log.db", "db": f"sqlite://{tmp_path}/objects.db", "bus": "memory://b"}
    found = [open_target({name: url}, str(tmp_path)) for name, url in options.items()]
    assert [type(one) for one in found] == [LogTarget, DbTarget, BusTarget]
    assert [one.url for one in found] == list(options.values())
    assert len({one.directory for one in found}) == 3
    assert {pathlib.Path(one.directory).parent for one in found} == {tmp_path}


@pytest.mark.parametrize("options", [{}, {"log": "sqlite:///a", "db": "sqlite:///b"}])
def test_a_write_names_one_target(options: dict[str, str]) -> None:
    with pytest.raises(UsageError, match='one of the options "log", "db", "bus"'):
        open_target(options, "/nowhere")


def test_a_name_belongs_to_one_checkpoint(rig: Rig) -> None:
    """Batches are numbered from 0 in each checkpoint: those of another one are other rows under the same numbers."""
    rig.deliver("q", 0, ["a"])
    rig.deliver("q", 1, ["b"])
    with pytest.raises(JobNameTaken, match="belongs to another checkpoint"):
        rig.target.deliver(MicroBatch("q", "another", 0), [stage(rig.directory, "c")])
    with pytest.raises(JobNameTaken, match="belongs to another checkpoint"):
        rig.target.deliver(MicroBatch("q", "another", 2), [stage(rig.directory, "c")])
    with pytest.raises(CheckpointCopied, match="batch 0, and this target knows batch 1"):
        rig.deliver("q", 0, ["d"])
    rig.target.deliver(MicroBatch("another name", "another", 0), [stage(rig.directory, "e")])
    wait_until(lambda: len(rig.arrived()) >= 3, WAIT_S, "all rows")
    assert rig.arrived() == ["a", "b", "e"]


@pytest.mark.parametrize("is_delivered", [True, False])
def test_another_batch_of_the_same_number_is_no_retry(
    rig: Rig, is_delivered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the checkpoint has planned its own batch 3, with other rows."""
    planned, copied = (MicroBatch("q", CHECKPOINT, 3, mark) for mark in ("planned", "by a copy"))
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        if not is_delivered:
            patch.setattr(Target, "portions", _die)
        rig.target.deliver(planned, [stage(rig.directory, "a")])
    with pytest.raises(CheckpointCopied, match="another batch 3"):
        rig.target.deliver(copied, [stage(rig.directory, "b")])
    rig.target.deliver(planned, [stage(rig.directory, "a")])
    wait_until(lambda: rig.arrived() == ["a"], WAIT_S, "the row of the batch that came first")


def _die(_target: Target, _ledger: Ledger) -> Iterator[staged_files.StagedPortion]:
    raise KeyboardInterrupt


def test_a_batch_that_was_begun_is_ended_before_another_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Target, "portions", _die)
        with pytest.raises(KeyboardInterrupt):
            rig.deliver("q", 3, ["a"])
    with pytest.raises(CheckpointCopied, match="batch 4, and this target knows batch 3"):
        rig.deliver("q", 4, ["b"])


def test_rows_of_one_object_keep_their_order_whatever_topics_they_have(tmp_path: pathlib.Path) -> None:
    url = f"sqlite://{tmp_path}/objects.db"
    target = DbTarget(url, str(tmp_path / "staged"))
    values = [msgspec.msgpack.encode(number) for number in range(5)]
    rows = [{"key": "k", "topic": "ab"[number % 2], "value": value} for number, value in enumerate(values)]
    target.deliver(MicroBatch("q", CHECKPOINT, 0), [stage_rows(tmp_path / "staged", rows)])
    with contextlib.closing(NbApi.open(url=url)) as nb:
        found = nb.get("port", "k")
        assert (found.value, found.topic) == (4, "a")


@pytest.fixture
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log takes frames of 64 KiB."""
    for module in (durable_log.config, log_targets):
        monkeypatch.setattr(module, "frame_bytes_max", lambda _conf: 65_536)


@pytest.mark.parametrize("kind", ["log", "db"])
def test_large_rows_go_in_portions_that_the_target_takes(tmp_path: pathlib.Path, kind: str, small_frames: None) -> None:
    """600 rows of 16 KiB, where a frame of the log, and a transaction of the database, take a few of them."""
    value = msgspec.msgpack.encode(b"x" * 16_384)
    name = stage_rows(tmp_path, [{"key": f"k{number}", "value": value} for number in range(600)])
    if kind == "log":
        log_target = LogTarget(f"sqlite://{tmp_path}/log.db?shards=1", str(tmp_path))
        log_target.deliver(MicroBatch("q", CHECKPOINT, 0), [name])
        with contextlib.closing(durable_log.open(log_target.url)) as log:
            assert [state.end for state in log.state()] == [600]
        return
    file, limits = tmp_path / "db.conf", "value_bytes_max = 32768\n"
    file.write_text(f"[db]\nurl = sqlite://{tmp_path}/objects.db\n{limits}[pubsub]\nenable_df_pub_sub = false\n")
    DbTarget(str(file), str(tmp_path)).deliver(MicroBatch("q", CHECKPOINT, 0), [name])
    with contextlib.closing(NbApi.open(config_files=[file])) as nb:
        assert len(nb.get_all("port")) == 600


def test_a_row_that_no_target_takes_is_refused_before_the_batch_is_named(
    tmp_path: pathlib.Path, small_frames: None
) -> None:
    targets = [
        LogTarget(f"sqlite://{tmp_path}/log.db", str(tmp_path)),
        DbTarget(f"sqlite://{tmp_path}/objects.db", str(tmp_path)),
        BusTarget("memory://rows", str(tmp_path)),
    ]
    for target in targets:
        target.check_row("port", "k", target.event_bytes_max)
        with pytest.raises(InvalidEvent, match="takes at most"):
            target.check_row("port", "k", target.event_bytes_max + 1)
    with pytest.raises(InvalidEvent, match="key"):
        targets[1].check_row("port", "", 1)


@pytest.mark.parametrize("kind", ["redis", "zenoh"])
def test_every_event_of_every_batch_comes_over_a_bus_with_a_server_in_the_middle(
    kind: str, tmp_path: pathlib.Path
) -> None:
    received: list[pubsub_api.Event] = []
    with contextlib.ExitStack() as stack:
        if kind == "redis":
            url = stack.enter_context(RedisServer()).address
        else:
            port = free_port()
            router = stack.enter_context(pubsub_api.open(f"zenoh://127.0.0.1:{port}?mode=router"))
            stack.enter_context(router.publisher())
            url = f"zenoh://127.0.0.1:{port}?mode=client"
        session = stack.enter_context(pubsub_api.open(url))
        subscriber = stack.enter_context(session.subscriber(["#"], received.append))
        subscriber.wait_ready(timeout_s=WAIT_S)
        target = BusTarget(url, str(tmp_path))
        for batch in range(4):
            name = stage(tmp_path, *(f"k{batch}-{number}" for number in range(250)))
            target.deliver(MicroBatch("q", CHECKPOINT, batch), [name])
        wait_until(lambda: len(received) == 1000, WAIT_S, "all events")
    assert {event.key for event in received} == {f"k{batch}-{number}" for batch in range(4) for number in range(250)}


@pytest.mark.parametrize("url", ["zmq://127.0.0.1:0", "zenoh://127.0.0.1:7447", "longpoll://127.0.0.1:0"])
def test_a_bus_whose_subscribers_would_not_find_a_batch_in_time_is_refused(url: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(NotSupported, match="a batch is over before"):
        BusTarget(url, str(tmp_path))


def test_a_database_whose_bus_would_lose_a_batch_is_refused(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "db.conf"
    bus = "enable_df_pub_sub = true\npub_sub_driver = zmq\npub_sub_use_multiproc = {}\n"
    file.write_text(f"[db]\nurl = sqlite://{tmp_path}/objects.db\n[pubsub]\n{bus.format('false')}")
    with pytest.raises(NotSupported, match="publisher service"):
        DbTarget(str(file), str(tmp_path))
    file.write_text(f"[db]\nurl = sqlite://{tmp_path}/objects.db\n[pubsub]\n{bus.format('true')}")
    assert DbTarget(str(file), str(tmp_path)).event_bytes_max > 0


def test_files_of_attempts_that_died_long_ago_are_removed(rig: Rig) -> None:
    kept, old = stage(rig.directory, "kept"), stage(rig.directory, "old")
    named = stage(rig.directory, "named")
    for name in (old, named):
        os.utime(rig.directory / name, (0, 0))
    rig.target.named = lambda: {named}  # type: ignore[method-assign]  # by the ledger of another query
    rig.deliver("q", 0, ["a"])
    assert {file.name for file in rig.directory.glob(f"*{staged_files.SUFFIX}")} == {kept, named}
