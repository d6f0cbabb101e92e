"""Threads that send while another closes: an event that was accepted has a number, and arrives; else it was refused."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

import pubsub_api
from publisher_service.service import PublisherService
from pubsub_api import errors
from pubsub_api.core.events import encode_event
from pubsub_api.publishing import multiproc
from tests.functional.conftest import Bus, Consumer, event
from tests.helpers.service_nodes import Host
from tests.helpers.waiting import WAIT_S, wait_until

SENDERS = 4
ROUNDS = {"memory": 4, "redis": 4, "zmq": 4}
"""More where a round is quick: a round meets the moment by chance."""

SENT_MAX = 5000
"""Calls of a sender until it waits for the end: who does not get to closing finds no flood that nothing can hold."""

Send = Callable[[pubsub_api.Publisher, int], int]
"""Sends events from that number on, and returns how many were accepted."""


def one(publisher: pubsub_api.Publisher, number: int) -> int:
    publisher.send_event(event(number))
    return 1


def many(publisher: pubsub_api.Publisher, number: int) -> int:
    publisher.send_events([event(number), event(number + 1)])
    return 2


def encoded(publisher: pubsub_api.Publisher, number: int) -> int:
    publisher.send_encoded("tenant-7/port", [encode_event(event(number + at), number + at) for at in range(3)])
    return 3


class Sender(threading.Thread):
    def __init__(self, publisher: pubsub_api.Publisher, send: Send, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self._publisher = publisher
        self._send = send
        self._ended = ended
        self.accepted = 0
        self.is_refused = False

    def run(self) -> None:
        try:
            for number in itertools.count(1):
                if number > SENT_MAX:
                    self._ended.wait()
                self.accepted += self._send(self._publisher, self.accepted + 1)
        except errors.Closed:
            self.is_refused = True


@pytest.mark.parametrize("send", [one, many, encoded])
def test_what_was_accepted_while_another_thread_closed_has_a_number_and_arrives(
    bus: Bus, consumer: Consumer, send: Send
) -> None:
    session = bus.session(receive_queue_bytes_max=2**28)
    for _ in range(ROUNDS.get(bus.driver, 2)):
        publisher = bus.session().publisher()
        subscriber = session.subscriber(["#"], consumer.on_event, addresses=bus.addresses(publisher))
        subscriber.wait_ready(timeout_s=60)
        consumer.log.clear()
        ended = threading.Event()
        senders = [Sender(publisher, send, ended) for _ in range(SENDERS)]
        for sender in senders:
            sender.start()
        wait_until(lambda: all(sender.accepted > 20 for sender in senders), what="everybody to send")  # noqa: B023
        publisher.close()
        ended.set()
        for sender in senders:
            sender.join()
        assert all(sender.is_refused for sender in senders)
        accepted = sum(sender.accepted for sender in senders)
        assert sum(publisher.heads().values()) == accepted
        wait_until(lambda: len(consumer.events) >= accepted, what="what was accepted")  # noqa: B023
        assert len(consumer.events) == accepted
        subscriber.close()


class WorkerSender(threading.Thread):
    def __init__(self, worker: multiproc.WorkerPublisherApi, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self._worker = worker
        self._ended = ended
        self.last = 0
        self.is_refused = False

    def run(self) -> None:
        try:
            for number in itertools.count(1):
                if number > SENT_MAX:
                    self._ended.wait()
                self.last = self._worker.send_event(event(self.last + 1))
        except errors.Closed:
            self.is_refused = True


def test_what_a_worker_accepted_while_another_thread_closed_is_acknowledged() -> None:
    with Host() as host, PublisherService(host.conf()):
        for _ in range(5):
            worker = multiproc.worker_publisher(host.conf())
            ended = threading.Event()
            senders = [WorkerSender(worker, ended) for _ in range(SENDERS)]
            for sender in senders:
                sender.start()
            wait_until(lambda: all(sender.last > 20 for sender in senders), what="everybody to send")  # noqa: B023
            worker.close(timeout_s=WAIT_S)
            ended.set()
            for sender in senders:
                sender.join()
            assert all(sender.is_refused for sender in senders)
            assert worker.acknowledged == max(sender.last for sender in senders)
