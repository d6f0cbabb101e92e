"""The small parts around the core: recording frames, ranges that are durable, options, tracing, the benchmark."""

from __future__ import annotations

import json
import pathlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bench.plan import Plan
from bench.scenarios import SCENARIOS
from durability_service import config
from durability_service.core import messages
from durability_service.core.alignment.merging import MergePolicy
from durability_service.core.effects import Level, Trace
from durability_service.core.namespaces import Alignee, Kind
from durability_service.core.sets.sample_set import SampleSet
from durability_service.serving.durable_ranges import DurableRanges
from durability_service.serving.sampling import SampleRecorder, event_of
from durability_service.serving.tracing import Tracer
from durable_log.core.holes import Holes
from pubsub_api.config import new_conf
from pubsub_api.core import frame as frames
from pubsub_api.core.events import Event, decode_events, encode_event, pack_body
from pubsub_api.core.frame import Kind as FrameKind
from pubsub_api.core.receiving.instream import Delivery
from pubsub_api.core.receiving.resync_requests import LostRange
from pubsub_api.errors import InvalidConfig, UndecodableBody

GUID = b"g" * 16
STREAM = (GUID, "a")
BYTES_MAX = 1 << 20


def delivery(
    events: Sequence[Event],
    *,
    first: int = 1,
    already: int = 0,
    body: bytes | None = None,
    stamp: Callable[[int], int] = lambda number: 1000 + number,
) -> Delivery:
    body = pack_body([encode_event(one, stamp(first + at)) for at, one in enumerate(events)]) if body is None else body
    frame = frames.pack(FrameKind.DATA, GUID, "a", body, first=first, after=first - 1, count=len(events))
    return frame, frames.unpack(frame, bytes_max=1 << 20), already


def event(key: str, value: Any) -> Event:
    return Event(topic="a", table="t", key=key, action="set", value=value)


# -- recording


def test_a_sample_gives_the_event_back() -> None:
    one = delivery([event("k", {"deep": [1, None, b"x"]})])
    recorder = SampleRecorder(lambda _topic: 1, BYTES_MAX)
    recorder.add([one])
    (sample,) = recorder.take().samples
    assert [event_of(sample)] == decode_events(one[0], one[1])
    assert (sample.writer, sample.number) == (GUID, 1)
    assert recorder.take() == ([], [])


def test_what_was_delivered_before_is_left_out() -> None:
    recorder = SampleRecorder(lambda _topic: 5, BYTES_MAX)
    recorder.add([delivery([event("k", 1), event("k", 2), event("l", 3)], first=7, already=1)])
    samples, ranges = recorder.take()
    assert [(one.number, event_of(one).value) for one in samples] == [(8, 2), (9, 3)]
    assert ranges == [(GUID, "a", 8, 9)]


def test_a_recorder_says_when_it_has_enough_and_what_newer_events_replaced() -> None:
    frames_of_k = [delivery([event("k", number)], first=number) for number in range(1, 5)]
    recorder = SampleRecorder(lambda _topic: 1, bytes_max=sum(len(frame) for frame, _, _ in frames_of_k))
    recorder.add(frames_of_k[:3])
    assert not recorder.is_full
    recorder.add(frames_of_k[3:])
    assert recorder.is_full
    assert recorder.replaced == 3
    samples, ranges = recorder.take()
    assert [event_of(one).value for one in samples] == [4]
    assert ranges == [(GUID, "a", number, number) for number in range(1, 5)]
    assert not recorder.is_full


@pytest.mark.parametrize("is_in_order", [True, False])
@pytest.mark.parametrize("depth", [1, 2])
def test_frames_that_come_together_make_the_set_that_they_make_one_by_one(depth: int, is_in_order: bool) -> None:
    chance = random.Random(5)
    clock = (lambda number: number // 2) if is_in_order else (lambda _number: chance.randrange(9))
    deliveries, number = [], 1
    for _ in range(20):
        events = [event(f"k{chance.randrange(4)}", chance.random()) for _ in range(3)]
        deliveries.append(delivery(events, first=number, stamp=clock))
        number += 3
    together, one_by_one = (SampleSet(8, lambda _topic: depth) for _ in range(2))
    recorder = SampleRecorder(lambda _topic: depth, BYTES_MAX)
    recorder.add(deliveries)
    for sample in recorder.take().samples:
        together.add(sample)
    for one in deliveries:
        recorder.add([one])
        for sample in recorder.take().samples:
            one_by_one.add(sample)
    assert together.digest == one_by_one.digest


def test_a_frame_that_cannot_be_read_is_refused_as_a_whole() -> None:
    recorder = SampleRecorder(lambda _topic: 1, BYTES_MAX)
    unreadable = delivery([event("k", 1)], body=b"\x91\x93\x01\x02\x03")
    recorder.add([unreadable, delivery([event("k", 2)], first=2)])
    samples, ranges = recorder.take()
    assert [one.number for one in samples] == [2]
    assert ranges == [(GUID, "a", 2, 2)]
    assert recorder.undecodable == 1


# -- ranges


def test_ranges_join_and_answer_exactly() -> None:
    chance = random.Random(3)
    for _ in range(200):
        ranges, known = DurableRanges(10), set()
        for _ in range(12):
            first = chance.randrange(1, 30)
            last = first + chance.randrange(5)
            ranges.add(STREAM, first, last)
            known.update(range(first, last + 1))
        for first in range(1, 35):
            for last in range(first, 35):
                assert ranges.has(STREAM, first, last) == (set(range(first, last + 1)) <= known)


def test_what_is_missing_of_a_range_is_the_rest_of_it() -> None:
    chance = random.Random(4)
    for _ in range(200):
        ranges, known = DurableRanges(10), set()
        for _ in range(chance.randrange(6)):
            first = chance.randrange(1, 30)
            last = first + chance.randrange(5)
            ranges.add(STREAM, first, last)
            known.update(range(first, last + 1))
        first = chance.randrange(1, 35)
        last = first + chance.randrange(20)
        missing = [number for low, high in ranges.missing(STREAM, first, last) for number in range(low, high + 1)]
        assert missing == [number for number in range(first, last + 1) if number not in known]


def lost(first: int, last: int) -> LostRange:
    return LostRange("host", GUID.hex(), "a", first, last)


def test_a_missing_range_is_asked_for_until_it_is_durable() -> None:
    ranges = DurableRanges(10)
    missing = Holes(ranges_max=10, interval_s=2.0, attempts_max=9)
    missing.add([lost(3, 9)], 100.0)
    missing.add([lost(3, 9)], 100.0)
    assert missing.take_due(ranges.missing_of, 100.0) == [lost(3, 9)]
    assert missing.next_deadline() == 102.0
    assert missing.take_due(ranges.missing_of, 101.0) == []
    ranges.add(STREAM, 5, 6)
    assert missing.take_due(ranges.missing_of, 102.0) == [lost(3, 4), lost(7, 9)]
    assert missing.next_deadline() == 106.0
    ranges.add(STREAM, 1, 9)
    assert missing.take_due(ranges.missing_of, 106.0) == []
    assert (len(missing), missing.recovered_ranges, missing.forgotten_ranges) == (0, 1, 0)
    assert missing.next_deadline() == float("inf")


def test_a_range_that_nobody_has_is_forgotten_and_so_is_the_oldest_of_too_many() -> None:
    nothing = DurableRanges(10)
    missing = Holes(ranges_max=2, interval_s=2.0, attempts_max=4)
    missing.add([lost(1, 1), lost(3, 3), lost(5, 5)], 0.0)
    asked, now = [], 0.0
    while missing:
        asked.append(missing.take_due(nothing.missing_of, now))
        now = missing.next_deadline()
    assert asked == [[lost(3, 3), lost(5, 5)]] * 4 + [[]]
    assert (missing.recovered_ranges, missing.forgotten_ranges) == (0, 3)
    never = Holes(ranges_max=0, interval_s=2.0, attempts_max=4)
    never.add([lost(1, 1)], 0.0)
    assert never.take_due(nothing.missing_of, 0.0) == []


def test_the_stream_touched_longest_ago_is_forgotten() -> None:
    ranges = DurableRanges(2)
    for topic in ("a", "b", "a", "c"):
        ranges.add((GUID, topic), 1, 1)
    assert [ranges.has((GUID, topic), 1, 1) for topic in ("a", "b", "c")] == [True, False, True]
    assert ranges.forgotten == 1


# -- options


def conf_of(tmp_path: pathlib.Path, text: str) -> Any:
    file = tmp_path / "heliograph.conf"
    file.write_text(text)
    conf = new_conf([file])
    config.register(conf)
    return conf


def test_name_spaces_and_policies_come_from_their_groups(tmp_path: pathlib.Path) -> None:
    text = """
[durability]
store = somewhere
name_spaces = orders, rest
policies = first, second
kinds = a/memory=TRANSIENT, b/#=VOLATILE
depths = a/+=3
lifespans = a/+=1.5, b/#=0, #=60
[durability_name_space:orders]
topics = a/#, b/#
[durability_name_space:rest]
topics = c
[durability_policy:first]
name_space = ord*
alignee = LAZY
master_priority = 7
merge = leaf-*:CATCHUP, @same:DELETE
[durability_policy:second]
durability = TRANSIENT
"""
    settings = config.service_settings(conf_of(tmp_path, text), node="n", incarnation=3)
    assert [(one.name, sorted(one.filters)) for one in settings.name_spaces] == [
        ("orders", ["a/#", "b/#"]),
        ("rest", ["c"]),
    ]
    first, second = settings.policies
    assert (first.alignee, first.master_priority) == (Alignee.LAZY, 7)
    assert first.merge_for("leaf-3", "branch") is MergePolicy.CATCHUP
    assert first.merge_for("branch", "branch") is MergePolicy.DELETE
    assert (first.durability, second.durability) == (Kind.PERSISTENT, Kind.TRANSIENT)
    assert settings.rules.kind_of("a/memory") is Kind.TRANSIENT
    assert settings.rules.kind_of("c") is Kind.PERSISTENT
    assert (settings.rules.depth_of("a/x"), settings.rules.depth_of("c")) == (3, 1)
    assert [settings.rules.lifespan_ns_of(topic) for topic in ("a/x", "b/x", "c")] == [1_500_000_000, 0, 60 * 10**9]


def test_without_a_store_nothing_is_persistent(tmp_path: pathlib.Path) -> None:
    settings = config.service_settings(conf_of(tmp_path, "[durability]\n"), node="n", incarnation=1)
    assert settings.policies[0].durability is Kind.TRANSIENT


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[durability]\nkinds = a/#\n", "is not FILTER=VALUE"),
        ("[durability]\nkinds = a/#=ETERNAL\n", "'ETERNAL' is none of VOLATILE"),
        ("[durability]\ndepths = a=0\n", "'0' is not a number"),
        ("[durability]\nlifespans = a=soon\n", "'soon' is not a number of seconds"),
        ("[durability]\nlifespans = a=-1\n", "'-1' is not a number of seconds"),
        ("[durability]\ndomain = a/b\n", "more than one level"),
        ("[durability_policy:default]\nmerge = MERGE\n", "is not SCOPE:POLICY"),
        ("[durability]\nname_spaces = all, b\n[durability_name_space:b]\ntopics = x\n", "has topics in common"),
        ("[durability_name_space:all]\ntopics = a/#/b\n", "must stand alone"),
        ("[durability]\nexpiry_time = 0\n", "expiry_time"),
        ("[durability]\nstor = /tmp/x\n", "is store meant"),
        ("[durability_policy:default]\nmaster_prioritty = 1\n", "is master_priority meant"),
        ("[durability]\npolicies = dedicatd\n[durability_policy:dedicated]\naligner = false\n", "is dedicated meant"),
        ("[durability]\nname_spaces = ordrs\n[durability_name_space:orders]\ntopics = o/#\n", "is orders meant"),
        ("[durability]\nname_spaces = orders\n", "'orders' is described nowhere"),
    ],
)
def test_options_that_cannot_be_used_are_refused(tmp_path: pathlib.Path, text: str, reason: str) -> None:
    def use() -> None:
        conf = conf_of(tmp_path, text)
        config.control_topics(conf)
        config.service_settings(conf, node="n", incarnation=1)

    with pytest.raises(InvalidConfig, match=reason):
        use()


def test_a_policy_that_is_described_and_not_used_is_warned_of(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    conf_of(tmp_path, "[durability_policy:dedicated]\naligner = false\n")
    assert "durability_policy:dedicated" in caplog.text
    assert "has no effect" in caplog.text


# -- messages and tracing


@pytest.mark.parametrize("garbage", [b"", b"\x00", b"\x81\xa4type\xa3xyz", b"\xc1" * 50, bytes(range(256))])
def test_garbage_is_one_typed_error(garbage: bytes) -> None:
    with pytest.raises(UndecodableBody):
        messages.decode(garbage)


def test_a_trace_has_its_level_and_nothing_below(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "trace.json"
    tracer = Tracer(Level.INFO, str(path), "n1")
    tracer.write(Trace(Level.INFO, "complete", {"name_space": "all"}))
    tracer.write(Trace(Level.FINE, "aligning", {}))
    tracer.close()
    (line,) = [json.loads(text) for text in path.read_text().splitlines()]
    assert (line["level"], line["node"], line["what"], line["name_space"]) == ("INFO", "n1", "complete", "all")
    silent = Tracer(Level.NONE, str(path), "n1")
    silent.write(Trace(Level.SEVERE, "trouble", {}))
    silent.close()
    assert len(path.read_text().splitlines()) == 1


# -- the benchmark


def test_the_service_is_measured_at_any_size() -> None:
    outcome = SCENARIOS["durability"](Plan(512, 1, True, lambda _: None), "zmq")
    assert {row["case"] for row in outcome.rows} >= {"append, service", "append, log", "align", "read, log"}
    measured = {check.target.name: check.measured for check in outcome.checks}
    assert measured["equal"] == 0
    assert len(measured) == 5
