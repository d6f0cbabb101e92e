"""What a worker's publisher promises to programs with several threads, small windows and large events."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import pubsub_api
from publisher_service.service import PublisherService
from pubsub_api.errors import InvalidEvent
from pubsub_api.publishing import multiproc
from tests.functional.conftest import event
from tests.helpers.service_nodes import START_S, Host
from tests.helpers.waiting import wait_until


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as made:
        yield made


def test_threads_that_share_a_worker_have_a_position_per_event_and_keep_their_order(host: Host) -> None:
    threads, each = 4, 3000
    got: list[pubsub_api.Event] = []
    positions: list[list[int]] = [[] for _ in range(threads)]
    begin = threading.Barrier(threads)

    def send(at: int) -> None:
        begin.wait(START_S)
        for number in range(1, each + 1):
            positions[at].append(worker.send_event(event(number, "shared", key=f"thread-{at}")))

    with (
        PublisherService(host.conf()),
        pubsub_api.open(host.url) as session,
        multiproc.worker_publisher(host.conf()) as worker,
    ):
        session.subscriber(["#"], got.append).wait_ready(timeout_s=START_S)
        senders = [threading.Thread(target=send, args=(at,)) for at in range(threads)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join(START_S)
        worker.flush(timeout_s=START_S)
        assert worker.acknowledged == threads * each
        wait_until(lambda: len(got) >= threads * each, START_S, "all events")
    assert sorted(position for own in positions for position in own) == list(range(1, threads * each + 1))
    assert all(own == sorted(own) for own in positions)
    for at in range(threads):
        mine = [item for item in got if item.key == f"thread-{at}"]
        assert [item.version for item in mine] == list(range(1, each + 1))
    order = sorted((position, at) for at, own in enumerate(positions) for position in own)
    assert [f"thread-{at}" for _, at in order] == [item.key for item in got], "positions tell the order of the stream"


def test_large_and_small_events_pass_in_order_however_the_socket_cuts_them(host: Host) -> None:
    sizes = [1, 200_000, 5, 90_000, 300_000, 17, 131_072] * 6
    got: list[pubsub_api.Event] = []
    with (
        PublisherService(host.conf()) as service,
        pubsub_api.open(host.url) as session,
        multiproc.worker_publisher(host.conf()) as worker,
    ):
        session.subscriber(["#"], got.append).wait_ready(timeout_s=START_S)
        for number, size in enumerate(sizes, 1):
            worker.send_event(event(number, "tenant-7/port", value=b"x" * size))
        worker.flush(timeout_s=START_S)
        wait_until(lambda: len(got) >= len(sizes), START_S, "all events")
        assert service.report()["sequencer"]["refused_events"] == 0
    assert [(item.version, len(item.value)) for item in got] == list(enumerate(sizes, 1))


def test_headers_pass_through_the_service(host: Host) -> None:
    got: list[pubsub_api.Event] = []
    with (
        PublisherService(host.conf()),
        pubsub_api.open(host.url) as session,
        multiproc.worker_publisher(host.conf()) as worker,
    ):
        session.subscriber(["#"], got.append).wait_ready(timeout_s=START_S)
        for number in range(1, 201):
            worker.send_event(event(number, headers={"n": str(number)} if number % 2 else {}))
        with pytest.raises(InvalidEvent, match="17 headers are more than 16"):
            worker.send_event(event(201, headers={str(name): "" for name in range(17)}))
        worker.flush(timeout_s=START_S)
        wait_until(lambda: len(got) >= 200, START_S, "all events")
    assert [item.headers for item in got] == [{"n": str(number)} if number % 2 else {} for number in range(1, 201)]


def test_what_nobody_waits_for_is_acknowledged_all_the_same(host: Host) -> None:
    with PublisherService(host.conf()), multiproc.worker_publisher(host.conf()) as worker:
        for number in range(1, 21):
            assert worker.send_event(event(number)) == number
            wait_until(lambda number=number: worker.acknowledged == number, START_S, "the acknowledgement")  # type: ignore[misc]
        statistics = worker.statistics()
        assert statistics.acknowledged_events == 20
        assert (statistics.window.waiting_events, statistics.window.waiting_bytes) == (0, 0)
        assert statistics.batches == 20, "each of them was alone"


def test_a_refusal_that_nobody_waits_for_is_logged(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    conf = host.conf()
    conf.set_override("streams_max", 1, group="pubsub")
    with PublisherService(conf), multiproc.worker_publisher(host.conf()) as worker:
        worker.send_event(event(1, "a"))
        worker.flush(timeout_s=START_S)
        worker.send_event(event(2, "b"))
        wait_until(lambda: "could not publish 1 events" in caplog.text, START_S, "the line in the worker's log")
        assert worker.statistics().refused_events == 1


def test_an_idle_worker_notices_that_the_service_ended_and_finds_the_next(host: Host) -> None:
    with multiproc.worker_publisher(host.conf()) as worker:
        for lives in (1, 2, 3):
            with PublisherService(host.conf()):
                worker.send_event(event(lives))
                wait_until(lambda: worker.statistics().is_connected, START_S, "a connection")
                wait_until(lambda: worker.statistics().window.waiting_events == 0, START_S, "the acknowledgement")
            wait_until(lambda: not worker.statistics().is_connected, START_S, "the end of the connection")
        assert worker.statistics().link.disconnects == 3
        assert worker.statistics().link.resent_batches == 0


def test_a_worker_that_ends_does_not_complain_that_the_service_closed_the_connection(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    with PublisherService(host.conf()):
        for number in range(1, 51):
            with multiproc.worker_publisher(host.conf()) as worker:
                worker.send_event(event(number))
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []
