"""Loss is repaired from caches, exactly; a resync happens only when it cannot be.  On every driver, in one process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

import pubsub_api
from pubsub_api import errors
from pubsub_api.core import messages
from pubsub_api.core.frame import Kind
from pubsub_api.core.topics import CONTROL_TOPIC
from pubsub_api.driver import PubSubApi, SubscriberApi
from pubsub_api.testing.faults import Faults
from pubsub_api.testing.faulty import FaultyPubSub, FaultySubscriber
from pubsub_api.testing.frames import header
from tests.functional.conftest import Bus, Consumer, event
from tests.helpers.waiting import wait_until

PATIENT = {"repair_attempts_max": 12}
"""Enough attempts that a run of lost replies does not end one test in a million."""
RARELY = {"max_idle_time": 60.0}
"""No hello tells of a loss, however slowly a test goes on: only the event after it does."""


class Lossy:
    """A subscriber whose link can be made bad."""

    def __init__(
        self,
        bus: Bus,
        consumer: Consumer,
        *ends: object,
        on_event: Callable[[pubsub_api.Event], None] | None = None,
        wrap: Callable[[PubSubApi, Faults], PubSubApi] = FaultyPubSub,
        **options: object,
    ) -> None:
        self.faults = Faults(seed=3)
        session = bus.session(wrap_driver=lambda driver: wrap(driver, self.faults), **options)
        self.subscriber = session.subscriber(
            ["#"], on_event or consumer.on_event, on_resync=consumer.on_resync, addresses=bus.addresses(*ends)
        )
        self.subscriber.wait_ready(timeout_s=20)

    @contextlib.contextmanager
    def losing(self, count: int) -> Iterator[None]:
        """The next ``count`` DATA frames are lost; hellos and replies pass."""
        before = self.faults.counts().dropped
        self.faults.set(drop=1.0, kinds={Kind.DATA})
        yield
        wait_until(lambda: self.faults.counts().dropped >= before + count, 20, f"{count} frames to be lost")
        self.faults.heal()


def send_in_frames(publisher: pubsub_api.Publisher, numbers: range, topic: str = "tenant-7/port") -> None:
    """One frame per event."""
    for number in numbers:
        publisher.send_event(event(number, topic))
        publisher.flush(timeout_s=20)


def reasons(consumer: Consumer) -> list[pubsub_api.Reason]:
    return [resync.reason for resync in consumer.resyncs]


@pytest.mark.parametrize("loss", [0.01, 0.1])
def test_random_loss_is_repaired_in_order_without_a_resync(bus: Bus, consumer: Consumer, loss: float) -> None:
    publisher = bus.session().publisher()
    lossy = Lossy(bus, consumer, publisher, **PATIENT)
    lossy.faults.set(drop=loss)
    send_in_frames(publisher, range(1, 801))
    wait_until(lambda: len(consumer.events) == 800, 60, "every event")
    assert consumer.versions == list(range(1, 801))
    assert reasons(consumer) == [pubsub_api.Reason.INITIAL]
    statistics = lossy.subscriber.statistics()
    assert statistics.lost == 0
    assert statistics.repair.repaired > 0 or lossy.faults.counts().dropped == 0


def test_one_lost_event_is_noticed_by_the_next_and_only_it_travels_again(bus: Bus, consumer: Consumer) -> None:
    publisher = bus.session().publisher()
    lossy = Lossy(bus, consumer, publisher)
    send_in_frames(publisher, range(1, 4))
    wait_until(lambda: len(consumer.events) == 3, 20, "the first events")
    with lossy.losing(1):
        send_in_frames(publisher, range(4, 5))
    send_in_frames(publisher, range(5, 8))
    wait_until(lambda: len(consumer.events) == 7, 20, "the repaired event")
    assert consumer.versions == list(range(1, 8))
    assert lossy.subscriber.statistics().repair.repaired == 1
    assert lossy.subscriber.statistics().repair.closed_by_repair == 1


class StumblingSubscriber(FaultySubscriber):
    """Raises once, when the first DATA frame comes, as a bug above the driver would."""

    has_stumbled = False

    def on_frames(self, frames: Sequence[bytes]) -> None:
        if not self.has_stumbled and any(header(frame).kind == Kind.DATA for frame in frames):
            self.has_stumbled = True
            raise ValueError("a bug above the driver, on purpose")
        super().on_frames(frames)


class StumblingPubSub(FaultyPubSub):
    def get_subscriber(self) -> StumblingSubscriber:
        return StumblingSubscriber(self._inner.get_subscriber(), self.faults)


def test_what_is_lost_to_a_receiver_that_raises_is_counted_and_repaired(bus: Bus, consumer: Consumer) -> None:
    publisher = bus.session().publisher()
    session = bus.session(wrap_driver=lambda driver: StumblingPubSub(driver, Faults()))
    subscriber = session.subscriber(["#"], consumer.on_event, addresses=bus.addresses(publisher))
    subscriber.wait_ready(timeout_s=20)
    send_in_frames(publisher, range(1, 4))
    wait_until(lambda: consumer.versions == [1, 2, 3], 20, "every event")
    assert subscriber.statistics().receiver_errors == 1
    assert subscriber.statistics().repair.repaired >= 1


def test_what_a_repair_releases_waits_for_room_in_a_small_queue(bus: Bus, consumer: Consumer) -> None:
    """Far more is ready at once than the queue takes, and nothing is lost: so nothing is resynced."""
    release = threading.Event()

    def on_event(item: pubsub_api.Event) -> None:
        release.wait(60)
        consumer.on_event(item)

    publisher = bus.session().publisher()
    lossy = Lossy(bus, consumer, publisher, on_event=on_event, receive_queue_bytes_max=2_000)
    with lossy.losing(1):
        send_in_frames(publisher, range(1, 2))
    send_in_frames(publisher, range(2, 202))
    wait_until(lambda: lossy.subscriber.statistics().repair.closed_by_repair == 1, 20, "the repair")
    wait_until(lambda: lossy.subscriber.statistics().delivered == 201, 20, "everything to be in order")
    statistics = lossy.subscriber.statistics()
    assert statistics.queue_bytes < 2_000 + 1_000, "bounded, but for the frame that filled it"
    assert statistics.repair.parked_bytes > 2_000
    release.set()
    wait_until(lambda: len(consumer.events) == 201, 20, "every event")
    assert consumer.versions == list(range(1, 202))
    assert reasons(consumer) == [pubsub_api.Reason.INITIAL]
    statistics = lossy.subscriber.statistics()
    assert (statistics.discarded, statistics.lag) == (0, 0)
    wait_until(lambda: lossy.subscriber.statistics().queue_bytes == 0, 20, "an empty queue")
    assert lossy.subscriber.statistics().repair.parked_bytes == 0


class WatchedPubSub(FaultyPubSub):
    """Writes down how a subscriber finds a hole."""

    def __init__(self, inner: PubSubApi, faults: Faults) -> None:
        super().__init__(inner, faults)
        self.gaps: Callable[[], int] = lambda: 0
        self.hellos: list[tuple[int, int, int]] = []
        """Of each hello of a stream: the head it tells, and the holes seen before and after it was handed over."""
        self.asked: list[tuple[int, int]] = []
        """The ranges that caches were asked for."""

    def get_subscriber(self) -> WatchedSubscriber:
        return WatchedSubscriber(self._inner.get_subscriber(), self)


class WatchedSubscriber(FaultySubscriber):
    def __init__(self, inner: SubscriberApi, watch: WatchedPubSub) -> None:
        super().__init__(inner, watch.faults)
        self._watch = watch

    def on_frames(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            gaps = self._watch.gaps()
            super().on_frames([frame])
            seen = header(frame)
            if seen.kind == Kind.HELLO and seen.topic != CONTROL_TOPIC:
                self._watch.hellos.append((seen.after, gaps, self._watch.gaps()))

    def query(self, frame: bytes) -> int | None:
        wants = messages.decode(messages.Query, frame, header(frame)).wants
        self._watch.asked += [(want.first, want.last) for want in wants]
        return super().query(frame)


def test_the_lost_tail_of_an_idle_stream_is_found_by_its_hello(bus: Bus, consumer: Consumer) -> None:
    """Within ``max_idle_time`` + ``message_delay_window``, on every driver.  No clock is read here: it would tell how
    busy the machine is.

    That the publisher says the first hello of an idle stream ``max_idle_time`` after its last event, and the subscriber
    asks ``message_delay_window`` after it saw a hole, is shown where time is a value, by
    ``tests/unit/pubsub_api/test_core_repair.py::test_the_lost_tail_is_asked_for_within_the_bound``.  What a driver adds
    is which frames arrive.  So what is shown here is that nothing else is needed: the very first hello that the driver
    brings after the loss opens the hole, no sooner and no later, and exactly what was lost is asked for.
    """
    watches: list[WatchedPubSub] = []

    def wrap(driver: PubSubApi, faults: Faults) -> WatchedPubSub:
        watches.append(WatchedPubSub(driver, faults))
        return watches[-1]

    publisher = bus.session().publisher()
    lossy = Lossy(bus, consumer, publisher, wrap=wrap)
    (watch,) = watches
    watch.gaps = lambda: lossy.subscriber.statistics().repair.gaps
    with lossy.losing(1):
        send_in_frames(publisher, range(1, 2))
    wait_until(lambda: consumer.versions == [1], 20, "the tail, without any further event")
    wait_until(lambda: watch.hellos, 20, "the thread that brought the hello")  # the tail may come on another
    assert watch.hellos[0] == (1, 0, 1), "head, and holes seen before and after"
    assert set(watch.asked) == {(1, 1)}
    assert reasons(consumer) == [pubsub_api.Reason.INITIAL]


def test_a_periodic_query_finds_the_tail_of_a_publisher_that_says_hello_rarely(bus: Bus, consumer: Consumer) -> None:
    publisher = bus.session(**RARELY).publisher()
    lossy = Lossy(bus, consumer, publisher, query_interval=0.1, **RARELY)
    with lossy.losing(3):
        send_in_frames(publisher, range(1, 4))
    wait_until(lambda: consumer.versions == [1, 2, 3], 20, "the tail, by query alone")


def test_what_no_cache_holds_is_covered_by_one_resync_that_names_it(bus: Bus, consumer: Consumer) -> None:
    publisher = bus.session(with_cache=False, **RARELY).publisher(name="forgetful")
    lossy = Lossy(bus, consumer, publisher, **RARELY)
    send_in_frames(publisher, range(1, 3))
    wait_until(lambda: len(consumer.events) == 2, 20, "the first events")
    with lossy.losing(3):
        send_in_frames(publisher, range(3, 6))
    send_in_frames(publisher, range(6, 8))
    wait_until(lambda: 7 in consumer.versions, 30, "live events after the loss")
    assert consumer.versions == [1, 2, 6, 7]
    assert reasons(consumer) == [pubsub_api.Reason.INITIAL, pubsub_api.Reason.LOSS]
    (lost,) = consumer.resyncs[1].lost
    assert (lost.publisher, lost.topic, lost.first, lost.last) == ("forgetful", "tenant-7/port", 3, 5)
    position = [getattr(item, "version", "resync") for item in consumer.log]
    assert position == ["resync", 1, 2, "resync", 6, 7], "the user learns of the loss where it happened"
    assert lossy.subscriber.statistics().lost == 3


def test_a_cache_that_is_too_small_repairs_what_it_has(bus: Bus, consumer: Consumer) -> None:
    publisher = bus.session(history=2, **RARELY).publisher()
    lossy = Lossy(bus, consumer, publisher, **RARELY)
    with lossy.losing(5):
        send_in_frames(publisher, range(1, 6))
    send_in_frames(publisher, range(6, 7))
    wait_until(lambda: 6 in consumer.versions, 30, "live events after the loss")
    assert pubsub_api.Reason.LOSS in reasons(consumer)
    assert consumer.versions == [5, 6]
    assert [(lost.first, lost.last) for lost in consumer.resyncs[-1].lost] == [(1, 4)]


def test_a_stand_alone_cache_remembers_for_a_publisher_that_has_none(bus: Bus, consumer: Consumer) -> None:
    publisher = bus.session(with_cache=False, **RARELY).publisher()
    cache = bus.session().cache(["#"], addresses=bus.addresses(publisher))
    witness = Consumer()
    bus.session().subscriber(["#"], witness.on_event, addresses=bus.addresses(publisher)).wait_ready(timeout_s=20)

    def is_cached() -> bool:
        publisher.send_event(event(1, "warm/up"))
        return cache.statistics().stored > 0

    wait_until(is_cached, 20, "the cache to hear the publisher")
    publisher.send_event(event(1, "warm/end", value="x" * 100_000))
    wait_until(lambda: cache.statistics().bytes > 100_000, 20, "the last of what it hears before the test")
    lossy = Lossy(bus, consumer, publisher, **RARELY)
    for address in bus.addresses(cache) or ():
        # A link of its own, which is up when its resync was told: or that one would make up for the loss.
        lossy.subscriber.listen_to(address)
        wait_until(lambda: len(consumer.resyncs) > 1, 20, "the link to the cache")
    before = cache.statistics().stored
    with lossy.losing(3):
        send_in_frames(publisher, range(1, 4))
    wait_until(lambda: cache.statistics().stored == before + 3, 20, "the cache to store the events")
    send_in_frames(publisher, range(4, 5))
    wait_until(lambda: len([v for v in consumer.events if v.topic == "tenant-7/port"]) == 4, 20, "the repair")
    assert [v.version for v in consumer.events if v.topic == "tenant-7/port"] == [1, 2, 3, 4]
    assert pubsub_api.Reason.LOSS not in reasons(consumer)


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        (pubsub_api.History(), [1, 2, 3, 4, 5, 6]),
        (pubsub_api.History(newest=2), [4, 5, 6]),
        (None, [6]),
    ],
)
def test_history_comes_in_order_before_live_events(
    bus: Bus, consumer: Consumer, history: pubsub_api.History | None, expected: list[int]
) -> None:
    publisher = bus.session().publisher()
    send_in_frames(publisher, range(1, 3))
    publisher.send_events([event(3), event(4), event(5)])
    publisher.flush(timeout_s=20)
    subscriber = bus.session().subscriber(
        ["#"], consumer.on_event, on_resync=consumer.on_resync, addresses=bus.addresses(publisher), past=history
    )
    subscriber.wait_ready(timeout_s=20)
    publisher.send_event(event(6))
    wait_until(lambda: consumer.versions[-1:] == [6], 20, "the live event")
    assert consumer.versions == expected
    assert reasons(consumer) == [pubsub_api.Reason.INITIAL]


def test_history_since_a_time(bus: Bus, consumer: Consumer) -> None:
    publisher = bus.session().publisher()
    witness = Consumer()
    watching = bus.session().subscriber(["#"], witness.on_event, addresses=bus.addresses(publisher))
    watching.wait_ready(timeout_s=20)
    send_in_frames(publisher, range(1, 5))
    wait_until(lambda: len(witness.events) == 4, 20, "the witness")
    since = witness.events[2].timestamp
    subscriber = bus.session().subscriber(
        ["#"], consumer.on_event, addresses=bus.addresses(publisher), past=pubsub_api.History(since=since)
    )
    subscriber.wait_ready(timeout_s=20)
    publisher.send_event(event(5))
    wait_until(lambda: consumer.versions[-1:] == [5], 20, "the live event")
    assert consumer.versions == [3, 4, 5]


def test_a_cache_that_was_started_anew_is_asked_where_it_is_now(bus: Bus) -> None:
    publisher = bus.session().publisher()
    for number in (1, 2):
        cache = bus.session().cache(["#"], name=f"c{number}", addresses=bus.addresses(publisher))
        publisher.send_event(event(number))
        publisher.confirm(caches=1, timeout_s=20, addresses=bus.addresses(cache))
        cache.close()


def test_confirmed_publication_resends_until_the_caches_hold_it(bus: Bus) -> None:
    publisher = bus.session().publisher()
    faults = Faults(seed=5)
    lossy_session = bus.session(wrap_driver=lambda driver: FaultyPubSub(driver, faults))
    caches = [
        lossy_session.cache(["#"], name="c1", addresses=bus.addresses(publisher)),
        bus.session().cache(["#"], name="c2", addresses=bus.addresses(publisher)),
    ]
    faults.set(drop=0.4, kinds={Kind.DATA})
    send_in_frames(publisher, range(1, 31))
    publisher.confirm(caches=2, timeout_s=60, addresses=bus.addresses(*caches))
    assert [cache.statistics().frames for cache in caches] == [30, 30]
    assert publisher.statistics().resent > 0
    publisher.confirm(caches=2, timeout_s=60)
    publisher.send_event(event(31))
    with pytest.raises(errors.WaitTimeout, match=r"tenant-7/port 31\.\.31"):
        publisher.confirm(caches=3, timeout_s=0.3)


def test_frames_signed_with_another_key_are_refused_and_counted(bus: Bus, consumer: Consumer) -> None:
    good = bus.session(hmac_key="a-secret-of-17-by").publisher(name="good")
    bad = bus.session(hmac_key="a-guess-of-17-byt").publisher(name="bad")
    session = bus.session(hmac_key="a-secret-of-17-by", ready_timeout=1.0)  # who is not trusted never tells its heads
    subscriber = session.subscriber(["#"], consumer.on_event, addresses=bus.addresses(good, bad))
    subscriber.wait_ready(timeout_s=20)

    def is_refused() -> bool:
        bad.send_event(event(666))
        return subscriber.statistics().bad_frames.get("BadSignature", 0) > 0

    wait_until(is_refused, 20, "a forged frame to be refused")
    good.send_event(event(1))
    wait_until(lambda: consumer.versions == [1], 20, "the signed event")
