"""The public interface, on every driver: what a user is promised when nothing goes wrong, and what mistakes cost."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
import weakref

import msgspec
import pytest

import pubsub_api
from pubsub_api import errors
from pubsub_api.core import frame as frames
from pubsub_api.core.events import decode_events, encode_event
from pubsub_api.core.sending import replies
from pubsub_api.core.sending.replies import Head
from pubsub_api.testing.fast_conf import fast_conf
from pubsub_api.testing.ports import free_port
from tests.functional.conftest import Bus, Consumer, event
from tests.helpers.waiting import wait_until


def test_events_arrive_in_order_with_every_field(bus: Bus, consumer: Consumer) -> None:
    publisher = bus.session().publisher()
    subscriber = bus.session().subscriber(
        ["tenant-7/#"], consumer.on_event, on_resync=consumer.on_resync, addresses=bus.addresses(publisher)
    )
    subscriber.wait_ready(timeout_s=20)
    publisher.send_event(event(1, action="create", value={"up": True, "list": [1, None, 2.5], "bytes": b"\x00"}))
    publisher.send_events(event(number) for number in range(2, 2001))
    publisher.flush(timeout_s=20)
    wait_until(lambda: len(consumer.events) >= 2000, 20, "2,000 events")
    assert consumer.versions == list(range(1, 2001))
    first = consumer.events[0]
    assert (first.topic, first.table, first.key, first.action) == ("tenant-7/port", "port", "p1", "create")
    assert first.value == {"up": True, "list": [1, None, 2.5], "bytes": b"\x00"}
    stamps = [item.timestamp for item in consumer.events]
    assert stamps == sorted(stamps)
    assert stamps[0] > 0
    assert [resync.reason for resync in consumer.resyncs] == [pubsub_api.Reason.INITIAL]
    assert consumer.log[0] == consumer.resyncs[0], "the resync comes before the first event"
    assert subscriber.statistics().received == 2000
    assert subscriber.statistics().repair.gaps == 0


def test_a_list_of_events_is_sent_up_to_the_first_bad_one(bus: Bus, consumer: Consumer) -> None:
    publisher = bus.session().publisher()
    bus.session().subscriber(["#"], consumer.on_event, addresses=bus.addresses(publisher)).wait_ready(timeout_s=20)
    mixed = [event(number, f"tenant-{number // 700 % 2}/port") for number in range(1, 3001)]
    publisher.send_events(mixed)
    with pytest.raises(errors.InvalidEvent):
        publisher.send_events([event(3001, "tenant-0/port"), event(-1, "tenant-0/port"), event(3002, "tenant-0/port")])
    with pytest.raises(errors.InvalidTopic):
        publisher.send_events(
            (event(3003, "tenant-0/port"), event(3004, "not/+/a/topic"), event(3005, "tenant-0/port"))
        )
    publisher.flush(timeout_s=20)
    wait_until(lambda: len(consumer.events) >= 3002, 20, "every event")
    for topic in ("tenant-0/port", "tenant-1/port"):
        wanted = [item.version for item in mixed if item.topic == topic]
        received = [item for item in consumer.events if item.topic == topic]
        assert [item.version for item in received] == wanted + [3001, 3003] * (topic == "tenant-0/port")
        stamps = [item.timestamp for item in received]
        assert stamps == sorted(set(stamps))


def test_a_lossless_run_costs_no_extra_traffic(bus: Bus, consumer: Consumer) -> None:
    rarely = {"max_idle_time": 60.0}
    publisher = bus.session(**rarely).publisher()
    subscriber = bus.session(**rarely).subscriber(["a/#"], consumer.on_event, addresses=bus.addresses(publisher))
    subscriber.wait_ready(timeout_s=20)
    before = publisher.statistics()
    for number in range(1, 5001):
        publisher.send_event(event(number, "a/b"))
    wait_until(lambda: len(consumer.events) == 5000, 20, "5,000 events")
    after, received = publisher.statistics(), subscriber.statistics()
    assert after.hellos - before.hellos == 0
    assert after.questions.queries - before.questions.queries == 0
    assert received.frames == after.frames - before.frames
    assert (received.repair.queries, received.intake.duplicates, received.repair.gaps) == (0, 0, 0)


def test_addresses_that_cannot_be_reached_are_counted(bus: Bus, consumer: Consumer) -> None:
    publisher = bus.session().publisher()
    session = bus.session()
    subscriber = session.subscriber(["a"], consumer.on_event, addresses=bus.addresses(publisher))
    subscriber.wait_ready(timeout_s=60)

    def links() -> tuple[int, int]:
        found = subscriber.statistics()
        return found.links_up, found.links_down

    wait_until(lambda: links() == (1, 0), 60, "the link")
    if session.capabilities.bind_based:
        host, _, _ = publisher.address.rpartition(":")
        nowhere = f"{host}:{free_port()}"
        assert subscriber.listen_to(nowhere)
        wait_until(lambda: links() == (1, 1), 60, "the address at which nobody is")
        assert subscriber.stop_listening_to(nowhere)
        wait_until(lambda: links() == (1, 0), 60, "only the link")


def test_filters_select_exactly(bus: Bus, consumer: Consumer) -> None:
    publisher = bus.session().publisher()
    subscriber = bus.session().subscriber(
        ["D", "a/+/c", "end/#"], consumer.on_event, addresses=bus.addresses(publisher)
    )
    subscriber.wait_ready(timeout_s=20)
    topics = ["D", "Dx", "D/x", "a/b/c", "a/b/d", "a/c", "a/b/b/c", "end", "ending", "end/x/y"]
    for number, topic in enumerate(topics, 1):
        publisher.send_event(event(number, topic))
    publisher.send_event(event(99, "end/sentinel"))
    wait_until(lambda: 99 in consumer.versions, 20, "the sentinel")
    assert {item.topic for item in consumer.events} == {"D", "a/b/c", "end", "end/x/y", "end/sentinel"}


def test_a_filter_can_be_added_and_removed_while_it_runs(bus: Bus, consumer: Consumer) -> None:
    publisher = bus.session().publisher()
    subscriber = bus.session().subscriber(
        ["a"], consumer.on_event, on_resync=consumer.on_resync, addresses=bus.addresses(publisher)
    )
    subscriber.wait_ready(timeout_s=20)
    publisher.send_events([event(1, "a"), event(2, "b")])
    publisher.flush(timeout_s=20)
    assert subscriber.subscribe("b")
    assert not subscriber.subscribe("b")
    wait_until(lambda: any(r.topics == ("b",) for r in consumer.resyncs), 20, "the resync for the new filter")
    publisher.send_events([event(3, "b"), event(4, "a")])
    wait_until(lambda: {3, 4} <= set(consumer.versions), 20, "both topics")
    assert subscriber.unsubscribe("b")
    publisher.send_events([event(5, "b"), event(6, "a")])
    wait_until(lambda: 6 in consumer.versions, 20, "the topic that is left")
    assert 5 not in consumer.versions
    assert 2 not in consumer.versions
    assert subscriber.topics == ["a"]
    assert subscriber.subscribe("b")
    wait_until(lambda: sum(r.topics == ("b",) for r in consumer.resyncs) == 2, 20, "the second resync of b")
    publisher.send_event(event(7, "b"))
    wait_until(lambda: 7 in consumer.versions, 20, "the topic that came back")
    assert subscriber.statistics().lost == 0


def test_the_next_event_within_a_time(bus: Bus) -> None:
    publisher = bus.session().publisher()
    subscriber = bus.session().subscriber(["#"], addresses=bus.addresses(publisher))
    subscriber.wait_ready(timeout_s=20)
    assert subscriber.get(timeout_s=0.01) is None
    publisher.send_events([event(number) for number in range(1, 7)])
    first = subscriber.get(timeout_s=60)
    assert first is not None
    assert first.version == 1
    for second in subscriber:
        assert second.version == 2
        break  # what is left of the batch is for whoever reads next
    rest = [subscriber.get(timeout_s=60) for _ in range(4)]
    assert [found.version for found in rest if found is not None] == [3, 4, 5, 6]


def test_closing_ends_a_wait_for_the_next_event(bus: Bus) -> None:
    subscriber = bus.session().subscriber(["#"], addresses=bus.addresses(bus.session().publisher()))
    threading.Timer(0.01, subscriber.close).start()
    with pytest.raises(errors.Closed):
        subscriber.get()
    with pytest.raises(errors.Closed):
        subscriber.get(timeout_s=60)


def test_iterating_yields_events_and_ends_at_close(bus: Bus) -> None:
    publisher = bus.session().publisher()
    subscriber = bus.session().subscriber(["#"], addresses=bus.addresses(publisher))
    subscriber.wait_ready(timeout_s=20)
    publisher.send_events([event(1), event(2), event(3)])
    seen = []
    for item in subscriber:
        seen.append(item.version)
        if len(seen) == 3:
            subscriber.close()
    assert seen == [1, 2, 3]
    with pytest.raises(errors.Closed):
        next(iter(subscriber))


def test_frames_are_handed_over_whole_and_undecoded_to_who_asks_for_them(bus: Bus, consumer: Consumer) -> None:
    publisher = bus.session().publisher()
    taken: list[tuple[bytes, frames.Header, int]] = []
    subscriber = bus.session().frames(
        ["a/#"], taken.extend, on_resync=consumer.on_resync, addresses=bus.addresses(publisher)
    )
    subscriber.wait_ready(timeout_s=20)
    publisher.send_events(event(number, "a/b") for number in range(1, 2001))
    wait_until(lambda: sum(header.count for _, header, _ in taken) >= 2000, 20, "2,000 events in frames")
    versions = [item.version for frame, header, already in taken for item in decode_events(frame, header, skip=already)]
    assert versions == list(range(1, 2001))
    assert {header.guid for _, header, _ in taken} == {publisher.guid}
    assert subscriber.statistics().received == 2000
    assert [resync.reason for resync in consumer.resyncs] == [pubsub_api.Reason.INITIAL]


def test_what_is_sent_again_under_the_same_guid_arrives_once(bus: Bus, consumer: Consumer) -> None:
    """A program that died after sending some of its events sends them all again."""
    guid = bytes(range(16))
    first = bus.session().publisher(guid=guid)
    subscriber = bus.session().subscriber(["a/#"], consumer.on_event, addresses=bus.addresses(first))
    subscriber.wait_ready(timeout_s=20)
    first.send_events(event(number, f"a/{number % 3}") for number in range(1, 61))
    wait_until(lambda: len(consumer.events) == 60, 20, "60 events")
    first.close()
    second = bus.session().publisher(guid=guid)
    for address in bus.addresses(second) or ():  # a bind-based driver: it has another port
        subscriber.listen_to(address)
        subscriber.wait_ready(timeout_s=20)
    second.send_events(event(number, f"a/{number % 3}") for number in range(1, 91))
    wait_until(lambda: len(consumer.events) >= 90, 20, "30 more events")
    assert sorted(consumer.versions) == list(range(1, 91))
    with pytest.raises(errors.UsageError, match="16 bytes"):
        bus.session().publisher(guid=b"short")


def test_several_publishers_and_subscribers(bus: Bus) -> None:
    publishers = [bus.session().publisher(name=f"p{number}") for number in range(2)]
    consumers = [Consumer() for _ in range(3)]
    for one in consumers:
        subscriber = bus.session().subscriber(["#"], one.on_event, addresses=bus.addresses(*publishers))
        subscriber.wait_ready(timeout_s=20)
        wait_until(lambda s=subscriber: s.statistics().peers.publishers >= 2, 20, "both publishers")
    for number in range(1, 101):
        for offset, publisher in enumerate(publishers):
            publisher.send_event(event(1000 * offset + number, f"from/{offset}"))
    for one in consumers:
        wait_until(lambda c=one: len(c.events) == 200, 20, "all events of both")
        for offset in range(2):
            assert [v for v in one.versions if v // 1000 == offset] == [1000 * offset + n for n in range(1, 101)]


def test_threads_that_send_together_lose_and_repeat_nothing(bus: Bus, consumer: Consumer) -> None:
    publisher = bus.session().publisher()
    subscriber = bus.session().subscriber(["#"], consumer.on_event, addresses=bus.addresses(publisher))
    subscriber.wait_ready(timeout_s=20)

    def send(first: int) -> None:
        for number in range(first, first + 2000):
            publisher.send_event(event(number, f"shared/{number % 3}"))

    threads = [threading.Thread(target=send, args=(10_000 * n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    publisher.flush(timeout_s=20)
    wait_until(lambda: len(consumer.events) == 8000, 30, "8,000 events")
    assert len(set(consumer.versions)) == 8000
    for n in range(1, 5):
        for remainder in range(3):
            own = [v for v in consumer.versions if v // 10_000 == n and v % 3 == remainder]
            assert own == sorted(own), "each thread's order is kept"


def test_a_late_joiner_starts_at_the_present(bus: Bus, consumer: Consumer) -> None:
    publisher = bus.session().publisher()
    publisher.send_events([event(1), event(2), event(3)])
    publisher.flush(timeout_s=20)
    subscriber = bus.session().subscriber(["#"], consumer.on_event, addresses=bus.addresses(publisher))
    subscriber.wait_ready(timeout_s=20)
    publisher.send_event(event(4))
    wait_until(lambda: consumer.versions == [4], 20, "the event after joining")
    assert subscriber.statistics().repair.gaps == 0


def test_a_slow_consumer_gets_a_resync_not_silence(bus: Bus) -> None:
    release, log = threading.Event(), []

    def on_event(item: pubsub_api.Event) -> None:
        release.wait(120)
        log.append(item.version)

    publisher = bus.session().publisher()
    session = bus.session(receive_queue_bytes_max=20_000, pending_bytes_max=20_000)
    subscriber = session.subscriber(
        ["#"], on_event, on_resync=lambda resync: log.extend(resync.reasons), addresses=bus.addresses(publisher)
    )
    subscriber.wait_ready(timeout_s=20)
    numbers = itertools.count(1)

    def has_overflowed() -> bool:
        """The driver may have dropped frames before this queue was full: then it takes some more."""
        for number in itertools.islice(numbers, 100):
            publisher.send_event(event(number, value="x" * 100))
        publisher.flush(timeout_s=20)
        return subscriber.statistics().discarded > 0

    wait_until(has_overflowed, 60, "the queue to overflow")
    assert subscriber.statistics().queue_bytes < 20_000 + 512 * 200, "bounded, but for the frame that filled it"
    release.set()
    # Frames that the driver dropped before that are a loss, whose resync covers what was discarded as well.
    told = {pubsub_api.Reason.SLOW_CONSUMER, pubsub_api.Reason.LOSS}
    wait_until(lambda: not told.isdisjoint(log), 60, "the resync that covers what was discarded")
    wait_until(lambda: subscriber.statistics().queue_bytes == 0, 60, "the queue to be empty")

    def is_live() -> bool:
        """Frames that are still under way may fill the queue once more, and be discarded with what follows them."""
        publisher.send_event(event(10**9))
        publisher.flush(timeout_s=20)
        return 10**9 in log

    wait_until(is_live, 60, "live events after the resync")
    assert min(log.index(reason) for reason in told.intersection(log)) < log.index(10**9)


@pytest.mark.parametrize("raised", [ValueError, SystemExit, asyncio.CancelledError])
def test_a_callback_that_raises_is_counted_and_the_rest_goes_on(
    bus: Bus, consumer: Consumer, raised: type[BaseException]
) -> None:
    def on_event(item: pubsub_api.Event) -> None:
        consumer.on_event(item)
        if item.version == 1:
            raise raised("the user's mistake")

    publisher = bus.session().publisher()
    subscriber = bus.session().subscriber(["#"], on_event, addresses=bus.addresses(publisher))
    subscriber.wait_ready(timeout_s=20)
    publisher.send_event(event(1))
    wait_until(lambda: consumer.versions == [1], 20, "the bad event")
    publisher.send_event(event(2))
    wait_until(lambda: consumer.versions == [1, 2], 20, "the event after it")
    assert subscriber.statistics().callback_errors == 1


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"key": 5}, "key must be a str"),
        ({"table": None}, "table must be a str"),
        ({"action": "upsert"}, "action 'upsert'"),
        ({"version": -1}, "version -1"),
        ({"version": 2**63}, "version"),
        ({"value": object()}, "cannot be sent as msgpack"),
        ({"value": 2**70}, "cannot be sent as msgpack"),
        ({"value": "x" * (1 << 20)}, "frame_bytes_max"),
    ],
)
def test_a_bad_event_is_refused_with_the_reason_and_disturbs_nothing(
    consumer: Consumer, bad: dict[str, object], reason: str
) -> None:
    with pubsub_api.open("memory://bad-events") as session:
        publisher = session.publisher()
        subscriber = session.subscriber(["#"], consumer.on_event)
        subscriber.wait_ready(timeout_s=20)
        publisher.send_event(event(1))
        fields = {"table": "t", "key": "k", "action": "set", "topic": "a", **bad}
        wrong = pubsub_api.Event(**fields)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidEvent, match=reason):
            publisher.send_event(wrong)
        publisher.send_event(event(2))
        wait_until(lambda: consumer.versions == [1, 2], 20, "the good events")
        assert subscriber.statistics().repair.gaps == 0


@pytest.mark.parametrize(
    "topic", ["", "/a", "a//b", "a/", "a+b", "a/#", "$control", "@x", "a\x00b", "é" * 300, "\ud800", None, 7, ["a"]]
)
def test_a_hostile_topic_is_refused(topic: str) -> None:
    with pubsub_api.open("memory://hostile") as session, session.publisher() as publisher:
        with pytest.raises(errors.InvalidTopic):
            publisher.send_event(event(1, topic))
        assert publisher.statistics().events == 0


def test_an_event_that_cannot_be_decoded_is_lost_alone_and_named(consumer: Consumer) -> None:
    with pubsub_api.open(conf=fast_conf("memory://broken-event")) as session:
        publisher = session.publisher()
        subscriber = session.subscriber(["a"], consumer.on_event, on_resync=consumer.on_resync)
        subscriber.wait_ready(timeout_s=20)
        sound = [encode_event(event(number, "a"), 5) for number in range(1, 6)]
        broken = msgspec.msgpack.encode(("port", "k", "set", {"a": msgspec.Raw(b"\x81\x80\x01")}, 0, 5))
        publisher.send_encoded("a", [*sound[:2], broken, *sound[2:]])
        undecodable = lambda: [one for one in consumer.resyncs if one.reason.value == "undecodable"]  # noqa: E731
        (resync,) = wait_until(undecodable, what="the resync of the broken one")
        assert [(lost.topic, lost.first, lost.last) for lost in resync.lost] == [("a", 3, 3)]
        wait_until(lambda: consumer.versions == [1, 2, 3, 4, 5], what="the others")


def test_mistakes_in_use_are_typed() -> None:
    session = pubsub_api.open("memory://mistakes")
    with pytest.raises(errors.UsageError, match="list of filters"):
        session.subscriber("a/#")
    with pytest.raises(errors.UsageError, match="at least one"):
        session.subscriber([])
    with pytest.raises(errors.UsageError, match="one of on_event"):
        session.subscriber(["a"], print, on_events=print)
    with pytest.raises(errors.InvalidTopic):
        session.subscriber(["a/#/b"], print)
    with pytest.raises(errors.UsageError, match="give conf, or url"):
        pubsub_api.open("memory://x", conf=session.conf)
    publisher = session.publisher()
    session.close()
    session.close()
    with pytest.raises(errors.Closed):
        publisher.send_event(event(1))
    with pytest.raises(errors.Closed):
        session.publisher()


def test_a_question_that_takes_long_to_answer_holds_up_nobody_who_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    is_answering, may_answer = threading.Event(), threading.Event()

    def select(known: list[Head], topics: list[str]) -> list[Head]:
        is_answering.set()
        may_answer.wait(60)
        return replies.select(known, topics)

    with pubsub_api.open(conf=fast_conf("memory://long-question", ready_timeout=60)) as session:
        publisher = session.publisher()
        publisher.send_event(event(1, "a"))
        monkeypatch.setattr("pubsub_api.publishing.publisher.select", select)
        joining = threading.Thread(target=lambda: session.subscriber(["a"], print).wait_ready(timeout_s=60))
        joining.start()
        assert is_answering.wait(60)
        publisher.send_event(event(2, "a"))
        publisher.flush(timeout_s=30)
        assert publisher.heads() == {"a": 2}
        may_answer.set()
        joining.join(60)
        assert not joining.is_alive()


def test_wait_ready_says_what_is_missing() -> None:
    with pubsub_api.open("zmq://127.0.0.1:1") as session, session.subscriber(["a"], print) as subscriber:
        with pytest.raises(errors.WaitTimeout, match="not in effect .*tcp://127.0.0.1:1 not reached") as caught:
            subscriber.wait_ready(timeout_s=0.1)
        assert caught.value.retriable


def test_a_wrong_key_is_said_in_the_log_and_not_only_counted(caplog: pytest.LogCaptureFixture) -> None:
    def session(key: str) -> pubsub_api.Session:
        return pubsub_api.open(conf=fast_conf("memory://two-keys", hmac_key=key))

    with session("one-key-of-many-bytes") as here, session("another-key-of-many-bytes") as there:
        subscriber = here.subscriber(["a"], print)
        there.publisher().send_event(event(1, "a"))
        wait_until(lambda: "BadSignature, hmac_key is not the same" in caplog.text, what="a line in the log")
        assert subscriber.statistics().bad_frames["BadSignature"]


def test_what_was_closed_leaves_its_session() -> None:
    with pubsub_api.open("memory://many-children") as session:
        left = weakref.WeakSet[pubsub_api.Subscriber]()
        for _ in range(20):
            with session.subscriber(["a"], print) as subscriber:
                left.add(subscriber)
        del subscriber
        publisher = session.publisher()
        wait_until(lambda: gc.collect() >= 0 and not left, what="the subscribers to be let go")
        assert [(role, number) for role, number, _ in session.statistics()] == [("publisher", 20)]
        publisher.close()
        assert session.statistics() == []


def test_a_topic_beyond_the_limit_is_refused_and_the_others_go_on(consumer: Consumer) -> None:
    with pubsub_api.open(conf=fast_conf("memory://limit", streams_max=2)) as session:
        publisher = session.publisher()
        subscriber = session.subscriber(["#"], consumer.on_event)
        subscriber.wait_ready(timeout_s=20)
        publisher.send_events([event(1, "a"), event(2, "b")])
        with pytest.raises(errors.LimitReached, match="streams_max"):
            publisher.send_event(event(3, "c"))
        publisher.send_event(event(4, "a"))
        wait_until(lambda: consumer.versions == [1, 2, 4], 20, "the accepted events")


def test_no_thread_is_left_behind(bus: Bus, consumer: Consumer) -> None:
    before = set(threading.enumerate())
    publisher = bus.session().publisher()
    subscriber = bus.session().subscriber(["#"], consumer.on_event, addresses=bus.addresses(publisher))
    subscriber.wait_ready(timeout_s=20)
    bus.close()
    ours = lambda: [t for t in set(threading.enumerate()) - before if "pyo3" not in t.name]  # noqa: E731
    wait_until(lambda: not ours(), 60, "all threads to end")


def test_what_is_published_after_something_was_received_is_later(bus: Bus, consumer: Consumer) -> None:
    ahead = bus.session().publisher(name="ahead")
    session = bus.session()
    subscriber = session.subscriber(["ahead"], consumer.on_event, addresses=bus.addresses(ahead))
    subscriber.wait_ready(timeout_s=20)
    future = time.time_ns() + 30_000_000_000
    ahead._clock.observe(future, time.time_ns())
    ahead.send_event(event(1, "ahead"))
    wait_until(lambda: consumer.versions == [1], 20, "the event from the future")
    reply = Consumer()
    publisher = session.publisher(name="behind")
    listener = bus.session().subscriber(["behind"], reply.on_event, addresses=bus.addresses(publisher))
    listener.wait_ready(timeout_s=20)
    publisher.send_event(event(2, "behind"))
    wait_until(lambda: reply.versions == [2], 20, "the answer")
    assert reply.events[0].timestamp > consumer.events[0].timestamp


@pytest.mark.parametrize("raised", [ConnectionError, SystemExit, asyncio.CancelledError])
def test_a_resync_that_the_user_could_not_act_on_is_told_again(bus: Bus, raised: type[BaseException]) -> None:
    told: list[pubsub_api.Resync] = []

    def on_resync(resync: pubsub_api.Resync) -> None:
        told.append(resync)
        if len(told) == 1:
            raise raised("the database is not there yet")

    publisher = bus.session().publisher()
    subscriber = bus.session().subscriber(["a"], print, on_resync=on_resync, addresses=bus.addresses(publisher))
    wait_until(lambda: len(told) == 2, 20, "the resync to be told again")
    assert told[1].topics == told[0].topics
    assert subscriber.statistics().callback_errors == 1


def test_what_ends_a_program_passes_through_its_own_loop(bus: Bus) -> None:
    told: list[pubsub_api.Resync] = []

    def on_resync(resync: pubsub_api.Resync) -> None:
        told.append(resync)
        if len(told) == 1:
            raise SystemExit(3)

    publisher = bus.session().publisher()
    subscriber = bus.session().subscriber(["#"], on_resync=on_resync, addresses=bus.addresses(publisher))
    subscriber.wait_ready(timeout_s=20)
    publisher.send_event(event(1))
    with pytest.raises(SystemExit):
        next(iter(subscriber))
    assert next(iter(subscriber)).version == 1
