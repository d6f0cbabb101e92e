"""Discovery with real publishers and subscribers: ephemeral ports, restarts, evictions, and nothing delivered twice."""

from __future__ import annotations

import contextlib
import functools
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

import pubsub_api
from nb_api.coordination.discovery import Directory, Registration
from nb_api.coordination.leases import TOPIC
from nb_api.core.directory import TABLE
from nb_api.db_api import DbApi
from nb_api.testing.replay import WAIT_S
from pubsub_api.errors import Forked
from pubsub_api.testing.child import ChildProcess
from pubsub_api.testing.conformance.forks import in_forked_child, outcome
from pubsub_api.testing.fast_conf import fast_conf
from tests.functional.conftest import Consumer, event
from tests.helpers.lease_child import discovery_db, publisher_process
from tests.helpers.servers import RedisServer
from tests.helpers.waiting import wait_until

LEASE_S = 120.0
"""Nothing expires unless a test is about that."""
SHORT_LEASE_S = 1.2


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    return f"sqlite://{tmp_path}/objects.db"


@pytest.fixture
def db(url: str) -> Iterator[DbApi]:
    with contextlib.closing(discovery_db(url, LEASE_S)) as db:
        yield db


@pytest.fixture
def session() -> Iterator[pubsub_api.Session]:
    with pubsub_api.open(conf=fast_conf("zmq://127.0.0.1:0")) as session:
        yield session


def entries(db: DbApi) -> dict[str, Any]:
    with db.snapshot([TABLE]) as snapshot:
        return {found.key: found.value for found in snapshot}


class Voice:
    """A publisher that nobody hears: a name, a GUID and an address."""

    def __init__(self, number: int, address: str = "") -> None:
        self.name = f"host/{number}"
        self.guid = bytes([number]) * 16
        self.address = address or f"tcp://10.0.0.{number}:1"


class Ear:
    """A subscriber that only remembers where it was told to listen."""

    def __init__(self, *known: str) -> None:
        self.addresses = set(known)

    def listen_to(self, address: str) -> bool:
        is_new = address not in self.addresses
        self.addresses.add(address)
        return is_new

    def stop_listening_to(self, address: str) -> bool:
        self.addresses.remove(address)
        return True


def put(db: DbApi, number: int) -> int:
    """The entry of a publisher that will never renew it."""
    voice = Voice(number)
    value = {"name": voice.name, "guid": voice.guid.hex(), "address": voice.address, "renewals": 0}
    return db.create(TABLE, voice.guid.hex(), value, topic=TOPIC)


class TestRegistration:
    def test_an_entry_says_where_the_publisher_really_is(self, db: DbApi, session: pubsub_api.Session) -> None:
        publisher = session.publisher(name="host/one")
        with Registration(db, publisher, owns_address=True) as registration:
            assert registration.wait_done(timeout_s=WAIT_S)
            [found] = entries(db).values()
            assert found["name"] == "host/one"
            assert found["guid"] == publisher.guid.hex()
            assert found["address"] == publisher.address != "tcp://127.0.0.1:0"
        assert entries(db) == {}
        assert registration.statistics().registrations == 1

    def test_it_is_renewed_and_nobody_is_bothered(self, url: str) -> None:
        with contextlib.closing(discovery_db(url, SHORT_LEASE_S)) as db:
            with Registration(db, Voice(1), owns_address=True) as registration:
                wait_until(lambda: registration.statistics().renewals >= 3, WAIT_S, "renewals")
            assert db.unpublished() == []
            assert registration.statistics().registrations == 1

    def test_it_is_put_back_when_it_was_deleted(self, db: DbApi) -> None:
        key = Voice(1).guid.hex()
        with Registration(db, Voice(1), owns_address=True) as registration:
            for turn in range(1, 4):
                wait_until(functools.partial(has_registered, registration, turn), WAIT_S, "the entry")
                db.delete(TABLE, key)
                registration.wake()
            wait_until(functools.partial(has_registered, registration, 4), WAIT_S, "the entry")
            assert db.get(TABLE, key).value["name"] == "host/1"

    def test_the_dead_are_collected_and_the_living_are_not(self, url: str) -> None:
        with (
            contextlib.closing(discovery_db(url, SHORT_LEASE_S)) as db,
            Registration(db, Voice(1), owns_address=True) as first,
            Registration(db, Voice(2), owns_address=True) as second,
        ):
            assert first.wait_done(timeout_s=WAIT_S)
            assert second.wait_done(timeout_s=WAIT_S)
            put(db, 9)
            wait_until(lambda: Voice(9).guid.hex() not in entries(db), WAIT_S, "the dead to be collected")
            wait_until(lambda: any(one.statistics().collected for one in (first, second)), WAIT_S, "it to be counted")
            wait_until(lambda: entries(db).keys() == {Voice(1).guid.hex(), Voice(2).guid.hex()}, WAIT_S, "the living")

    def test_a_former_life_at_the_same_address_goes_at_once(self, db: DbApi) -> None:
        for number, (name, address) in enumerate(
            [("host/1", "TCP://h:1"), ("host/1", "tcp://h:2"), ("x", "tcp://h:1")]
        ):
            value = {"name": name, "guid": f"old{number}", "address": address, "renewals": 0}
            db.create(TABLE, f"old{number}", value, topic=TOPIC)
        with Registration(db, Voice(1, "tcp://h:1"), owns_address=True) as registration:
            assert registration.wait_done(timeout_s=WAIT_S)
            assert entries(db).keys() == {Voice(1).guid.hex(), "old1", "old2"}

    def test_publishers_at_one_broker_leave_each_other_alone(self, db: DbApi) -> None:
        with contextlib.ExitStack() as stack:
            for number in range(1, 4):
                voice = Voice(number, "redis://broker:1/0")
                voice.name = "host/same"
                registration = stack.enter_context(Registration(db, voice, owns_address=False))
                assert registration.wait_done(timeout_s=WAIT_S)
            assert len(entries(db)) == 3

    def test_an_outage_of_the_database_evicts_nobody(self) -> None:
        ear = Ear()
        with (
            RedisServer(config={"appendonly": "yes", "appendfsync": "always"}) as server,
            contextlib.closing(discovery_db(server.address, SHORT_LEASE_S)) as db,
            Registration(db, Voice(1), owns_address=True) as registration,
            Directory(db, ear) as directory,
        ):
            wait_until(lambda: ear.addresses, WAIT_S, "the entry to be followed")
            server.kill()
            wait_until(lambda: registration.statistics().failures >= 2, WAIT_S, "renewals to fail")
            wait_until(lambda: directory.statistics().failures >= 2, WAIT_S, "looks to fail")
            server.restart()
            renewed = registration.statistics().renewals
            wait_until(lambda: registration.statistics().renewals >= renewed + 2, WAIT_S, "renewals")
            assert ear.addresses == {"tcp://10.0.0.1:1"}
            assert directory.statistics().removed == 0
            assert registration.statistics().registrations == 1

    def test_a_forked_child_registers_nobody(self, db: DbApi) -> None:
        with Registration(db, Voice(1), owns_address=True) as registration:
            assert registration.wait_done(timeout_s=WAIT_S)
            assert in_forked_child(lambda: outcome(registration.start)) == Forked.__name__
            in_forked_child(lambda: str(registration.close()))
            assert len(entries(db)) == 1


class TestDirectory:
    def test_who_comes_and_goes_is_followed(self, url: str) -> None:
        with contextlib.closing(discovery_db(url, SHORT_LEASE_S)) as db:
            ear = Ear("tcp://static:1")
            with Directory(db, ear, static=["tcp://static:1"]) as directory:
                assert directory.wait_done(timeout_s=WAIT_S)
                assert ear.addresses == {"tcp://static:1"}
                put(db, 1)
                put(db, 2)
                wait_until(lambda: len(ear.addresses) == 3, WAIT_S, "both to be followed")
                assert {entry.name for entry in directory.entries()} == {"host/1", "host/2"}
                db.delete(TABLE, Voice(1).guid.hex())
                wait_until(lambda: ear.addresses == {"tcp://static:1", "tcp://10.0.0.2:1"}, WAIT_S, "the end of one")
                db.delete(TABLE, Voice(2).guid.hex())
                wait_until(lambda: ear.addresses == {"tcp://static:1"}, WAIT_S, "the end of the other")
                wait_until(lambda: directory.statistics().removed == 2, WAIT_S, "it to be counted")

    def test_what_others_have_added_is_left_to_them(self, url: str) -> None:
        with contextlib.closing(discovery_db(url, SHORT_LEASE_S)) as db:
            ear = Ear("tcp://10.0.0.1:1")
            put(db, 1)
            put(db, 2)
            with Directory(db, ear) as directory:
                wait_until(lambda: directory.statistics().listening == 1, WAIT_S, "the other to be followed")
                for number in (1, 2):
                    db.delete(TABLE, Voice(number).guid.hex())
                wait_until(lambda: directory.statistics().listening == 0, WAIT_S, "the end")
            assert ear.addresses == {"tcp://10.0.0.1:1"}

    def test_an_address_that_cannot_be_listened_to_disturbs_nobody(
        self, db: DbApi, session: pubsub_api.Session
    ) -> None:
        for number, address in enumerate(["nonsense", "tcp://host", "zenoh://x:1", "tcp://0.0.0.0:1"]):
            value = {"name": "n", "guid": f"g{number}", "address": address, "renewals": 0}
            db.create(TABLE, f"g{number}", value, topic=TOPIC)
        publisher = session.publisher()
        with (
            Registration(db, publisher, owns_address=True) as registration,
            session.subscriber(["#"], lambda _: None, addresses=[]) as subscriber,
            Directory(db, subscriber) as directory,
        ):
            assert registration.wait_done(timeout_s=WAIT_S)
            wait_until(lambda: directory.statistics().listening == 1, WAIT_S, "the sound one")
            wait_until(lambda: directory.statistics().refused == 4, WAIT_S, "the others")


class TestDelivery:
    def test_a_publisher_in_another_process_is_found_lost_and_found_again(
        self, url: str, session: pubsub_api.Session, consumer: Consumer
    ) -> None:
        with (
            contextlib.closing(discovery_db(url, SHORT_LEASE_S)) as db,
            session.subscriber(["#"], consumer.on_event, on_resync=consumer.on_resync, addresses=[]) as subscriber,
            Directory(db, subscriber) as directory,
            Registration(db, session.publisher(), owns_address=True),  # somebody has to collect the dead
        ):
            for _ in range(2):
                with publisher_process(url, SHORT_LEASE_S) as child:
                    address = child.receive()["address"]
                    wait_until(lambda: subscriber.statistics().links_up >= 1, WAIT_S, "the link")
                    before = len(consumer.events)
                    wait_until(functools.partial(hears, child, consumer, before), WAIT_S, "events")
                    # Not at once: a process that stood still for longer than the lease is lost for a moment.
                    wait_until(functools.partial(is_known, directory, address), WAIT_S, "it to be there")
                    child.kill()
                wait_until(lambda: not is_known(directory, address), WAIT_S, "it to be lost")  # noqa: B023

    @pytest.mark.parametrize("is_static_too", [False, True])
    def test_nothing_is_delivered_twice(
        self, db: DbApi, session: pubsub_api.Session, consumer: Consumer, is_static_too: bool
    ) -> None:
        publisher = session.publisher()
        static = [publisher.address] if is_static_too else []
        with (
            Registration(db, publisher, owns_address=True) as registration,
            session.subscriber(["#"], consumer.on_event, on_resync=consumer.on_resync, addresses=static) as subscriber,
            Directory(db, subscriber, static=static) as directory,
        ):
            assert registration.wait_done(timeout_s=WAIT_S)
            wait_until(lambda: len(directory.entries()) == 1, WAIT_S, "the entry to be seen")
            listening = 0 if is_static_too else 1
            wait_until(lambda: directory.statistics().listening == listening, WAIT_S, "it to be listened to")
            wait_until(lambda: subscriber.statistics().links_up == 1, WAIT_S, "the link")
            subscriber.wait_ready(timeout_s=WAIT_S)
            publisher.send_events(event(number) for number in range(1, 101))
            wait_until(lambda: consumer.versions[-1:] == [100], WAIT_S, "all events")
            assert consumer.versions == list(range(1, 101))

    def test_a_publisher_with_two_addresses_is_heard_once(
        self, db: DbApi, session: pubsub_api.Session, consumer: Consumer
    ) -> None:
        """The directory cannot know that a name and a number are one host; the GUID and the numbers tell."""
        publisher = session.publisher()
        static = [publisher.address.replace("127.0.0.1", "localhost")]
        with (
            Registration(db, publisher, owns_address=True),
            session.subscriber(["#"], consumer.on_event, on_resync=consumer.on_resync, addresses=static) as subscriber,
            Directory(db, subscriber, static=static) as directory,
        ):
            wait_until(lambda: directory.statistics().listening == 1, WAIT_S, "the second address")
            wait_until(lambda: subscriber.statistics().links_up == 2, WAIT_S, "both links")
            subscriber.wait_ready(timeout_s=WAIT_S)
            publisher.send_events(event(number) for number in range(1, 101))
            wait_until(lambda: consumer.versions[-1:] == [100], WAIT_S, "all events")
            publisher.send_events(event(number) for number in range(101, 201))
            wait_until(lambda: consumer.versions[-1:] == [200], WAIT_S, "more events")
            assert consumer.versions == list(range(1, 201))
            wait_until(lambda: subscriber.statistics().intake.duplicates > 0, WAIT_S, "the second copy to be dropped")


def has_registered(registration: Registration, count: int) -> bool:
    return registration.statistics().registrations == count


def is_known(directory: Directory, address: str) -> bool:
    return address in {entry.address for entry in directory.entries()}


def hears(child: ChildProcess, consumer: Consumer, before: int) -> bool:
    """Send until something is heard: what was sent before the link was up is the business of a resync."""
    child.ask(send=1)
    return len(consumer.events) > before
