"""What an audit expects of a stream, from what logs and publishers know of it."""

from __future__ import annotations

import contextlib
import pathlib

import pytest

import durable_log
import pubsub_api
from heliograph import main
from pubsub_api.core import frame as frames
from pubsub_api.core.events import Event, encode_event, pack_body
from pubsub_api.core.frame import Kind
from pubsub_api.errors import UsageError
from spark_pipeline.jobs import stream_heads as heads
from spark_pipeline.jobs.stream_heads import Expected, StreamHead

PUBLISHER = "ab" * 16
STREAM = (PUBLISHER, "t")


def head(last: int, missing: tuple[heads.Range, ...] | None = None, first: int = 1, topic: str = "t") -> StreamHead:
    return StreamHead(PUBLISHER, topic, last, first, missing)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([head(9)], Expected(1, 9, None)),
        ([head(9, first=4)], Expected(4, 9, None)),
        ([head(9, ())], Expected(1, 9, ())),
        ([head(9, ((2, 3),))], Expected(1, 9, ((2, 3),))),
        ([head(9, ((2, 3),)), head(12)], Expected(1, 12, ((2, 3), (10, 12)))),
        ([head(9, ((2, 4),)), head(8, first=3)], Expected(3, 9, ((3, 4),))),
        ([head(9, ((2, 3), (6, 8))), head(20, ((1, 7), (12, 13)))], Expected(1, 20, ((2, 3), (6, 7), (12, 13)))),
    ],
)
def test_what_several_sources_know_comes_to_this(known: list[StreamHead], expected: Expected) -> None:
    assert heads.expect([[one] for one in known], ["#"]) == {STREAM: expected}


def test_topics_that_are_not_audited_are_not_expected() -> None:
    known = [head(9), head(9, topic="u/x")]
    assert heads.expect([known], ["u/#"]).keys() == {(PUBLISHER, "u/x")}


def test_heads_survive_a_file_and_nonsense_is_refused_by_its_line(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "heads.json"
    known = [head(9), head(7, ((1, 2),), topic="u")]
    heads.write(file, known)
    assert heads.read(file) == known
    file.write_text(file.read_text() + "{}\n")
    with pytest.raises(UsageError, match="line 3"):
        heads.read(file)


def test_what_a_log_knows_is_kept_beside_a_table_also_when_the_log_forgets_it(tmp_path: pathlib.Path) -> None:
    body = pack_body([encode_event(Event(table="port", key="p", action="set"), 1)] * 2)
    guid = bytes.fromhex(PUBLISHER)
    with contextlib.closing(durable_log.open(f"sqlite://{tmp_path}/log.db?shards=1")) as log:
        log.append([frames.pack(Kind.DATA, guid, "t", body, first=5, after=3, count=2, timestamp=1)])
        forgotten = head(3, (), topic="forgotten")
        heads.write(tmp_path / f"_heads-{log.identity}.jsonl", [forgotten])
        heads.note_beside(tmp_path, log)
    assert heads.beside(tmp_path) == [[forgotten, head(6, ((1, 3),))]], "4 was skipped on purpose"
    out = tmp_path / "heads.json"
    assert main.main(["pipeline", "heads", "--log", f"sqlite://{tmp_path}/log.db", "--out", str(out)]) == 0
    assert heads.read(out) == [head(6, ((1, 3),))]


def test_publishers_are_asked_for_their_heads(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "heads.json"
    with pubsub_api.open("memory://heads") as session, session.publisher() as publisher:
        for topic in ("a/port", "a/port", "b/port"):
            publisher.send_event(Event(topic=topic, table="port", key="p", action="set"))
        publisher.flush()
        command = ["pipeline", "heads", "--bus", "memory://heads", "--topics", "a/#", "--out", str(out)]
        assert main.main(command) == 0
        assert heads.read(out) == [StreamHead(publisher.guid.hex(), "a/port", 2)]
