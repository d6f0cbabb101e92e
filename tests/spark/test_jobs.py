"""The jobs end to end, as a user starts them: log, lake, snapshot, audit, merge and replay."""

from __future__ import annotations

import collections
import contextlib
import json
import pathlib
import shutil
from typing import Any

import deltalake
import pyarrow
import pytest
from pyspark.sql import SparkSession

import durable_log
import pubsub_api
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from heliograph.main import main
from nb_api import LocalCache, NbApi
from nb_api.notify_config import CACHE_GROUP
from pubsub_api import config
from pubsub_api.core import frame as frames
from pubsub_api.core.frame import Kind
from pubsub_api.errors import UsageError
from spark_pipeline.errors import OtherLog, PipelineError
from spark_pipeline.jobs.ingest import count_waiting, ingest
from spark_pipeline.jobs.snapshot import read_manifest, read_objects, write_snapshot
from spark_pipeline.lake import LakeTable, LakeVersion
from spark_pipeline.reading.whole_log import read_log
from spark_pipeline.writing.job_directories import attempt
from tests.helpers.servers import RedisServer
from tests.helpers.waiting import wait_until
from tests.spark.conftest import log_frame, plain_rows

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
    assert count_waiting(filled, table) == 90
    commits = list(ingest(spark, filled, table, events_max=40))
    assert sum(one.events for one in commits) == 90
    assert count_waiting(filled, table) == 0
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
    files = deltalake.DeltaTable(str(tmp_path / "lake")).get_add_actions(flatten=True)
    assert (min(files.column("min.seq").to_pylist()), max(files.column("max.seq").to_pylist())) == (1, 35)
    assert set(files.column("max.topic").to_pylist()) <= set(TOPICS), "engines can leave out files by what is in them"


def test_two_ingests_at_once_and_a_second_log_take_in_every_event_once(
    spark: SparkSession, filled: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit comes when the offsets were read: its events are not taken in again, and those of another log are."""
    lake, another = tmp_path / "lake", f"sqlite://{tmp_path}/another.db?shards=4"
    with contextlib.closing(durable_log.open(another)) as log:
        log.append([log_frame("a/port", first=1, count=7, guid=b"h" * 16)])
    whole = LakeVersion.offsets
    overtakers = [filled, another]

    def offsets(version: LakeVersion, log: str, shards: int) -> dict[int, int]:
        found = whole(version, log, shards)
        if overtakers:
            list(ingest(spark, overtakers.pop(0), LakeTable(lake), events_max=1000))
        return found

    monkeypatch.setattr(LakeVersion, "offsets", offsets)
    commits = list(ingest(spark, filled, LakeTable(lake), events_max=1000))
    assert commits == [], "the other one has taken in all of it"
    rows = plain_rows(LakeTable(lake).read(spark).select("log", "topic", "guid", "seq"))
    assert len(rows) == len(set(rows)) == 97
    assert len({row[0] for row in rows}) == 2
    assert list(lake.glob("_written-*")) == [], "nothing is left of the attempt that was overtaken"
    assert len(list(lake.glob("day=*/*.parquet"))) == len(LakeTable(lake)._table().file_uris())
    assert write_snapshot(LakeTable(lake).read(spark), str(tmp_path / "snapshot")).offsets == {}


def test_a_log_that_was_restored_from_an_older_copy_is_not_taken_in(
    spark: SparkSession, filled: str, tmp_path: pathlib.Path
) -> None:
    table = LakeTable(tmp_path / "lake")
    with contextlib.closing(durable_log.open(filled)) as log:
        beyond = {state.shard: state.end + 1 for state in log.state()}
        table.current().append(read_log(spark, filled).limit(0), log.identity, beyond, {})
    with pytest.raises(OtherLog, match="the table is at offset"):
        list(ingest(spark, filled, table, events_max=1000))


def test_a_log_that_was_restored_and_has_grown_since_is_not_taken_in(
    spark: SparkSession, log_url: str, tmp_path: pathlib.Path
) -> None:
    table = LakeTable(tmp_path / "lake")
    with contextlib.closing(durable_log.open(log_url)) as log:
        log.append([log_frame("a/port", first=1, count=10)])
    shutil.copy(tmp_path / "log.db", tmp_path / "older.db")
    with contextlib.closing(durable_log.open(log_url)) as log:
        log.append([log_frame("a/port", first=11, count=10)])
    assert [one.events for one in ingest(spark, log_url, table, events_max=1000)] == [20]
    shutil.copy(tmp_path / "older.db", tmp_path / "log.db")
    with contextlib.closing(durable_log.open(log_url)) as log:
        log.append([log_frame("a/port", first=21, count=30)])
    with pytest.raises(OtherLog, match="the table is at offset 20 .* has grown since"):
        list(ingest(spark, log_url, table, events_max=1000))
    assert table.read(spark).count() == 20


def test_files_that_no_commit_names_are_not_read_and_are_removed(
    spark: SparkSession, filled: str, tmp_path: pathlib.Path
) -> None:
    table = LakeTable(tmp_path / "lake")
    dead, alive = (tmp_path / "lake" / f"_written-{name}" for name in ("dead", "alive"))
    dead.mkdir(parents=True)
    with contextlib.closing(durable_log.open(filled)) as log:
        log.append([frames.pack(Kind.DATA, b"x" * 16, "a/port", b"\x01", first=1, count=1, timestamp=1)])
    with attempt(alive):
        list(ingest(spark, filled, table, events_max=1000))
        assert alive.exists()
    assert not dead.exists()
    committed = sorted((tmp_path / "lake").glob("day=*/*.parquet"))
    days = {file.parent.name for file in committed}
    assert "day=1970-01-01" in days
    assert len(days) == 2, "what cannot be decoded has the day on which it was recorded"
    assert not any("DEFAULT" in day for day in days)
    shutil.copy(committed[0], committed[0].with_name("of-a-killed-job.parquet"))
    assert table.read(spark).count() == 91
    assert any("killed-job" in name for name in table.vacuum(retention_hours=0))
    assert table.read(spark).count() == 91


def test_what_the_java_of_a_killed_job_still_writes_is_not_in_the_result(tmp_path: pathlib.Path) -> None:
    with attempt(tmp_path / "out.unfinished") as of_the_killed_one:
        pass
    with attempt(tmp_path / "out.unfinished") as place:
        (of_the_killed_one / "rows").mkdir(parents=True)
        assert list(place.iterdir()) == []
        with pytest.raises(UsageError, match="being written by another job"), attempt(tmp_path / "out.unfinished"):
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["ftp://host/events", "hdfs://host/events", "file:/var/events"])
def test_a_place_that_is_no_directory_is_refused(path: str, filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        ["ingest", "--log", filled, "--lake", path],
        ["compact", "--log", filled, "--out", path],
        ["merge", "MERGE", "--local", path, "--remote", path, "--out", "/nowhere/result"],
    ):
        assert main(["pipeline", *command]) == 2
        assert "must be a directory that this host and all workers have mounted" in capsys.readouterr().err


def test_a_mistyped_path_touches_nothing_and_is_told_before_spark_starts(
    log_url: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of somebody else, a directory of other files, a file; results in a directory that is not there."""
    with contextlib.closing(durable_log.open(log_url)) as log:
        log.append([log_frame("a/port", first=1, count=1)])
    foreign, full, nowhere = (tmp_path / name for name in ("orders", "full", "nowhere"))
    deltalake.write_deltalake(foreign, pyarrow.table({"id": [1, 2], "day": ["x", "y"]}), partition_by=["day"])
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    monkeypatch.setattr(
        "spark_pipeline.sessions.session.open_session", lambda *_, **__: pytest.fail("Spark was started")
    )
    for command, reason in (
        (["ingest", "--lake", str(foreign)], "lacks the column 'shard'"),
        (["ingest", "--lake", str(full)], "is no table, and holds notes.txt"),
        (["ingest", "--lake", str(full / "notes.txt")], "is a file"),
        (["audit", "--html", str(nowhere / "page.html")], "no such directory"),
        (["heads", "--out", str(nowhere / "heads.json")], "no such directory"),
        (["replay", "--bus", "memory://nowhere", "--progress-file", str(nowhere / "place")], "no such directory"),
        (["compact", "--out", str(nowhere), "--topics", "a/#b"], "'#' must stand alone"),
    ):
        assert main(["pipeline", *command, "--log", log_url]) == 2, command
        assert reason in capsys.readouterr().err
    assert deltalake.DeltaTable(foreign).version() == 0
    assert sorted(file.name for file in (*full.iterdir(), *nowhere.glob("*"))) == ["notes.txt"]


def test_an_ingest_shows_how_far_it_is_on_a_terminal(
    filled: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # what is captured passes for a terminal
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["pipeline", "ingest", "--log", filled, "--lake", str(tmp_path / "lake"), "--commit-events", "50"]) == 0
    told = capsys.readouterr()
    assert "90/90" in told.err
    assert "90 events ingested" in told.out


def run_json(capsys: pytest.CaptureFixture[str], *command: str, code: int = 0) -> list[dict[str, object]]:
    capsys.readouterr()
    assert main(["pipeline", *command, "--json"]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_snapshot_has_the_newest_objects_and_says_where_to_go_on(
    filled: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "snapshot")
    left_by_a_killed_job = tmp_path / "snapshot.unfinished" / "snapshot" / "objects"
    left_by_a_killed_job.mkdir(parents=True)
    (manifest,) = run_json(capsys, "compact", "--log", filled, "--out", out)
    assert manifest["objects"] == 30
    assert manifest["version"] == 30
    assert sum(read_manifest(out).offsets.values()) == 90
    with contextlib.closing(durable_log.open(filled)) as log:
        assert read_manifest(out).log == log.identity, "offsets mean something in this log only"
    found = {one.key: one.value for one in read_objects(out)}
    assert found == {f"p{number}": {"n": number} for number in range(1, 31)}
    assert main(["pipeline", "compact", "--log", filled, "--out", out]) == 2, "never overwritten"
    assert [file.name for file in tmp_path.glob("snapshot*")] == ["snapshot"]
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
        newest = nb.get("net", "n1").version
        assert json.loads(capsys.readouterr().out) == {"objects": 30, "revision": newest}
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
    told = page.read_text()
    assert "7 lost" in told
    assert "<svg" in told
    assert filled.partition("?")[0] in told
    assert f"{found['made_at']}".partition("+")[0] in told
    assert "only the first" not in told
    periods = found["periods"]
    assert sum(one["events"] for one in periods) == 92  # type: ignore[attr-defined]
    assert sum(one["lost"] for one in periods) == 4  # type: ignore[attr-defined]
    assert "3 lost numbers are not drawn" in told
    heads.write_text("{}")
    assert main(["pipeline", "audit", "--log", filled, "--heads", str(heads)]) == 2
    assert "line 1" in capsys.readouterr().err


def test_an_audit_takes_nothing_for_lost_that_was_skipped_or_removed_on_purpose(
    filled: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers 31 to 34 of a/port are skipped by its publisher, some of b/port are gone, those of c/port are lost."""
    with contextlib.closing(durable_log.open(filled)) as log:
        log.append([log_frame("a/port", first=35, count=2, after=30), log_frame("c/port", first=34, count=1)])
        log.trim(durable_log.shard_of("b/port", log.shards), first_of(log, "b/port") + 10)
    heads = tmp_path / "heads.json"
    heads.write_text(json.dumps({"publisher": "ab" * 16, "topic": "excluded", "last": 33}))
    lake = str(tmp_path / "lake")
    run_json(capsys, "ingest", "--log", filled, "--lake", lake)
    command = ("--topics", "a/#", "b/#", "--heads", str(heads))
    (found,) = run_json(capsys, "audit", "--log", filled, *command)
    assert lost_and_not_kept(found) == {"a/port": (0, 4), "b/port": (0, 10)}
    monkeypatch.setattr("spark_pipeline.jobs.report.RANGES_MAX", 0)
    page = tmp_path / "audit.html"
    (found,) = run_json(capsys, "audit", "--lake", lake, "--html", str(page), code=1)
    assert lost_and_not_kept(found) == {"a/port": (0, 4), "b/port": (0, 10), "c/port": (3, 0)}
    assert (found["ranges"], found["cut"]) == ([], ["lost"])
    assert "Of what is lost, only the first 0 ranges are listed" in page.read_text()


def first_of(log: durable_log.LogApi, topic: str) -> int:
    """The offset of the first event of a topic."""
    stored = log.read(durable_log.shard_of(topic, log.shards), 0)
    return next(one.offset for one in stored if one.header().topic == topic)


def lost_and_not_kept(report: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {one["topic"]: (one["lost"], one["not_kept"]) for one in report["streams"]}


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
        common = ("replay", "--log", filled, "--bus", "memory://replay", "--speed", "0", "--prefix", "again")
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
    command = ("replay", "--log", filled, "--bus", "memory://replay-died", "--speed", "0")
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
