"""``heliograph log export`` and ``import``: what comes back is what went out, byte for byte."""

from __future__ import annotations

import contextlib
import json
import pathlib
from typing import Any

import msgspec
import pyarrow
import pyarrow.parquet
import pytest

import durable_log
from durable_log.testing.sources import Source, read_frames
from heliograph import exits
from heliograph.main import main
from pubsub_api.core import frame as frames
from pubsub_api.core.events import Event, encode_event, pack_body
from pubsub_api.core.frame import Kind

VALUES: list[Any] = [
    2**53 + 1, 2**64 - 1, -(2**63), b"\x00\xff", {"nested": [b"bytes", {"n": 2**60}]}, {1: "a number is the key"},
    float("nan"), float("inf"), -0.0, 1e300, "\u2028 \u00e9 \U0001f600 \x00", None, [], {"z": 1, "a": 2},
]  # fmt: skip


def odd_frames() -> list[bytes]:
    """Values that JSON cannot hold, a signed frame, one that another program encoded, one that is no event, and one of
    which a part is known already."""
    events = [Event(topic="t/odd", table="x", key=f"k/{i}", action="set", value=value, version=2**62 + i)
              for i, value in enumerate(VALUES)]  # fmt: skip
    events[3].headers = {"trace": "1"}
    body = pack_body([encode_event(event, 2**60 + 1) for event in events])
    other = b"\x91" + msgspec.msgpack.encode(["x", "short", "set", msgspec.msgpack.Ext(5, b"ext")])
    guid, topic = bytes(range(16)), "t/odd"
    return [
        frames.pack(Kind.DATA, guid, topic, body, first=1, after=0, count=len(events), timestamp=7, key=b"k" * 32),
        frames.pack(Kind.DATA, guid, topic, other, first=40, after=30, count=1),
        frames.pack(Kind.DATA, guid, topic, b"\xdd\x00\x00\x00\x01\xc1", first=41, after=40, count=1),
        frames.pack(Kind.DATA, guid, "t/part", body, first=1, after=0, count=len(events)),
        frames.pack(Kind.DATA, guid, "t/part", body, first=len(events) - 2, after=len(events) - 3, count=len(events)),
    ]


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    """A log of which a part is sealed, with holes and a frame that is stored in part."""
    url, source = f"sqlite://{tmp_path}/log.db?shards=3", Source()
    with contextlib.closing(durable_log.open(url)) as log:
        log.append([*odd_frames(), *(source.frame(f"t/{number % 4}", 50) for number in range(40))])
    assert main(["log", "seal", "--log", url]) == exits.OK
    with contextlib.closing(durable_log.open(url)) as log:
        log.append([source.frame("t/1", 20), source.frame("u/5", 20)])
    return url


def content(url: str) -> list[list[tuple[int, int, int, bytes]]]:
    with contextlib.closing(durable_log.open(url, must_exist=True)) as log:
        return [[(one.offset, one.count, one.skipped, one.frame) for one in read_frames(log, shard)]
                for shard in range(log.shards)]  # fmt: skip


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["log", *arguments, "--json"]) == exits.OK
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_what_is_exported_comes_back_as_it_was(
    url: str, tmp_path: pathlib.Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file, copy = tmp_path / f"events.{suffix}", f"sqlite://{tmp_path}/copy.db?shards=3"
    total = len(VALUES) + 2 + 2 * len(VALUES) - 3 + 40 * 50 + 40
    exported = answer(capsys, "export", str(file), "--log", url)
    assert (exported["events"], exported["frames"], exported["bytes"]) == (total, 47, file.stat().st_size)

    tried = answer(capsys, "import", str(file), "--log", copy, "--dry-run")
    assert (tried["events"], tried["duplicates"]) == (total, 3)
    assert not (tmp_path / "copy.db").exists()

    imported = answer(capsys, "import", str(file), "--log", copy)
    assert (imported["events"], imported["duplicates"]) == (total, 3)
    assert content(copy) == content(url)

    for dry in (["--dry-run"], []):
        again = answer(capsys, "import", str(file), "--log", copy, *dry)
        assert (again["events"], again["duplicates"]) == (0, total + 3)
    assert main(["log", "verify", "--log", copy]) == exits.OK


def test_an_import_that_ended_half_way_is_completed_by_the_next(
    url: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, copy = tmp_path / "events.jsonl", f"sqlite://{tmp_path}/copy.db?shards=3"
    answer(capsys, "export", str(file), "--log", url)
    lines = file.read_bytes().splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if b'"frame_count"' in line]
    half = tmp_path / "half.jsonl"
    half.write_bytes(b"".join(lines[: starts[20]]))
    done = answer(capsys, "import", str(half), "--log", copy)["events"]
    assert 0 < done < len(lines)
    assert answer(capsys, "import", str(file), "--log", copy)["events"] == len(lines) - done
    assert content(copy) == content(url)


def test_some_topics_of_some_time_are_exported(
    url: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.jsonl"
    assert answer(capsys, "export", str(file), "u/#", "t/1", "--log", url, "--since", "1h")["events"] == 540
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["topic"] for row in rows} == {"u/5", "t/1"}
    assert rows[0]["value"] == {"n": rows[0]["seq"]}
    assert answer(capsys, "export", str(tmp_path / "none.parquet"), "--log", url, "--since", "0")["events"] == 0
    assert answer(capsys, "import", str(tmp_path / "none.parquet"), "--log", url)["frames"] == 0


def test_files_that_cannot_be_used_are_refused_and_nothing_is_left(
    url: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken, wrong = tmp_path / "taken.jsonl", tmp_path / "wrong.jsonl"
    taken.write_bytes(b"mine")
    before = content(url)
    for arguments, said in (
        (["export", str(taken)], "exists already"), (["export", str(tmp_path / "events.csv")], ".parquet"),
        (["import", str(tmp_path / "missing.jsonl")], "there is no file"),
        (["import", str(taken)], "line 1"), (["export", str(tmp_path / "no" / "x.jsonl")], "no"),
    ):  # fmt: skip
        assert main(["log", *arguments, "--log", url]) != exits.OK
        assert said in capsys.readouterr().err
    answer(capsys, "export", str(wrong), "--log", url)
    whole = wrong.read_bytes()
    for damage in (whole[:-5], whole[whole.index(b"\n") + 1 :], whole.replace(b'"seq":1,', b'"seq":"x",', 1)):
        wrong.write_bytes(damage)
        assert main(["log", "import", str(wrong), "--log", url]) == exits.USAGE
        assert "is not a sound file" in capsys.readouterr().err
    parquet = tmp_path / "cut.parquet"
    answer(capsys, "export", str(parquet), "--log", url)
    parquet.write_bytes(parquet.read_bytes()[:-20])
    assert main(["log", "import", str(parquet), "--log", url]) == exits.USAGE
    assert taken.read_bytes() == b"mine"
    assert content(url) == before
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_sealed_segment_can_be_imported(url: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(durable_log.open(url)) as log:
        segment = log.segments()[0]
    copy = f"sqlite://{tmp_path}/copy.db?shards=3"
    assert answer(capsys, "import", segment.path, "--log", copy)["events"] == segment.rows
    assert content(copy)[segment.shard] == [one for one in content(url)[segment.shard] if one[0] < segment.end]


def test_a_log_gets_more_shards_by_way_of_a_file(
    url: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, wider = tmp_path / "events.parquet", f"sqlite://{tmp_path}/wider.db?shards=8"
    answer(capsys, "export", str(file), "--log", url)
    answer(capsys, "import", str(file), "--log", wider)

    def by_topic(place: str) -> dict[str, list[tuple[int, int, bytes]]]:
        found: dict[str, list[tuple[int, int, bytes]]] = {}
        with contextlib.closing(durable_log.open(place)) as log:
            for shard in range(log.shards):
                for one in read_frames(log, shard):
                    found.setdefault(one.header().topic, []).append((one.count, one.skipped, one.frame))
        return found

    assert by_topic(wider) == by_topic(url)


def test_a_parquet_file_that_another_program_has_written_anew_is_imported(
    url: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, copy = tmp_path / "events.parquet", f"sqlite://{tmp_path}/copy.db?shards=3"
    answer(capsys, "export", str(file), "--log", url)
    table = pyarrow.parquet.read_table(file)
    large = {pyarrow.string(): pyarrow.large_string(), pyarrow.binary(): pyarrow.large_binary()}
    schema = pyarrow.schema([(one.name, large.get(one.type, one.type)) for one in table.schema])
    pyarrow.parquet.write_table(table.cast(schema), file, row_group_size=7)
    answer(capsys, "import", str(file), "--log", copy)
    assert content(copy) == content(url)
    pyarrow.parquet.write_table(table.slice(0, 0), file)
    assert answer(capsys, "import", str(file), "--log", copy)["events"] == 0


CHANGES: list[dict[str, Any]] = [
    {"value": 10**30}, {"seq": 10**30}, {"seq": -5}, {"seq": 7}, {"guid": "ab"}, {"topic": "a/#"}, {"topic": "other"},
]  # fmt: skip
CHANGES_OF_FIRST: list[dict[str, Any]] = [{"frame_flags": 70_000}, {"frame_after": None}, {"frame": "AAAA"}]


@pytest.mark.parametrize(
    ("row", "change"),
    [(row, change) for row in (0, 1) for change in [*CHANGES, *(CHANGES_OF_FIRST if not row else [])]],
)
def test_a_row_that_no_export_writes_is_refused(
    tmp_path: pathlib.Path, row: int, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    file, copy = tmp_path / "events.jsonl", f"sqlite://{tmp_path}/copy.db?shards=1"
    with contextlib.closing(durable_log.open(f"sqlite://{tmp_path}/log.db?shards=1")) as log:
        log.append([Source().frame("t", 3)])
    answer(capsys, "export", str(file), "--log", f"sqlite://{tmp_path}/log.db")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[row].update(change)
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    for dry in (["--dry-run"], []):
        assert main(["log", "import", str(file), "--log", copy, *dry]) == exits.USAGE
        assert "is not a sound file" in capsys.readouterr().err
