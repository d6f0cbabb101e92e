"""A sealed file that is damaged or gone does not end a log: it is given up when an operator says so, and the hole is
named from then on."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable

import pytest

import durable_log
from durable_log.loading import build_log
from durable_log.log_api import Segment
from durable_log.segments.compaction import SegmentCompactor
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.sources import Source, read_frames
from durable_log.upkeep.damaged_segments import give_up_damaged
from durable_log.upkeep.repairing import RepairReport, repair
from durable_log.upkeep.verifying import verify
from heliograph.main import main
from tests.helpers.logs import opened
from tests.helpers.servers import RedisServer
from tests.helpers.servers_db import PostgresServer

TOPIC = "t"
HOLE = "shard 0, offsets 50 to 100: damaged and given up"


def given_up(url: str) -> RepairReport:
    with contextlib.closing(build_log(url)) as log:
        assert isinstance(log, SegmentedLog)
        log.connect()
        report = repair(log)
        give_up_damaged(log, report)
        return report


def flip(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.chmod(0o600)
    path.write_bytes(content)


def offsets(log: SegmentedLog) -> list[tuple[int, int]]:
    return [(one.offset, one.end) for one in read_frames(log, 0)]


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def place(request: pytest.FixtureRequest, server: RedisServer, tmp_path: pathlib.Path) -> tuple[str, list[Segment]]:
    """The URL of a log with three segments and unsealed events, and its segments."""
    url = f"sqlite://{tmp_path}/log.db?shards=1&segment_directory={tmp_path}/s"
    if request.param == "redis":
        url = f"{server.address}?shards=1&segment_directory={tmp_path}/s"
        with server.client() as client:
            client.flushall()
    if request.param == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        url = f"{postgres.new_schema()}&shards=1&segment_directory={tmp_path}/s"
    source = Source()
    with opened(url) as log:
        for _ in range(3):
            log.append([source.frame(TOPIC, 50)])
            Sealer(log).seal(0)
        log.append([source.frame(TOPIC, 50)])
        return url, log.segments(0)


@pytest.mark.parametrize("damage", [flip, pathlib.Path.unlink])
def test_a_segment_that_is_damaged_or_gone_is_given_up_and_named(
    place: tuple[str, list[Segment]], damage: Callable[[pathlib.Path], None]
) -> None:
    url, segments = place
    path = pathlib.Path(segments[1].path)
    damage(path)
    was_there = path.exists()
    with opened(url) as log, pytest.raises(durable_log.LogCorrupt, match="offsets 50 to 100"):
        read_frames(log, 0)
    report = given_up(url)
    assert report.given_up == 50
    assert any("offsets 50 to 100" in note for note in report.notes)
    assert not path.exists()
    assert path.with_name(f"{path.name}.damaged").exists() == was_there, "nothing is thrown away"
    with opened(url) as log:
        assert offsets(log) == [(0, 50), (100, 150), (150, 200)]
        assert [one.frame for one in log.read(0, 60)] == [read_frames(log, 0)[1].frame], "who stands in it goes on"
        found = verify(log)
        assert found.problems == []
        assert [HOLE in one for one in found.given_up] == [True]
        log.append([Source().frame(TOPIC, 50)])
        Sealer(log).seal(0)
        Sealer(log).clean()
        assert [one.lost for one in log.segments(0)] == ["", "50-100", "", ""]
        assert log.find(0, 0) == 0
        assert log.trim(0, 120) == 100, "retention takes the hole like any other segment"
        assert verify(log).given_up == []
    assert given_up(url).given_up == 0


def test_compaction_and_a_manifest_made_anew_know_the_hole(tmp_path: pathlib.Path) -> None:
    url, source = f"sqlite://{tmp_path}/log.db?shards=1&compact_topics={TOPIC}", Source()
    with opened(url) as log:
        for _ in range(3):
            log.append([source.frame(TOPIC, 50)])
            Sealer(log).seal(0)
        flip(pathlib.Path(log.segments(0)[1].path))
    given_up(url)
    with opened(url) as log:
        SegmentCompactor(log, Sealer(log)).compact(0, log.now_ns())
        assert [one.lost for one in log.segments(0)] == ["", "50-100", ""]
    (tmp_path / "log.db").unlink()
    with contextlib.closing(build_log(url)) as log:
        assert isinstance(log, SegmentedLog)
        log.connect()
        repair(log)
        assert [one.lost for one in log.segments(0)] == ["", "50-100", ""]


def test_the_command_says_what_was_given_up(
    place: tuple[str, list[Segment]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, segments = place
    flip(pathlib.Path(segments[1].path))
    assert main(["log", "verify", "--log", url]) == 1
    assert "--give-up-damaged" in capsys.readouterr().out.replace("\n", "")
    assert main(["log", "repair", "--log", url, "--give-up-damaged"]) == 0
    assert "gave up 50 offsets that were damaged" in capsys.readouterr().out
    assert main(["log", "verify", "--log", url]) == 0
    assert HOLE in capsys.readouterr().out
