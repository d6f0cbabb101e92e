"""Any driver on a bad line: the wrapper injects faults between the driver and the receiver."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import pytest

from pubsub_api import loading
from pubsub_api.core.frame import Kind
from pubsub_api.driver import Connected, Disconnected, PubSubApi, Subscribed
from pubsub_api.errors import TransportUnavailable, UsageError
from pubsub_api.testing.conformance.stage import Stage
from pubsub_api.testing.faults import Faults
from pubsub_api.testing.faulty import FaultyPubSub, memory_bus
from pubsub_api.testing.receivers import RecordingReceiver, eventually

URL = "memory://faulty"


def make_driver(url: str = URL) -> PubSubApi:
    return loading.build_driver(loading.conf_from_url(url))


@pytest.fixture
def faults() -> Faults:
    return Faults(seed=3)


@pytest.fixture
def stage(faults: Faults) -> Iterator[Stage]:
    stage = Stage(FaultyPubSub(make_driver(), faults), make_driver, URL)
    try:
        yield stage
    finally:
        stage.close()


def test_the_wrapper_is_not_configured_by_url() -> None:
    with pytest.raises(UsageError):
        FaultyPubSub.configure_from_url(loading.conf_from_url(URL), urlsplit(URL))


def test_frames_are_lost_before_the_receiver_sees_them(stage: Stage, faults: Faults) -> None:
    speaker = stage.publisher()
    listener = stage.subscriber("t")
    faults.set(drop=0.5)
    sent = [speaker.send("t") for _ in range(200)]
    eventually(lambda: faults.counts().dropped + faults.counts().passed == 200, "every frame is judged")
    faults.heal()
    sentinel = speaker.send("t")
    listener.heard.wait_frame(sentinel)
    assert [frame for frame in sent if frame in listener.heard.frames] == listener.heard.frames[:-1]
    assert len(listener.heard.frames) == 201 - faults.counts().dropped
    assert 0 < faults.counts().dropped < 200


def test_only_some_kinds_may_suffer(stage: Stage, faults: Faults) -> None:
    speaker = stage.publisher()
    speaker.api.serve(speaker.echo())
    listener = stage.subscriber("t")
    faults.set(drop=1.0, kinds={Kind.DATA})
    speaker.send("t")
    listener.wait_answers(listener.ask(), 1)
    assert faults.counts().dropped == 1
    faults.set(kinds={Kind.REPLY})
    lost = listener.ask()
    eventually(lambda: faults.counts().dropped == 2, "the loss of the reply")
    listener.heard.wait_frame(speaker.send("t"))
    assert listener.answers(lost) == []


def test_queries_are_lost_repeated_and_late(stage: Stage, faults: Faults) -> None:
    speaker = stage.publisher()
    speaker.api.serve(speaker.echo())
    listener = stage.subscriber("t")
    number, query = listener.new_query()
    assert listener.api.query(query) == 1
    listener.wait_answers(number, 1)
    faults.set(drop=1.0, kinds={Kind.QUERY})
    assert listener.api.query(query) is None
    faults.set(drop=0.0, duplicate=1.0)
    listener.wait_answers(listener.ask(), 2)
    faults.set(duplicate=0.0, delay=1.0, delay_s_min=0.01, delay_s_max=0.01)
    late, query = listener.new_query()
    assert listener.api.query(query) is None
    listener.wait_answers(late, 1)
    assert len(listener.answers(number)) == 1


def test_delayed_and_reordered_frames_all_arrive(stage: Stage, faults: Faults) -> None:
    speaker = stage.publisher()
    listener = stage.subscriber("t")
    faults.set(delay=0.3, reorder=0.3, duplicate=0.1, delay_s_max=0.02)
    sent = [speaker.send("t") for _ in range(300)]
    for frame in sent:
        listener.heard.wait_frame(frame)
    assert list(dict.fromkeys(listener.heard.frames)) != sent
    counts = faults.counts()
    assert min(counts.delayed, counts.reordered, counts.duplicated) > 0


def test_a_frozen_line_lets_go_without_new_traffic(stage: Stage, faults: Faults) -> None:
    speaker = stage.publisher()
    listener = stage.subscriber("t")
    faults.freeze()
    sent = [speaker.send("t") for _ in range(20)]
    eventually(lambda: faults.counts().frozen == 20, "all frames are held")
    assert listener.heard.frames == []
    faults.thaw()
    assert listener.heard.wait_frames(20) == sent


def test_a_disconnect_is_reported_and_ends(stage: Stage, faults: Faults) -> None:
    speaker = stage.publisher()
    listener = stage.subscriber("t")
    for times in (1, 2):
        faults.disconnect()
        listener.heard.wait_link(Disconnected(URL, ""), count=times)
        with pytest.raises(TransportUnavailable):
            listener.ask()
        cut = faults.counts().cut
        speaker.send("t")
        eventually(lambda: faults.counts().cut == cut + 1, "the loss of the frame")  # noqa: B023
        faults.reconnect()
        listener.heard.wait_connected(URL, count=1 + times)
        listener.heard.wait_frame(speaker.send("t"))
    assert len(listener.heard.frames) == 2


def test_reports_of_the_driver_wait_while_the_line_is_down(stage: Stage, faults: Faults) -> None:
    speaker = stage.publisher()
    listener = stage.subscriber("t")
    faults.disconnect()
    listener.heard.wait_link(Disconnected(URL, ""))
    bus = memory_bus("faulty")
    bus.disconnect()
    listener.api.register_topic("meanwhile")
    bus.reconnect()
    speaker.send("t")
    eventually(lambda: faults.counts().cut == 1, "the wrapper has got all reports, and the frame behind them")
    faults.reconnect()
    listener.heard.wait_connected(URL, count=2)
    listener.heard.wait_frame(speaker.send("meanwhile"))
    listener.add_topic("later")
    assert listener.heard.links == [
        Connected(URL),
        Disconnected(URL, "disconnected by a fault"),
        Connected(URL),
        Subscribed(URL, "later"),
    ]


def test_what_is_no_frame_is_cut_with_the_line(stage: Stage, faults: Faults) -> None:
    receiver = RecordingReceiver()
    subscriber = stage.driver.get_subscriber()
    subscriber.initialize(receiver)
    faults.partition(True)
    subscriber.on_foreign("t", b"lost")
    faults.heal()
    subscriber.on_foreign("t", b"heard")
    assert receiver.foreign == [("t", b"heard")]
    assert faults.counts().cut == 1


class ClosingReceiver(RecordingReceiver):
    """Closes the subscriber when a frame comes, on whatever thread it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.stage: Stage | None = None
        self.is_closed = threading.Event()
        self.thread = ""

    def on_frames(self, frames: Sequence[bytes]) -> None:
        super().on_frames(frames)
        assert self.stage is not None
        self.thread = threading.current_thread().name
        self.stage.listeners[0].api.close()
        self.is_closed.set()


def test_close_from_the_timer_does_not_deadlock(stage: Stage, faults: Faults) -> None:
    speaker = stage.publisher()
    receiver = ClosingReceiver()
    receiver.stage = stage
    listener = stage.unstarted_subscriber("t", receiver=receiver)
    listener.listen_to([URL])
    listener.start()
    faults.set(delay=1.0, delay_s_min=0.01, delay_s_max=0.01)
    for _ in range(50):
        speaker.send("t")
    assert receiver.is_closed.wait(60)
    assert receiver.thread.startswith("faulty-")
    listener.api.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("faulty-")]
    assert receiver.calls == 2
