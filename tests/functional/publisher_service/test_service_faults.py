"""The publisher service and its workers, killed, frozen and restarted: nothing is lost and nothing comes twice."""

from __future__ import annotations

import signal

from tests.helpers.nodes import SubscriberNode
from tests.helpers.service_nodes import START_S, Host, wait_connected
from tests.helpers.waiting import wait_until

TOPIC = "tenant-7/port"


def topics(count: int) -> list[str]:
    return [f"worker/{number}" for number in range(count)]


def check_complete(subscriber: SubscriberNode, last: dict[str, int]) -> None:
    """Each event came once.  In order, too, but that the last events of a service that was killed are repaired while
    the first ones of the next are coming already."""
    for topic, number in last.items():
        wait_until(lambda topic=topic, number=number: subscriber.count(topic) >= number, START_S, f"all of {topic}")  # type: ignore[misc]
        assert sorted(subscriber.numbers(topic)) == list(range(1, number + 1))


def wait_all(subscriber: SubscriberNode, last: dict[str, int]) -> None:
    for topic, number in last.items():
        wait_until(lambda topic=topic, number=number: subscriber.last(topic) >= number, START_S, f"{number} on {topic}")  # type: ignore[misc]


def test_a_service_killed_under_load_loses_nothing_and_needs_no_resync() -> None:
    with Host() as host:
        service = host.service()
        subscriber = host.subscriber()
        workers = {topic: host.worker() for topic in topics(2)}
        for topic, worker in workers.items():
            worker.start_flood(topic, rate=3000)
        for round_number in range(2):
            goal = 1500 * (round_number + 1)
            wait_until(lambda goal=goal: subscriber.last("worker/0") > goal, START_S, "events to flow")  # type: ignore[misc]
            service.kill()
            service = host.service()
        last = {topic: worker.stop_flood() for topic, worker in workers.items()}
        assert [worker.flush() for worker in workers.values()] == ["", ""]
        check_complete(subscriber, last)
        assert subscriber.resyncs() == ["initial"]
        assert all(worker.statistics()["link"]["connects"] >= 2 for worker in workers.values())


def test_without_a_journal_a_killed_service_is_a_resync_and_nothing_is_missing_unseen() -> None:
    with Host(journal_bytes_max=0) as host:
        service = host.service()
        subscriber = host.subscriber()
        worker = host.worker()
        worker.start_flood(TOPIC, rate=3000)
        wait_until(lambda: subscriber.last(TOPIC) > 1000, START_S, "events to flow")
        service.kill()
        service = host.service()
        reached = subscriber.last(TOPIC)
        wait_until(lambda: subscriber.last(TOPIC) > reached + 1000, START_S, "events to flow again")
        last = worker.stop_flood()
        assert worker.flush() == ""
        wait_all(subscriber, {TOPIC: last})
        # When the new service has told its heads, which may be after its first events.
        wait_until(lambda: len(subscriber.resyncs()) > 1, START_S, "the resync")
        assert set(range(1, last + 1)) >= set(subscriber.numbers(TOPIC))


def test_a_service_that_stops_in_good_order_hands_over_without_a_trace() -> None:
    with Host() as host:
        service = host.service()
        subscriber = host.subscriber()
        worker = host.worker()
        worker.start_flood(TOPIC, rate=3000)
        wait_until(lambda: subscriber.last(TOPIC) > 1000, START_S, "events to flow")
        assert service.stop() == 0, service.log()
        assert not host.socket.exists()
        host.service()
        reached = worker.statistics()["events"]
        wait_until(lambda: subscriber.last(TOPIC) > reached, START_S, "events to flow again")
        last = worker.stop_flood()
        assert worker.flush() == ""
        check_complete(subscriber, {TOPIC: last})
        assert subscriber.resyncs() == ["initial"]


def test_a_frozen_service_means_waiting_and_then_a_typed_error_and_nothing_is_lost() -> None:
    with Host(send_timeout=0.2) as host:
        service = host.service()
        subscriber = host.subscriber()
        worker = host.worker()
        worker.send(TOPIC, 1, 100)
        assert worker.flush() == ""
        service.signal(signal.SIGSTOP)
        outcome = worker.send(TOPIC, 101, 100_000)
        assert outcome["error"] == "WindowFull"
        assert 500 <= outcome["last"] < 100_000
        assert worker.flush(0.1) != ""
        assert worker.statistics()["window"]["timeouts"] == 1
        service.signal(signal.SIGCONT)
        assert worker.flush() == ""
        assert worker.send(TOPIC, outcome["last"] + 1, outcome["last"] + 100)["error"] == ""
        assert worker.flush() == ""
        wait_all(subscriber, {TOPIC: outcome["last"] + 100})
        assert subscriber.numbers(TOPIC) == list(range(1, outcome["last"] + 101))
        assert worker.statistics()["link"]["disconnects"] == 0


def test_a_worker_that_is_killed_disturbs_nobody() -> None:
    with Host() as host:
        service = host.service()
        subscriber = host.subscriber()
        doomed, other = host.worker(), host.worker()
        doomed.start_flood("doomed", rate=5000)
        other.start_flood(TOPIC, rate=1000)
        wait_until(lambda: subscriber.last("doomed") > 500 and subscriber.last(TOPIC) > 100, START_S, "both to flow")
        doomed.kill()
        reached = subscriber.last(TOPIC)
        wait_until(lambda: subscriber.last(TOPIC) > reached + 500, START_S, "the other to go on")
        last = other.stop_flood()
        assert other.flush() == ""
        wait_all(subscriber, {TOPIC: last})
        assert subscriber.numbers(TOPIC) == list(range(1, last + 1))
        seen = subscriber.numbers("doomed")
        assert seen == list(range(1, len(seen) + 1)), "what came of it is whole"
        wait_until(lambda: service.report()["workers"] == 1, START_S, "the service to notice")
        assert subscriber.resyncs() == ["initial"]


def test_workers_may_be_there_before_the_service() -> None:
    with Host() as host:
        worker = host.worker()
        assert worker.send(TOPIC, 1, 1000)["error"] == ""
        assert worker.flush(0.05) != ""
        service = host.service()
        wait_connected(worker)
        assert worker.flush() == ""
        assert service.report()["events"] == 1000
        worker.close()
        wait_until(lambda: service.report()["workers_remembered"] == 0, START_S, "the worker to be forgotten")
