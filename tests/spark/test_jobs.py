"""The jobs end to end, as a user starts them: log, lake, snapshot, audit, merge and replay."""

from __future__ import annotations

import collections
import contextlib
import json
import pathlib
import shutil

import pytest
from pyspark.sql import SparkSession

import durable_log
import pubsub_api
from durable_log.sealing import Sealer
from durable_log.segmented import SegmentedLog
from heliograph.main import main
from nb_api import LocalCache, NbApi
from nb_api.notify_config import CACHE_GROUP
from pubsub_api import config
from spark_pipeline.errors import PipelineError
from spark_pipeline.jobs.ingest import ingest
from spark_pipeline.lake import LakeTable
from spark_pipeline.snapshot import read_manifest, read_objects
from tests.servers import RedisServer
from tests.spark.conftest import log_frame, plain_rows
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("one_session")
TOPICS = ["a/port", "b/port", "c/port"]


@pytest.fixture
def filled(log_url: str) -> str:
    """A log of three topics with events 1 to 30 each."""
    with contextlib.closing(durable_log.open(log_url)) as log:
        log.append([log_frame(topic, first=start, count=10) for topic in TOPICS for start in (1, 11, 21)])
    return log_url


def test_ingest_takes_in_everything_once_in_commits_of_bounded_size(
    spark: SparkSession, filled: str, tmp_path: pathlib.Path
) -> None:
    table = LakeTable(tmp_path / "lake")
    commits = list(ingest(spark, filled, table, events_max=40))
    assert sum(one.events for one in commits) == 90
    assert len(commits) > 1
    assert commits[-1].left == 0
    assert list(ingest(spark, filled, table, events_max=40)) == [], "nothing is taken in twice"
    with contextlib.closing(durable_log.open(filled)) as log:
        log.append([log_frame("a/port", first=31, count=5)])
    assert [one.events for one in ingest(spark, filled, table, events_max=40)] == [5]
    rows = plain_rows(table.read(spark).select("topic", "seq", "day"))
    wanted = [(topic, seq, "1970-01-01") for topic in TOPICS for seq in range(1, 31)]
    assert sorted(rows) == sorted(wanted + [("a/port", seq, "1970-01-01") for seq in range(31, 36)])
    assert table.read(spark, version=table.version() - 1).count() == 90, "what was there before can still be read"


def test_of_two_jobs_that_commit_at_once_one_is_refused_and_adds_nothing(
    spark: SparkSession, filled: str, tmp_path: pathlib.Path
) -> None:
    from spark_pipeline.reading import read_log

    table = LakeTable(tmp_path / "lake")
    ends = {0: 30, 1: 30, 2: 30, 3: 30}
    events = read_log(spark, filled)
    table.append(events.limit(0), {})
    slow = LakeTable(tmp_path / "lake")
    stale = slow._table()
    table.append(events, ends)
    slow._table = lambda: stale  # type: ignore[method-assign]  # it looked before the other one committed
    with pytest.raises(PipelineError, match="at the same time"):
        slow.append(events, ends)
    assert table.read(spark).count() == 90


def test_files_that_no_commit_names_are_not_read_and_are_removed(
    spark: SparkSession, filled: str, tmp_path: pathlib.Path
) -> None:
    table = LakeTable(tmp_path / "lake")
    list(ingest(spark, filled, table, events_max=1000))
    committed = next((tmp_path / "lake").glob("day=*/*.parquet"))
    shutil.copy(committed, committed.with_name("of-a-killed-job.parquet"))
    assert table.read(spark).count() == 90
    assert any("killed-job" in name for name in table.vacuum(retention_hours=0))
    assert table.read(spark).count() == 90


def run_json(capsys: pytest.CaptureFixture[str], *command: str, code: int = 0) -> list[dict[str, object]]:
    capsys.readouterr()
    assert main(["pipeline", *command, "--json"]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_snapshot_has_the_newest_objects_and_says_where_to_go_on(
    filled: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "snapshot")
    (manifest,) = run_json(capsys, "compact", "--log", filled, "--out", out)
    assert manifest["objects"] == 30
    assert manifest["version"] == 30
    assert sum(read_manifest(out).offsets.values()) == 90
    found = {one.key: one.value for one in read_objects(out)}
    assert found == {f"p{number}": {"n": number} for number in range(1, 31)}
    assert main(["pipeline", "compact", "--log", filled, "--out", out]) == 2, "never overwritten"
    (tmp_path / "snapshot" / "manifest.json").unlink()
    with pytest.raises(PipelineError, match="not a finished snapshot"):
        read_manifest(out)


def test_a_log_in_redis_is_read_as_its_configuration_says(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sealed segments in a directory that only the file names, a hot tail in the server, and workers without the
    file."""
    with RedisServer() as server:
        config_file = tmp_path / "heliograph.conf"
        config_file.write_text(f"[log]\nurl = {server.address}?shards=2\nsegment_directory = {tmp_path}/segments\n")
        with contextlib.closing(durable_log.open(config_files=[config_file])) as log:
            assert isinstance(log, SegmentedLog)
            log.append([log_frame("a/port", first=1, count=30)])
            Sealer(log).seal(durable_log.shard_of("a/port", 2))
            log.append([log_frame("a/port", first=31, count=10)])
        out = str(tmp_path / "snapshot")
        (manifest,) = run_json(capsys, "compact", "--config-file", str(config_file), "--out", out)
    assert manifest["objects"] == 40
    assert {one.key for one in read_objects(out)} == {f"p{number}" for number in range(1, 41)}


def test_a_controller_resyncs_from_what_was_compacted(
    log_url: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log has missed an update, a delete and a create; the database corrects it, and then knows what came after."""
    snapshot, url = str(tmp_path / "snapshots" / "1"), f"sqlite://{tmp_path}/objects.db"
    conf = config.new_conf()
    with contextlib.closing(durable_log.open(log_url)) as log, NbApi.open(conf=conf, url=url) as nb:
        for number in range(1, 31):
            nb.create("port", f"p{number}", {"n": number}, topic="a/port")
        log.append([log_frame("a/port", first=1, count=30)])
        nb.update("port", "p1", {"n": "missed"})
        nb.delete("port", "p2")
        nb.create("net", "n1", None, topic="a/net")
        run_json(capsys, "compact", "--log", log_url, "--out", snapshot)
        assert main(["db", "snapshot", snapshot, "--db", url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"objects": 30, "revision": 33}
        nb.update("port", "p3", {"n": "after"})
        conf.set_override("snapshot_directory", str(tmp_path / "snapshots"), group=CACHE_GROUP)
        with LocalCache(nb, resync_source="snapshot") as cache:
            cache.wait_synced(timeout_s=60)
            assert [cache.get_all(table) for table in ("port", "net")] == [nb.get_all("port"), nb.get_all("net")]
            assert cache.statistics().syncs.from_source == 1
        assert {one.key for one in read_objects(snapshot)} == {f"p{n}" for n in range(1, 31) if n != 2} | {"n1"}


def test_an_audit_finds_what_is_missing_and_writes_a_page(
    filled: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (clean,) = run_json(capsys, "audit", "--log", filled)
    assert clean["ranges"] == []
    with contextlib.closing(durable_log.open(filled)) as log:
        log.append([log_frame("a/port", first=35, count=2)])
    heads = tmp_path / "heads.json"
    heads.write_text(
        json.dumps({"publisher": (b"g" * 16).hex(), "topic": "b/port", "last": 33})
        + "\n"
        + json.dumps({"publisher": (b"g" * 16).hex(), "topic": "a/port", "last": 36})
    )
    page = tmp_path / "audit.html"
    found = run_json(capsys, "audit", "--log", filled, "--heads", str(heads), "--html", str(page), code=1)[0]
    ranges = {(one["kind"], one["topic"], one["first"], one["last"]) for one in found["ranges"]}  # type: ignore[union-attr, attr-defined]
    assert ranges == {("lost", "a/port", 31, 34), ("lost", "b/port", 31, 33)}
    assert "7 lost" in page.read_text()
    assert "<svg" in page.read_text()
    heads.write_text("{}")
    assert main(["pipeline", "audit", "--log", filled, "--heads", str(heads)]) == 2
    assert "line 1" in capsys.readouterr().err


def test_merging_two_equal_snapshots_moves_nothing(
    filled: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local, remote, out = (str(tmp_path / name) for name in ("local", "remote", "out"))
    for directory in (local, remote):
        run_json(capsys, "compact", "--log", filled, "--out", directory)
    (outcome,) = run_json(capsys, "merge", "merge", "--local", local, "--remote", remote, "--out", out)
    assert outcome == {"policy": "MERGE", "written": False, "result": local}
    (outcome,) = run_json(capsys, "merge", "DELETE", "--local", local, "--remote", remote, "--out", out)
    assert outcome["written"] is True


def test_a_replay_goes_onto_the_bus_in_order_and_on_where_it_stopped(
    filled: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    received: list[pubsub_api.Event] = []
    place = str(tmp_path / "place.json")
    with pubsub_api.open("memory://replay") as session:
        subscriber = session.subscriber(["again/#"], received.append)
        subscriber.wait_ready(timeout_s=60)
        common = ("replay", "--log", filled, "--url", "memory://replay", "--speed", "0", "--prefix", "again")
        (first,) = run_json(capsys, *common, "--version-to", "11", "--progress-file", place)
        assert first == {"events": 30, "undecodable": 0}
        (rest,) = run_json(capsys, *common, "--progress-file", place)
        assert rest == {"events": 60, "undecodable": 0}
        wait_until(lambda: len(received) == 90, 60, "90 events")
    for topic in TOPICS:
        assert [one.version for one in received if one.topic == f"again/{topic}"] == list(range(1, 31))


def test_a_replay_that_died_goes_on_behind_the_last_place_it_had_noted(
    filled: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[pubsub_api.Event] = []
    command = ("replay", "--log", filled, "--url", "memory://replay-died", "--speed", "0")
    command += ("--progress-file", str(tmp_path / "place.json"))
    send = pubsub_api.Publisher.send_event
    sent = 0

    def send_and_die(publisher: pubsub_api.Publisher, event: pubsub_api.Event) -> None:
        nonlocal sent
        sent += 1
        if sent > 50:
            raise SystemExit
        send(publisher, event)

    monkeypatch.setattr("heliograph.pipeline.replay._SAVE_EVENTS", 20)
    monkeypatch.setattr("heliograph.pipeline.replay._SAVE_S", 3600.0)
    with pubsub_api.open("memory://replay-died") as session:
        subscriber = session.subscriber(["#"], received.append)
        subscriber.wait_ready(timeout_s=60)
        with monkeypatch.context() as patch:
            patch.setattr(pubsub_api.Publisher, "send_event", send_and_die)
            with pytest.raises(SystemExit):
                main(["pipeline", *command])
        wait_until(lambda: len(received) == 50, 60, "what was sent before")
        (rest,) = run_json(capsys, *command)
        assert rest == {"events": 50, "undecodable": 0}, "the ten since the last note are sent again"
        wait_until(lambda: len(received) == 100, 60, "the rest")
    times = collections.Counter((one.topic, one.version) for one in received)
    assert times.keys() == {(topic, seq) for topic in TOPICS for seq in range(1, 31)}
    assert max(times.values()) == 2


def test_a_replay_keeps_the_distances_in_time_at_the_speed_asked_for() -> None:
    from spark_pipeline.jobs.replay import paced

    now = [100.0]
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    rows = [
        {"timestamp": second * 10**9, "guid": b"g", "topic": "t", "seq": second, "table": "x", "key": "k",
         "action": "set", "value": None, "version": second}
        for second in (5, 5, 7, 8)
    ]  # fmt: skip
    places = [place for place, _ in paced(iter(rows), speed=2.0, wait=wait, clock=lambda: now[0])]
    assert waits == [1.0, 0.5]
    assert places == sorted(places)
