"""What a write delivers takes effect once: whatever died in between, and whatever order the rows come in again."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Sequence

import pytest

import durable_log
import pubsub_api
from durable_log.columns import events_batch
from nb_api import NbApi
from pubsub_api.errors import UsageError
from spark_pipeline import staging
from spark_pipeline.errors import PipelineError
from spark_pipeline.targets import Target, open_target
from spark_pipeline.targets.bus import BusTarget
from spark_pipeline.targets.db import DbTarget
from spark_pipeline.targets.log import LogTarget
from spark_pipeline.targets.target import Ledger
from tests.spark.conftest import stage
from tests.waiting import wait_until


class Rig:
    """A target and what arrived there, oldest first."""

    def __init__(self, target: Target, directory: pathlib.Path) -> None:
        self.target = target
        self.directory = directory

    def deliver(self, query: str, batch: int, *files: Sequence[str]) -> None:
        self.target.deliver(query, batch, [stage(self.directory, *keys) for keys in files])

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
        wait_until(lambda: self.subscriber.statistics().lag == 0, 20, "an empty queue")
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
            subscriber.wait_ready(timeout_s=20)
            made = BusRig(BusTarget(url, str(staged)), staged, subscriber)
            made.events = taken
            yield made


def test_a_batch_that_runs_again_has_no_second_effect(rig: Rig) -> None:
    rig.deliver("q", 0, ["a", "b"], ["c"])
    rig.deliver("q", 0, ["c", "a", "b"])
    rig.deliver("q", 1, ["d"])
    rig.deliver("another", 0, ["e"])
    wait_until(lambda: len(rig.arrived()) >= 5, 20, "all rows")
    assert rig.arrived() == ["a", "b", "c", "d", "e"]
    assert list(rig.directory.glob(f"*{staging.SUFFIX}")) == [], "nothing is left behind"


@pytest.mark.parametrize("moment", ["before", "between", "after"])
def test_a_commit_that_died_delivers_the_files_it_had_named(
    rig: Rig, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before, while, or after the rows were delivered; the retry has them in another order."""
    keys = [f"k{number}" for number in range(150)]  # more than one transaction
    whole = Target.portions

    def die(target: Target, ledger: Ledger) -> Iterator[staging.Portion]:
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
    wait_until(lambda: len(rig.arrived()) >= 150, 20, "all rows")
    assert sorted(rig.arrived()) == sorted(keys)
    assert rig.target.named() == set()
    assert list(rig.directory.glob(f"*{staging.SUFFIX}")) == []


def test_rows_of_a_database_create_change_and_delete_objects(tmp_path: pathlib.Path) -> None:
    url = f"sqlite://{tmp_path}/objects.db"
    target = DbTarget(url, str(tmp_path))
    target.deliver("q", 0, [stage(tmp_path, "a", "b", "a")])
    target.deliver("q", 1, [stage(tmp_path, "a", "missing", action="delete")])
    target.deliver("once", 0, [stage(tmp_path, "c")], is_only=True)
    with contextlib.closing(NbApi.open(url=url)) as nb:
        assert [found.key for found in nb.get_all("port")] == ["b", "c"]
        assert [found.key for found in nb.get_all("spark_sink")] == ["q"], "a write of its own leaves no note"


def test_two_writers_under_one_name_are_told(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite://{tmp_path}/log.db?shards=4"
    target = LogTarget(url, str(tmp_path))
    whole = Target.portions

    def meanwhile(of: Target, ledger: Ledger) -> Iterator[staging.Portion]:
        monkeypatch.setattr(Target, "portions", whole)
        target.deliver("q", 7, [stage(tmp_path, "theirs")])
        return whole(of, ledger)

    monkeypatch.setattr(Target, "portions", meanwhile)
    with pytest.raises(PipelineError, match="two writers"):
        target.deliver("q", 6, [stage(tmp_path, "mine")])


@pytest.mark.parametrize(("name", "kind"), [("log", LogTarget), ("db", DbTarget), ("bus", BusTarget)])
def test_the_option_names_the_kind_of_target(name: str, kind: type[Target], tmp_path: pathlib.Path) -> None:
    found = open_target({name: "memory://somewhere"}, str(tmp_path))
    assert (type(found), found.url, found.directory) == (kind, "memory://somewhere", str(tmp_path))


@pytest.mark.parametrize("options", [{}, {"log": "sqlite:///a", "db": "sqlite:///b"}])
def test_a_write_names_one_target(options: dict[str, str]) -> None:
    with pytest.raises(UsageError, match='one of the options "log", "db", "bus"'):
        open_target(options, "/nowhere")
