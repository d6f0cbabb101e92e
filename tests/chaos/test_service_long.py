"""The publisher service over many forks and many deaths."""

from __future__ import annotations

import random

import pytest

from tests.functional.publisher_service.test_service_faults import check_complete, topics
from tests.functional.publisher_service.test_service_forking import check_forks
from tests.helpers.service_nodes import START_S, Host
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]


def test_ten_thousand_forks_while_other_threads_publish() -> None:
    check_forks("fork", 10_000)


def test_a_service_killed_at_twenty_random_moments_loses_nothing_and_needs_no_resync() -> None:
    dice = random.Random(20)
    with Host() as host:
        service = host.service()
        subscriber = host.subscriber()
        workers = {topic: host.worker() for topic in topics(4)}
        for topic, worker in workers.items():
            worker.start_flood(topic, rate=5000)
        for _ in range(20):
            goal = subscriber.last("worker/0") + dice.randrange(1, 4000)
            wait_until(lambda goal=goal: subscriber.last("worker/0") > goal, START_S, "events to flow")  # type: ignore[misc]
            service.kill()
            service = host.service()
        last = {topic: worker.stop_flood() for topic, worker in workers.items()}
        assert [worker.flush() for worker in workers.values()] == [""] * 4
        check_complete(subscriber, last)
        assert subscriber.resyncs() == ["initial"]
