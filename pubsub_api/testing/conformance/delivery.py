"""Frames: they arrive, unchanged and in order."""

from __future__ import annotations

from pubsub_api.core.topics import CONTROL_TOPIC
from pubsub_api.testing.conformance.base import ConformanceBase
from pubsub_api.testing.conformance.stage import Listener, Speaker, Stage

ORDERED_FRAMES = 10_000
WINDOW_FRAMES = 500
"""Most frames in transit.  Drivers are best effort, and this suite does not test how much they buffer."""
SIZES = (0, 1, 40, 180, 700, 3_000)
LARGE_BYTES = 1024 * 1024


def send_in_windows(speaker: Speaker, listener: Listener, topic: str, count: int) -> list[bytes]:
    """Send ``count`` frames, with at most a window of them not received yet; return them."""
    heard_before = len(listener.heard.frames)
    sent: list[bytes] = []
    while len(sent) < count:
        chunk = [speaker.frames.data(topic, SIZES[number % len(SIZES)]) for number in range(min(WINDOW_FRAMES, count))]
        speaker.api.send_many([(topic, frame) for frame in chunk])
        sent += chunk
        listener.heard.wait_frames(heard_before + len(sent))
    return sent


class DeliveryConformance(ConformanceBase):
    def test_a_frame_sent_after_connected_arrives_unchanged(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("a/b")
        frame = speaker.send("a/b")
        assert listener.heard.wait_frames(1) == [frame]
        assert type(listener.heard.frames[0]) is bytes
        assert listener.heard.foreign == []

    def test_ten_thousand_frames_of_mixed_sizes_arrive_in_order(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("ordered")
        sent = send_in_windows(speaker, listener, "ordered", ORDERED_FRAMES)
        assert listener.heard.frames == sent

    def test_frames_of_several_topics_keep_their_order(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("x/#", "y")
        sent = [speaker.send(topic) for _ in range(50) for topic in ("x/1", "y", "x/2")]
        assert listener.heard.wait_frames(len(sent)) == sent

    def test_the_smallest_and_large_frames_arrive_unchanged(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("sizes")
        largest = min(stage.capabilities.frame_bytes_max, LARGE_BYTES)
        sent = [speaker.send("sizes", 0), speaker.send("sizes", 100_000)]
        sent.append(speaker.frames.data_of_bytes("sizes", largest))
        speaker.send_frame("sizes", sent[-1])
        sent.append(speaker.send("sizes", 1))
        assert len(sent[2]) == largest
        assert listener.heard.wait_frames(len(sent)) == sent

    def test_send_many_keeps_the_order_across_topics(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("many/#")
        pairs = [(topic, speaker.frames.data(topic)) for _ in range(100) for topic in ("many/1", "many/2", "many")]
        speaker.api.send_many(pairs)
        assert listener.heard.wait_frames(len(pairs)) == [frame for _, frame in pairs]

    def test_send_many_of_nothing_is_nothing(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("t")
        speaker.api.send_many([])
        frame = speaker.send("t")
        assert listener.heard.wait_frames(1) == [frame]

    def test_a_publisher_without_subscribers_sends_into_the_void(self, stage: Stage) -> None:
        speaker = stage.publisher()
        for _ in range(100):
            speaker.send("not/heard")
        listener = stage.subscriber("not/heard")
        frame = speaker.send("not/heard")
        assert listener.heard.wait_frames(1) == [frame]

    def test_every_subscriber_of_a_publisher_gets_every_frame(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listeners = [stage.subscriber("shared") for _ in range(3)]
        sent = [speaker.send("shared") for _ in range(100)]
        for listener in listeners:
            assert listener.heard.wait_frames(len(sent)) == sent

    def test_a_subscriber_hears_several_publishers(self, stage: Stage) -> None:
        speakers = [stage.publisher(), stage.second_publisher()]
        listener = stage.subscriber("common")
        sent = [[speaker.send("common") for _ in range(100)] for speaker in speakers]
        heard = listener.heard.wait_frames(200)
        assert len(heard) == 200
        for frames in sent:
            assert [frame for frame in heard if frame in frames] == frames

    def test_control_frames_reach_subscribers_of_their_topic(self, stage: Stage) -> None:
        speaker = stage.publisher()
        curious = stage.subscriber(CONTROL_TOPIC, "sentinel")
        greedy = stage.subscriber("#")
        control = speaker.send(CONTROL_TOPIC)
        sentinel = speaker.send("sentinel")
        assert curious.heard.wait_frames(2) == [control, sentinel]
        greedy.heard.wait_frame(sentinel)
        if stage.capabilities.native_wildcards:
            assert control not in greedy.heard.frames

    def test_a_message_that_is_no_frame_is_reported_as_foreign(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("foreign")
        self.send_foreign(listener.addresses[0], "foreign", b"hello, world")
        listener.heard.wait_until(lambda: bool(listener.heard.foreign), "a foreign message")
        frame = speaker.send("foreign")
        listener.heard.wait_frame(frame)
        assert listener.heard.foreign == [("foreign", b"hello, world")]
        assert listener.heard.frames == [frame]
