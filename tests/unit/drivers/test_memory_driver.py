"""The memory driver: what the conformance suite does not ask, above all its faults and its bounds."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator, Sequence

import pytest

from pubsub_api import loading
from pubsub_api.core.frame import Kind
from pubsub_api.driver import Connected, Disconnected, PubSubApi
from pubsub_api.errors import InvalidConfig, LimitReached, TransportUnavailable, UsageError
from pubsub_api.testing.conformance.forks import in_forked_child
from pubsub_api.testing.conformance.stage import Stage
from pubsub_api.testing.faulty import memory_bus
from pubsub_api.testing.frames import Frames
from pubsub_api.testing.receivers import RecordingReceiver, eventually

NAME = "unit"
URL = f"memory://{NAME}"


def make_driver(url: str = URL) -> PubSubApi:
    return loading.build_driver(loading.conf_from_url(url))


@contextlib.contextmanager
def staged(driver: PubSubApi | None = None) -> Iterator[Stage]:
    stage = Stage(driver or make_driver(), make_driver, URL)
    try:
        yield stage
    finally:
        stage.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    with staged() as stage:
        yield stage


class BlockedReceiver(RecordingReceiver):
    """Stands still in the callback until told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.is_blocked = threading.Event()
        self.may_go_on = threading.Event()

    def on_frames(self, frames: Sequence[bytes]) -> None:
        super().on_frames(frames)
        self.is_blocked.set()
        assert self.may_go_on.wait(60)


def test_buses_of_different_names_do_not_hear_each_other(stage: Stage) -> None:
    other = make_driver("memory://other")
    here, there = stage.publisher(), stage.publisher(other)
    listener = stage.unstarted_subscriber("t")
    listener.listen_to([URL])
    listener.start()
    there.send("t")
    frame = here.send("t")
    assert listener.heard.wait_frames(1) == [frame]


def test_a_subscriber_may_listen_to_several_buses(stage: Stage) -> None:
    speakers = [stage.publisher(), stage.publisher(make_driver("memory://other"))]
    listener = stage.unstarted_subscriber("t")
    listener.listen_to([URL, "memory://other"])
    listener.start()
    for speaker in speakers:
        listener.heard.wait_frame(speaker.send("t"))
    memory_bus("other").disconnect()
    listener.heard.wait_link(Disconnected("memory://other", ""))
    listener.heard.wait_frame(speakers[0].send("t"))
    assert listener.heard.count_links(Disconnected(URL, "")) == 0


def test_a_bus_ends_with_its_last_holder() -> None:
    with staged() as stage:
        stage.publisher()
        stage.subscriber("t")
        bus = memory_bus(NAME)
        bus.faults.set(drop=0.5)
        assert (bus.statistics().publishers, bus.statistics().subscribers) == (1, 1)
        watched = weakref.ref(bus)
        del bus
        gc.collect()
        assert watched() is not None
    gc.collect()
    assert watched() is None
    assert memory_bus(NAME).faults.settings.is_quiet


def test_a_full_queue_drops_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph_drivers.pubsub.memory.bus.QUEUE_BYTES_MAX", 64 * 1024)
    with staged(make_driver()) as stage:
        speaker = stage.publisher()
        receiver = BlockedReceiver()
        listener = stage.unstarted_subscriber("t", receiver=receiver)
        listener.listen_to([URL])
        listener.start()
        first = speaker.send("t")
        assert receiver.is_blocked.wait(60)
        sent = [speaker.send("t", 1000) for _ in range(100)]
        overflowed = memory_bus(NAME).statistics().overflowed
        receiver.may_go_on.set()
        kept = receiver.wait_frames(1 + 100 - overflowed)
        assert 0 < overflowed < 100
        assert listener.api.counters == {"frames_dropped": overflowed}
        assert kept == [first, *sent[: 100 - overflowed]]
        receiver.wait_frame(speaker.send("t"))


def test_a_frame_that_can_never_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph_drivers.pubsub.memory.bus.QUEUE_BYTES_MAX", 64 * 1024)
    with staged(make_driver()) as stage:
        speaker = stage.publisher()
        listener = stage.subscriber("t")
        limit = stage.capabilities.frame_bytes_max
        largest = speaker.frames.data("t").ljust(limit, b"x")
        speaker.send_frame("t", largest)
        listener.heard.wait_frame(largest)
        with pytest.raises(LimitReached, match="does not fit"):
            speaker.api.send("t", largest + b"x")


def test_a_disconnected_bus_is_reported_at_both_ends(stage: Stage) -> None:
    speaker = stage.publisher()
    speaker.api.serve(speaker.echo())
    listener = stage.subscriber("t")
    bus = memory_bus(NAME)
    for times in (1, 2):
        bus.disconnect()
        listener.heard.wait_link(Disconnected(URL, ""), count=times)
        with pytest.raises(TransportUnavailable):
            speaker.api.send("t", speaker.frames.data("t"))
        with pytest.raises(TransportUnavailable):
            listener.ask()
        listener.api.register_topic(f"meanwhile/{times}")
        bus.reconnect()
        listener.heard.wait_connected(URL, count=1 + times)
        listener.heard.wait_frame(speaker.send(f"meanwhile/{times}"))
        listener.wait_answers(listener.ask(), 1)
    kinds = [Connected, Disconnected, Connected, Disconnected, Connected]
    assert [type(report) for report in listener.heard.links] == kinds
    assert [type(report) for report in speaker.reports.links] == kinds


def test_who_joins_a_disconnected_bus_is_connected_later(stage: Stage) -> None:
    bus = memory_bus(NAME)
    bus.disconnect()
    speaker = stage.unopened_publisher()
    speaker.api.initialize(speaker.reports.on_link)
    listener = stage.unstarted_subscriber("t")
    listener.api.register_listen_address(URL)
    listener.api.daemonize()
    assert speaker.reports.links == []
    bus.reconnect()
    listener.heard.wait_connected(URL)
    assert listener.heard.links == speaker.reports.links == [Connected(URL)]
    listener.heard.wait_frame(speaker.send("t"))


def test_a_partition_is_silent(stage: Stage) -> None:
    speaker = stage.publisher()
    listener = stage.subscriber("t")
    bus = memory_bus(NAME)
    bus.faults.partition(True)
    lost = [speaker.send("t") for _ in range(10)]
    bus.faults.partition(False)
    listener.heard.wait_frame(speaker.send("t"))
    assert not set(lost) & set(listener.heard.frames)
    assert bus.faults.counts().cut == 10
    assert listener.heard.links == [Connected(URL)]


def test_a_frozen_bus_lets_go_in_order(stage: Stage) -> None:
    speaker = stage.publisher()
    listener = stage.subscriber("t", "u")
    bus = memory_bus(NAME)
    bus.freeze()
    sent = [speaker.send("t") for _ in range(50)]
    assert listener.heard.frames == []
    bus.thaw()
    assert listener.heard.wait_frames(50) == sent


def test_drop_duplicate_reorder_and_delay_happen_and_are_counted(stage: Stage) -> None:
    speaker = stage.publisher()
    listener = stage.subscriber("t")
    bus = memory_bus(NAME)
    bus.faults.set(drop=0.2, duplicate=0.2, reorder=0.2, delay=0.2, delay_s_max=0.01)
    sent = [speaker.send("t") for _ in range(500)]
    bus.faults.heal()
    listener.heard.wait_until(
        lambda: len(listener.heard.frames) == 500 + bus.faults.counts().duplicated - bus.faults.counts().dropped,
        "all frames that were not dropped",
    )
    counts = bus.faults.counts()
    assert min(counts.dropped, counts.duplicated, counts.reordered, counts.delayed) > 0
    assert set(listener.heard.frames) <= set(sent)
    assert len(set(listener.heard.frames)) == 500 - counts.dropped


def test_the_same_seed_loses_the_same_frames() -> None:
    def numbers_heard() -> list[int]:
        with staged() as stage:
            speaker = stage.publisher()
            listener = stage.subscriber("t")
            faults = memory_bus(NAME).faults
            faults.set(drop=0.3)
            sent = [speaker.send("t") for _ in range(200)]
            listener.heard.wait_frames(200 - faults.counts().dropped)
            return [sent.index(frame) for frame in listener.heard.frames]

    assert numbers_heard() == numbers_heard()


def test_each_subscriber_has_a_line_of_its_own(stage: Stage) -> None:
    speaker = stage.publisher()
    listeners = [stage.subscriber("t") for _ in range(2)]
    faults = memory_bus(NAME).faults
    faults.set(drop=0.5)
    for _ in range(200):
        speaker.send("t")
    faults.heal()
    sentinel = speaker.send("t")
    for listener in listeners:
        listener.heard.wait_frame(sentinel)
    assert listeners[0].heard.frames != listeners[1].heard.frames


def test_queries_and_replies_can_be_lost_and_late(stage: Stage) -> None:
    speaker = stage.publisher()
    speaker.api.serve(speaker.echo())
    listener = stage.subscriber("t")
    faults = memory_bus(NAME).faults
    for times, kind in enumerate((Kind.QUERY, Kind.REPLY), 1):
        faults.set(drop=1.0, kinds={kind})
        lost = listener.ask()
        eventually(lambda: faults.counts().dropped == times, f"the loss of a {kind.name}")  # noqa: B023
        faults.set(drop=0.0, delay=1.0, delay_s_min=0.01, delay_s_max=0.01)
        listener.wait_answers(listener.ask(), 1)
        assert listener.answers(lost) == []
        faults.heal()
        assert faults.counts().delayed == times


def test_a_query_says_how_many_will_answer(stage: Stage) -> None:
    for _ in range(3):
        speaker = stage.publisher()
        speaker.api.serve(speaker.echo())
    stage.publisher()
    listener = stage.subscriber("t")
    number, query = listener.new_query()
    assert listener.api.query(query) == 3
    assert len(listener.wait_answers(number, 3)) == 3


def test_the_number_of_buses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [memory_bus(f"bound-{number}") for number in range(3)]
    monkeypatch.setattr("heliograph_drivers.pubsub.memory.bus.BUSES_MAX", len(held))
    with staged(make_driver("memory://one-too-many")) as stage:
        publisher = stage.unopened_publisher()
        with pytest.raises(LimitReached, match="a process may have"):
            publisher.api.initialize(publisher.reports.on_link)


def test_the_number_of_ends_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph_drivers.pubsub.memory.bus.ENDPOINTS_MAX", 2)
    with staged(make_driver()) as stage:
        stage.publisher()
        listener = stage.subscriber("t")
        publisher = stage.unopened_publisher()
        with pytest.raises(LimitReached, match="open ends"):
            publisher.api.initialize(publisher.reports.on_link)
        listener.api.close()
        publisher.api.initialize(publisher.reports.on_link)


def test_a_forked_child_starts_without_buses(stage: Stage) -> None:
    stage.publisher()
    bus = memory_bus(NAME)
    bus.faults.set(drop=1.0)

    def look() -> str:
        fresh = memory_bus(NAME)
        return f"{fresh is bus} {fresh.faults.settings.drop} {fresh.statistics().publishers}"

    assert in_forked_child(look) == "False 0.0 0"


@pytest.mark.parametrize("url", ["memory://a/b", "memory://a?x=1", "memory://u@a", "memory://a:1", "memory://a#f"])
def test_a_url_with_more_than_a_name_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfig):
        loading.conf_from_url(url)


def test_a_url_without_a_name_means_the_default_bus() -> None:
    assert make_driver("memory://").listen_addresses() == ["memory://default"]


def test_wrong_use_is_refused(stage: Stage) -> None:
    frame = Frames().data("t")
    publisher = stage.unopened_publisher()
    with pytest.raises(UsageError):
        publisher.api.send("t", frame)
    publisher.api.initialize(publisher.reports.on_link)
    with pytest.raises(UsageError):
        publisher.api.initialize(publisher.reports.on_link)
    publisher.api.serve(publisher.echo())
    with pytest.raises(UsageError):
        publisher.api.serve(publisher.echo())
    subscriber = stage.driver.get_subscriber()
    with pytest.raises(UsageError):
        subscriber.daemonize()
    with pytest.raises(TransportUnavailable):
        subscriber.query(frame)
    subscriber.close()
