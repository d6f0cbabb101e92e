"""Topics and filters: a driver may deliver too much, never too little, and exactly where its capabilities say so."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from pubsub_api.core.topics import TOPIC_BYTES_MAX, matches
from pubsub_api.driver import Subscribed
from pubsub_api.errors import InvalidTopic
from pubsub_api.testing.conformance.base import ConformanceBase
from pubsub_api.testing.conformance.delivery import send_in_windows
from pubsub_api.testing.conformance.stage import Listener, Speaker, Stage
from pubsub_api.testing.receivers import eventually

SENTINEL = "sentinel"

NEIGHBOURS = {
    "D": ("D", "Dx", "D/x", "d", "xD"),
    "a/b": ("a/b", "a/bc", "a", "a/b/c", "xa/b", "A/b"),
    "p/long": ("p/long", "p/lon", "p/longer", "p/long/er"),
}
WILDCARDS = {
    "one/+": ("one", "one/b", "one/bb", "one/b/c", "onex/b"),
    "two/#": ("two", "two/b", "two/b/c", "two/b/c/d", "twox", "twox/b"),
    "+/three": ("a/three", "b/three", "three", "a/b/three", "a/threex", "a/three/c"),
    "four/+/end": ("four/a/end", "four/b/end", "four/end", "four/a/b/end", "four/a/end/x", "four/a/ending"),
    "five/+/#": ("five/a", "five/a/b", "five/a/b/c", "five", "fivex/a"),
    "+/+/six": ("a/b/six", "a/six", "a/b/c/six"),
}
HOSTILE = (
    "h[ae]llo", "h[^e]llo", "back\\slash", "caret^", "with space", " lead", "trail ", "dot.ted", "..", "co:lon",
    "semi;colon", "quo\"te", "apos'trophe", "per%20cent", "per%s", "a&b=c", "{curly}", "(round)", "<angle>", "pi|pe",
    "til~de", "back`tick", "comma,comma", "ex!claim", "-dash", "_", "0", "null", "a/../b", "a/./b", "mid@at", "a/b:c@d",
    "tenant-7/port", "Straße/Zürich", "日本/東京", "emoji/🛰", "e\u0301", "\u00e9", "\u202eabc",
    "x" * TOPIC_BYTES_MAX,
)  # fmt: skip


def check_exactness(stage: Stage, listener: Listener, topic_filter: str, names: Iterable[str]) -> None:
    """Send a frame on each topic.  Those that the filter matches arrive; others if the driver delivers too much."""
    speaker = stage.speakers[0]
    sent = {name: speaker.send(name) for name in names}
    listener.heard.wait_frame(speaker.send(SENTINEL))
    for name, frame in sent.items():
        if matches(topic_filter, name):
            listener.heard.wait_frame(frame)
        elif stage.capabilities.native_wildcards:
            assert frame not in listener.heard.frames, f"filter {topic_filter!r} let {name!r} through"


def wait_silenced(speaker: Speaker, listener: Listener, topic: str) -> None:
    """Send pairs of a frame and a sentinel until only the sentinel arrives: unsubscribing takes a while."""

    def is_silent() -> bool:
        frame = speaker.send(topic)
        listener.heard.wait_frame(speaker.send(SENTINEL))
        return frame not in listener.heard.frames

    eventually(is_silent, f"nothing more arrives on {topic!r}")


class TopicConformance(ConformanceBase):
    def test_an_exact_filter_is_no_prefix(self, stage: Stage) -> None:
        stage.publisher()
        listener = stage.subscriber(SENTINEL)
        for topic, names in NEIGHBOURS.items():
            listener.add_topic(topic)
            check_exactness(stage, listener, topic, names)

    def test_wildcards_select_levels(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber(SENTINEL)
        for topic_filter, names in WILDCARDS.items():
            listener.add_topic(topic_filter)
            check_exactness(stage, listener, topic_filter, names)
            assert listener.api.unregister_topic(topic_filter)
            wait_silenced(speaker, listener, next(name for name in names if matches(topic_filter, name)))

    def test_the_filter_for_everything_lets_all_through(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("#")
        sent = [speaker.send(topic) for topic in ("a", "a/b", "a/b/c/d/e", "日本")]
        assert listener.heard.wait_frames(len(sent)) == sent

    def test_a_single_plus_takes_topics_of_one_level(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("+")
        for topic in ("a", "bb"):
            listener.heard.wait_frame(speaker.send(topic))
        deeper = speaker.send("a/b")
        listener.heard.wait_frame(speaker.send("c"))
        if stage.capabilities.native_wildcards:
            assert deeper not in listener.heard.frames

    def test_odd_but_legal_topics_are_taken_literally(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber(*HOSTILE)
        sent = [speaker.send(topic) for topic in HOSTILE]
        assert listener.heard.wait_frames(len(sent)) == sent

    def test_odd_but_legal_topics_pass_a_wildcard(self, stage: Stage) -> None:
        speaker = stage.publisher()
        topics = [f"w/{topic}/end" for topic in HOSTILE if len(topic) < 100]
        listener = stage.subscriber("w/#")
        sent = [speaker.send(topic) for topic in topics]
        assert listener.heard.wait_frames(len(sent)) == sent

    def test_a_filter_that_looks_like_a_pattern_matches_only_itself(self, stage: Stage) -> None:
        stage.publisher()
        listener = stage.subscriber("h[ae]llo/+", "a.c", SENTINEL)
        check_exactness(stage, listener, "h[ae]llo/+", ("h[ae]llo/x", "hallo/x", "hello/x"))
        check_exactness(stage, listener, "a.c", ("a.c", "abc"))

    def test_registering_says_whether_it_is_new(self, stage: Stage) -> None:
        stage.publisher()
        listener = stage.subscriber("before")
        assert not listener.api.register_topic("before")
        assert listener.api.register_topic("later")
        assert not listener.api.register_topic("later")
        assert listener.api.register_topic("later/#")
        assert listener.api.unregister_topic("later")
        assert not listener.api.unregister_topic("later")
        assert not listener.api.unregister_topic("never")
        assert listener.api.register_topic("later")
        assert listener.api.unregister_topic("before")

    def test_a_bad_filter_is_refused(self, stage: Stage) -> None:
        listener = stage.unstarted_subscriber()
        for bad in ("", "a//b", "a#", "a/#/b", "b+", "*", "a/\x00", "@x", "x" * (TOPIC_BYTES_MAX + 1)):
            with pytest.raises(InvalidTopic):
                listener.api.register_topic(bad)

    def test_a_topic_added_on_a_live_link_is_reported_and_then_delivers(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber(SENTINEL)
        for number in range(10):
            topic = f"added/{number}"
            listener.add_topic(topic)
            listener.heard.wait_frame(speaker.send(topic))
            assert listener.heard.count_links(Subscribed(listener.addresses[0], topic)) == 1

    def test_a_topic_registered_twice_is_reported_once(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber(SENTINEL)
        listener.add_topic("twice")
        assert not listener.api.register_topic("twice")
        listener.add_topic("after")
        listener.heard.wait_frame(speaker.send("after"))
        assert listener.heard.count_links(Subscribed(listener.addresses[0], "twice")) == 1

    def test_nothing_arrives_after_unregistering(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("gone", "gone/too/#", SENTINEL)
        for topic in ("gone", "gone/too/x"):
            listener.heard.wait_frame(speaker.send(topic))
        assert listener.api.unregister_topic("gone")
        assert listener.api.unregister_topic("gone/too/#")
        wait_silenced(speaker, listener, "gone")
        wait_silenced(speaker, listener, "gone/too/x")

    def test_a_topic_can_come_back(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("back", SENTINEL)
        for times in range(1, 4):
            assert listener.api.unregister_topic("back")
            assert listener.api.register_topic("back")
            listener.heard.wait_link(Subscribed(listener.addresses[0], "back"), count=times)
            listener.heard.wait_frame(speaker.send("back"))

    def test_overlapping_filters_stay_in_effect_when_one_goes(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("o/#", "o/+", "o/x", SENTINEL)
        listener.heard.wait_frame(speaker.send("o/x"))
        for leaving in ("o/+", "o/#"):
            assert listener.api.unregister_topic(leaving)
            frame = speaker.send("o/x")
            listener.heard.wait_frame(speaker.send(SENTINEL))
            listener.heard.wait_frame(frame)
        wait_silenced(speaker, listener, "o/y")
        listener.heard.wait_frame(speaker.send("o/x"))
        assert listener.api.unregister_topic("o/x")
        wait_silenced(speaker, listener, "o/x")

    def test_overlapping_filters_deliver_at_least_once_and_in_order(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("v/#", "v/+", "v/x", "#")
        sent = [speaker.send("v/x") for _ in range(100)]
        for frame in sent:
            listener.heard.wait_frame(frame)
        firsts = list(dict.fromkeys(listener.heard.frames))
        assert firsts == sent

    def test_no_frame_is_lost_while_filters_are_added(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("steady")
        sent = []
        for number in range(200):
            assert listener.api.register_topic(f"more/{number}")
            sent.append(speaker.send("steady"))
        assert listener.heard.wait_frames(len(sent)) == sent

    def test_registering_from_many_threads_disturbs_no_frame(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("steady")
        failures: list[BaseException] = []
        is_over = threading.Event()

        def churn(number: int) -> None:
            try:
                for turn in range(1_000_000):
                    if is_over.is_set():
                        return
                    assert listener.api.register_topic(f"churn/{number}/{turn % 7}")
                    assert listener.api.unregister_topic(f"churn/{number}/{turn % 7}")
                    is_over.wait(0.001)
            except BaseException as error:  # noqa: BLE001 - raised by the test, below
                failures.append(error)

        threads = [threading.Thread(target=churn, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            sent = send_in_windows(speaker, listener, "steady", 2_000)
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        assert failures == []
        assert listener.heard.frames == sent
        listener.add_topic("churn/over")
        listener.heard.wait_frame(speaker.send("churn/over"))
