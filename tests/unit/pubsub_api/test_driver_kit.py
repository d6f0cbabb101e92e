"""The driver kit: what it promises to drivers, shown on ends that have no transport."""

from __future__ import annotations

import threading

import pytest

from pubsub_api.driver_kit import (
    DriverPublisher,
    DriverSubscriber,
    GuardedHandler,
    GuardedReceiver,
    ReplaceableThread,
    UseCounts,
)
from pubsub_api.errors import AddressInUse, Closed, InvalidTopic, LimitReached, UsageError
from pubsub_api.testing.receivers import RecordingReceiver


class NotingSubscriber(DriverSubscriber):
    """Notes what the kit tells it, and refuses addresses while it is ``full``."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, str]] = []
        self.is_full = False

    def query(self, frame: bytes) -> int | None:
        return len(frame)

    def _check_address(self, address: str) -> None:
        self.told.append(("check", address))

    def _open(self, receiver: GuardedReceiver) -> None:
        assert receiver is self._receiver
        self.told.append(("open", ""))

    def _is_alive(self) -> bool:
        return True

    def _add_filter(self, topic_filter: str) -> None:
        self.told.append(("add", topic_filter))

    def _remove_filter(self, topic_filter: str) -> None:
        self.told.append(("remove", topic_filter))

    def _add_link(self, address: str) -> None:
        if self.is_full:
            raise LimitReached("no room")
        self.told.append(("connect", address))

    def _remove_link(self, address: str) -> None:
        self.told.append(("leave", address))

    def _close(self) -> None:
        self.told.append(("close", ""))


class NotingPublisher(DriverPublisher):
    """Fails to open and to serve as often as ``failures`` says."""

    def __init__(self) -> None:
        super().__init__("noting://here")
        self.failures = 0

    def send(self, topic: str, frame: bytes) -> None:
        self._check_usable()

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise AddressInUse("taken")

    def _open(self, report: object) -> None:
        self._fail()

    def _serve(self, handler: GuardedHandler) -> None:
        self._fail()

    def _close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def subscriber() -> NotingSubscriber:
    noting = NotingSubscriber()
    noting.initialize(RecordingReceiver())
    return noting


def test_what_is_registered_before_the_start_is_told_at_the_start_filters_first(subscriber: NotingSubscriber) -> None:
    assert subscriber.register_listen_address("a")
    assert subscriber.register_topic("t/#")
    assert not subscriber.register_topic("t/#")
    assert subscriber.register_topic("gone")
    assert subscriber.unregister_topic("gone")
    subscriber.told.clear()
    subscriber.daemonize()
    assert subscriber.told == [("open", ""), ("add", "t/#"), ("connect", "a")]


def test_what_changes_while_it_runs_is_told_once(subscriber: NotingSubscriber) -> None:
    subscriber.daemonize()
    subscriber.told.clear()
    assert subscriber.register_topic("$control")
    assert not subscriber.register_topic("$control")
    assert subscriber.unregister_topic("$control")
    assert not subscriber.unregister_topic("$control")
    assert subscriber.told == [("add", "$control"), ("remove", "$control")]
    with pytest.raises(InvalidTopic):
        subscriber.register_topic("a//b")


def test_an_address_that_could_not_be_added_is_not_registered(subscriber: NotingSubscriber) -> None:
    subscriber.daemonize()
    subscriber.is_full = True
    with pytest.raises(LimitReached):
        subscriber.register_listen_address("a")
    assert not subscriber.unregister_listen_address("a")
    subscriber.is_full = False
    assert subscriber.register_listen_address("a")


def test_wrong_use_of_a_subscriber_is_refused(subscriber: NotingSubscriber) -> None:
    with pytest.raises(UsageError, match="initialize"):
        NotingSubscriber().daemonize()
    subscriber.daemonize()
    assert subscriber.is_running
    with pytest.raises(UsageError, match="once"):
        subscriber.daemonize()
    subscriber.close()
    assert not subscriber.is_running
    with pytest.raises(Closed):
        subscriber.register_topic("t")


def test_what_failed_to_open_or_to_serve_can_be_tried_again() -> None:
    publisher = NotingPublisher()
    with pytest.raises(UsageError, match="initialize"):
        publisher.serve(lambda query: [query])
    publisher.failures = 1
    with pytest.raises(AddressInUse):
        publisher.initialize(print)
    publisher.initialize(print)
    with pytest.raises(UsageError, match="already"):
        publisher.initialize(print)
    publisher.failures = 1
    with pytest.raises(AddressInUse):
        publisher.serve(lambda query: [query])
    publisher.serve(lambda query: [query])
    with pytest.raises(UsageError, match="once"):
        publisher.serve(lambda query: [query])
    publisher.close()
    with pytest.raises(Closed, match="noting://here"):
        publisher.send("t", b"")


def test_a_thread_that_was_replaced_is_no_owner_and_is_waited_for() -> None:
    owners: list[bool] = []
    is_replaced = threading.Event()

    def run() -> None:
        if not owners:
            owners.append(thread.is_owner)
            thread.replace()
            owners.append(thread.is_owner)
            is_replaced.set()
        else:
            is_replaced.wait(30)
            owners.append(thread.is_owner)

    thread = ReplaceableThread("replaced", run)
    assert not thread.has_started
    thread.start()
    thread.join()
    assert owners == [True, False, True]
    assert not thread.is_alive
    assert not thread.is_current


def test_a_name_is_new_at_its_first_use_and_unused_after_its_last() -> None:
    counts: UseCounts[str] = UseCounts()
    assert counts.add(["a", "b", "a"]) == ["a", "b"]
    assert counts.add(["b", "c"]) == ["c"]
    assert counts.remove(["a", "b"]) == []
    assert counts.remove(["a", "b"]) == ["a", "b"]
    assert list(counts) == ["c"]
    counts.forget("c")
    assert counts.add(["c"]) == ["c"]
