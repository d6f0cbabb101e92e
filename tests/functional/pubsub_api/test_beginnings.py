"""Questions that reach nobody or are not answered, publishers that start again and publish at once, forged heads.

On real drivers: none of these may cost more than a resync, and most of them must not cost that.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import redis

import pubsub_api
from pubsub_api import errors, loading
from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.events import encode_event, pack_body
from pubsub_api.core.frame import Kind
from pubsub_api.driver import PublisherApi, PubSubApi
from pubsub_api.testing.fast_conf import fast_conf
from pubsub_api.testing.faults import Faults
from pubsub_api.testing.faulty import FaultyPubSub, FaultySubscriber
from tests.functional.conftest import Bus, Consumer, event
from tests.helpers.nodes import PublisherNode, SubscriberNode
from tests.helpers.servers import RedisServer, free_port
from tests.helpers.waiting import wait_joined, wait_until

TOPIC = "tenant-7/port"
RARELY = {"max_idle_time": 60.0}
PERSISTENT = {"repair_attempts_max": 9}
"""What can be repaired is, also when whoever is asked gets no processor for a while."""


def reasons(consumer: Consumer) -> list[pubsub_api.Reason]:
    return [resync.reason for resync in consumer.resyncs]


def send_frames(publisher: pubsub_api.Publisher, numbers: range) -> None:
    for number in numbers:
        publisher.send_event(event(number, TOPIC))
        publisher.flush(timeout_s=20)


# -- questions


class UnreachedSubscriber(FaultySubscriber):
    """The next questions reach nobody, as when everybody who could answer is just reconnecting."""

    unreached = 0

    def query(self, frame: bytes) -> int | None:
        if self.unreached:
            self.unreached -= 1
            return 0
        return super().query(frame)


class UnreachedPubSub(FaultyPubSub):
    made: UnreachedSubscriber

    def get_subscriber(self) -> UnreachedSubscriber:
        self.made = UnreachedSubscriber(self._inner.get_subscriber(), self.faults)
        return self.made


def test_a_question_that_reached_nobody_is_asked_again(bus: Bus, consumer: Consumer) -> None:
    faults = Faults()
    wrapped: list[UnreachedPubSub] = []

    def wrap(driver: PubSubApi) -> PubSubApi:
        wrapped.append(UnreachedPubSub(driver, faults))
        return wrapped[-1]

    publisher = bus.session().publisher()
    session = bus.session(wrap_driver=wrap, repair_timeout=0.1, **RARELY, **PERSISTENT)
    subscriber = session.subscriber(
        ["#"], consumer.on_event, on_resync=consumer.on_resync, addresses=bus.addresses(publisher)
    )
    wait_joined(subscriber, bus.addresses(publisher))
    wrapped[0].made.unreached = 2
    faults.set(drop=1.0, kinds={Kind.DATA})
    send_frames(publisher, range(1, 4))
    wait_until(lambda: faults.counts().dropped >= 3, what="three frames to be lost")
    faults.heal()
    send_frames(publisher, range(4, 5))
    wait_until(lambda: consumer.versions == [1, 2, 3, 4], what="the repaired events")
    assert wrapped[0].made.unreached == 0
    assert reasons(consumer) == [pubsub_api.Reason.INITIAL]


def test_a_join_whose_answers_are_lost_is_asked_again(bus: Bus, consumer: Consumer) -> None:
    publisher = bus.session().publisher()
    send_frames(publisher, range(1, 6))
    faults = Faults()
    faults.set(drop=1.0, kinds={Kind.REPLY})
    session = bus.session(wrap_driver=lambda driver: FaultyPubSub(driver, faults))
    subscriber = session.subscriber(
        ["#"], consumer.on_event, on_resync=consumer.on_resync, addresses=bus.addresses(publisher)
    )
    wait_until(lambda: faults.counts().dropped >= 1, what="an answer to be lost")
    faults.heal()
    subscriber.wait_ready(timeout_s=60)
    send_frames(publisher, range(6, 9))
    wait_until(lambda: consumer.versions == [6, 7, 8], what="what was published after the join")
    assert reasons(consumer) == [pubsub_api.Reason.INITIAL]


# -- new lives


@pytest.mark.parametrize("ending", ["kill", "close"])
def test_what_a_new_life_sends_at_once_is_delivered_from_its_first_event(process_bus: Bus, ending: str) -> None:
    port = free_port()
    url = process_bus.url.replace(":0", f":{port}") if process_bus.is_bind_based else process_bus.url
    options = {"max_idle_time": 0.5}
    with PublisherNode(url, **options) as former:
        addresses = [former.address] if process_bus.is_bind_based else None
        with SubscriberNode(url, addresses, **options, **PERSISTENT) as subscriber:
            former.send(TOPIC, range(1, 11))
            wait_until(lambda: subscriber.last(TOPIC) == 10, what="the first life")
            # A successor proves by its age that it is younger than the subscription.  That takes a subscription that
            # is older than its answer is late.
            heard = subscriber.statistics()["intake"]["hellos"]
            wait_until(lambda: subscriber.statistics()["intake"]["hellos"] >= heard + 8, what="some time to pass")
            getattr(former, ending)()
            with PublisherNode(url, **options) as successor:
                successor.send(TOPIC, range(11, 111))
                wait_until(lambda: subscriber.last(TOPIC) == 110, what="the last event of the second life")
                assert subscriber.numbers(TOPIC) == list(range(1, 111))


# -- heads that do not exist


def with_forger(
    bus: Bus, consumer: Consumer, **options: Any
) -> tuple[pubsub_api.Publisher, pubsub_api.Subscriber, PublisherApi]:
    """A stream of which three events were heard, its subscriber, with ``options``, and whoever sends in its name."""
    publisher = bus.session().publisher()
    subscriber = bus.session(**options).subscriber(["#"], consumer.on_event, on_resync=consumer.on_resync)
    wait_joined(subscriber, None)
    send_frames(publisher, range(1, 4))
    wait_until(lambda: consumer.versions == [1, 2, 3], what="the first events")
    forger = loading.build_driver(fast_conf(bus.url)).get_publisher()
    forger.initialize(lambda _: None)
    return publisher, subscriber, forger


@pytest.mark.parametrize("head", [2**63 - 10, 10**9, 5])
@pytest.mark.parametrize("stamp", [1, 2**62])
@pytest.mark.parametrize("bus", ["memory", "redis"], indirect=True)  # elsewhere only its owner sends at an address
def test_one_forged_hello_silences_no_stream(consumer: Consumer, bus: Bus, head: int, stamp: int) -> None:
    publisher, subscriber, forger = with_forger(bus, consumer, repair_timeout=0.05, repair_attempts_max=2)
    body = messages.encode(messages.Hello())
    hellos = subscriber.statistics().intake.hellos
    forger.send(
        TOPIC, frames.pack(Kind.HELLO, publisher.guid, TOPIC, body, first=head + 1, after=head, timestamp=stamp)
    )
    wait_until(lambda: subscriber.statistics().intake.hellos > hellos, what="the forged hello")
    if head < 2**40:
        wait_until(lambda: len(consumer.resyncs) >= 2, what="the resync for what never was")
    for number in range(4, 104):
        publisher.send_event(event(number, TOPIC))
    wait_until(lambda: consumer.versions[-1:] == [103], what="the last event")
    assert consumer.versions == list(range(1, 104))
    forger.close()
    if head < 2**40:
        told = lambda: any(pubsub_api.Reason.CONTRADICTION in resync.reasons for resync in consumer.resyncs)  # noqa: E731
        wait_until(told, what="the resync for the contradiction")
        assert subscriber.statistics().peers.contradictions == 1
    else:
        refused = lambda: subscriber.statistics().bad_frames == {"ImplausibleHead": 1}  # noqa: E731
        wait_until(refused, what="the forged hello to be refused")
        assert reasons(consumer) == [pubsub_api.Reason.INITIAL]


@pytest.mark.parametrize("stamp", [1, 2**62])
@pytest.mark.parametrize("bus", ["memory", "redis"], indirect=True)
def test_one_event_with_a_wrong_number_silences_no_stream(consumer: Consumer, bus: Bus, stamp: int) -> None:
    """A damaged header: the number is far too high, and those before it seem to be skipped on purpose."""
    publisher, subscriber, forger = with_forger(bus, consumer)
    body = pack_body([encode_event(event(4, TOPIC), stamp)])
    forger.send(
        TOPIC,
        frames.pack(Kind.DATA, publisher.guid, TOPIC, body, first=10**6, after=3, count=1, timestamp=stamp),
    )
    wait_until(lambda: consumer.versions == [1, 2, 3, 4], what="the event with the wrong number")
    forger.close()
    sent = 4

    def is_heard() -> bool:
        nonlocal sent
        sent += 1
        send_frames(publisher, range(sent, sent + 1))
        return consumer.versions[-1] > 4

    wait_until(is_heard, what="an event after it")
    send_frames(publisher, range(sent + 1, sent + 101))
    wait_until(lambda: consumer.versions[-1] == sent + 100, what="the last event")
    assert consumer.versions[-100:] == list(range(sent + 1, sent + 101))
    assert subscriber.statistics().peers.contradictions == 1
    assert any(pubsub_api.Reason.CONTRADICTION in resync.reasons for resync in consumer.resyncs)


@pytest.mark.parametrize("count", [2, 200, 2**31])
@pytest.mark.parametrize("bus", ["memory", "redis"], indirect=True)
def test_a_frame_that_states_more_events_than_it_has_takes_no_numbers(consumer: Consumer, bus: Bus, count: int) -> None:
    """Damaged or forged.  Events that come later under these numbers would pass for repeated ones."""
    publisher, subscriber, forger = with_forger(bus, consumer)
    forger.send(TOPIC, frames.pack(Kind.DATA, publisher.guid, TOPIC, b"\x91\xc0", first=4, after=3, count=count))
    wait_until(lambda: subscriber.statistics().bad_frames == {"MalformedFrame": 1}, what="the frame to be refused")
    forger.close()
    for number in range(4, 104):
        publisher.send_event(event(number, TOPIC))
    wait_until(lambda: consumer.versions[-1:] == [103], what="the last event")
    assert consumer.versions == list(range(1, 104))
    assert reasons(consumer) == [pubsub_api.Reason.INITIAL]


# -- links that come back to something shared

SETTLED = {"max_idle_time": 0.5, "missed_hellos_max": 12}
"""A link that was up for six seconds has heard everybody."""


@pytest.mark.parametrize("has_come", [False, True])
def test_a_lost_connection_to_redis_is_a_resync_only_when_somebody_has_come(
    redis_server: RedisServer, consumer: Consumer, has_come: bool
) -> None:
    prefix = f"t{uuid.uuid4().hex[:8]}:"
    bus = Bus("redis", f"{redis_server.address}?channel_prefix={prefix}&note_arrivals=true")
    publisher = bus.session(**SETTLED).publisher()
    subscriber = bus.session(**SETTLED, **PERSISTENT).subscriber(["#"], consumer.on_event, on_resync=consumer.on_resync)
    wait_joined(subscriber, None)
    before = subscriber.statistics().intake.hellos
    wait_until(lambda: subscriber.statistics().intake.hellos >= before + 15, what="everybody to be heard")
    if has_come:
        bus.session(**SETTLED).publisher(name="another").close()
    with redis.Redis.from_url(redis_server.address) as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    send_frames(publisher, range(1, 11))
    wait_until(lambda: subscriber.statistics().driver["link_failures"] >= 1, what="the connection to be lost")
    if has_come:
        wait_until(lambda: pubsub_api.Reason.RECONNECTED in reasons(consumer), what="a resync")
    else:
        wait_until(lambda: subscriber.statistics().peers.verified_reconnects == 1, what="the proof")
        wait_until(lambda: consumer.versions == list(range(1, 11)), what="every event")
        assert pubsub_api.Reason.RECONNECTED not in reasons(consumer)
    bus.close()


def test_a_publisher_that_cannot_note_its_arrival_does_not_publish(redis_server: RedisServer) -> None:
    """Nobody would notice that it had come."""
    prefix = f"t{uuid.uuid4().hex[:8]}:"
    with redis.Redis.from_url(redis_server.address) as client:
        client.execute_command(
            "ACL", "SETUSER", prefix, "on", ">secret", "allchannels", "-@all", "+ping", "+publish", "+subscribe",
            "+psubscribe", "+unsubscribe", "+punsubscribe",
        )  # fmt: skip
    address = redis_server.address.replace("redis://", f"redis://{prefix.replace(':', '%3A')}:secret@")
    bus = Bus("redis", f"{address}?channel_prefix={prefix}&note_arrivals=true")
    publisher = bus.session().publisher()
    publisher.send_event(event(1, TOPIC))
    with pytest.raises(errors.TransportUnavailable, match="note_arrivals"):
        publisher.flush(timeout_s=20)
    bus.close()
