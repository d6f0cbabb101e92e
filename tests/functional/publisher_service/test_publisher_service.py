"""The publisher service at its edges: who may connect, what it refuses, how it starts, stops and tells how it is."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator

import pytest

import pubsub_api
from publisher_service import config, health, ownership, runner
from publisher_service.core import messages
from publisher_service.core.messages import Ack, MessageReader, RefusalMessage, Welcome, WorkerBatch, WorkerHello
from publisher_service.errors import WindowFull
from publisher_service.service import PublisherService
from publisher_service.worker.publisher import WorkerPublisher
from pubsub_api import errors
from pubsub_api.core.events import encode_event
from pubsub_api.publishing import multiproc
from tests.functional.conftest import event
from tests.helpers.service_nodes import START_S, Host
from tests.helpers.waiting import wait_until

GUID = b"g" * 16


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as made:
        yield made


@contextlib.contextmanager
def serving(host: Host) -> Iterator[PublisherService]:
    with PublisherService(host.conf()) as service:
        yield service


@contextlib.contextmanager
def working(host: Host) -> Iterator[multiproc.WorkerPublisherApi]:
    with multiproc.worker_publisher(host.conf()) as worker:
        yield worker


class RawWorker:
    """Somebody who speaks to the service in bytes."""

    def __init__(self, path: pathlib.Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(START_S)
        self.sock.connect(str(path))
        self._inbox = MessageReader(10_000)
        self._heard: list[bytes] = []

    def say(self, *sent: object) -> None:
        self.sock.sendall(b"".join(messages.pack(message) for message in sent))  # type: ignore[arg-type]

    def hear(self) -> object:
        """The next thing the service says; None when it has closed the connection."""
        while not self._heard:
            data = self.sock.recv(1000)
            if not data:
                return None
            self._heard += self._inbox.feed(data)
        return messages.read_from_service(self._heard.pop(0))

    def close(self) -> None:
        self.sock.close()


@contextlib.contextmanager
def raw_worker(host: Host) -> Iterator[RawWorker]:
    raw = RawWorker(host.socket)
    try:
        yield raw
    finally:
        raw.close()


def batch(number: int, *numbers: int, topic: str = "a") -> WorkerBatch:
    return WorkerBatch(number, [(topic, [encode_event(event(version), 1) for version in numbers])])


# -- the way of an event


def test_events_of_workers_reach_subscribers_whole(host: Host) -> None:
    got: list[pubsub_api.Event] = []
    with serving(host), pubsub_api.open(host.url) as session, working(host) as worker, working(host) as other:
        session.subscriber(["#"], got.append).wait_ready(timeout_s=START_S)
        sent = event(1, "tenant-7/port", action="create", value={"up": True, "bytes": b"\0", "list": [1, None, 2.5]})
        assert worker.send_event(sent) == 1
        assert other.send_events(event(number, "tenant-8/port") for number in range(1, 2001)) == 2000
        worker.flush(timeout_s=START_S)
        other.flush(timeout_s=START_S)
        assert (worker.acknowledged, other.acknowledged) == (1, 2000)
        assert other.wait_acknowledged(2000, timeout_s=0)
        assert not other.wait_acknowledged(2001, timeout_s=0.01)
        wait_until(lambda: len(got) >= 2001, START_S, "all events")
        first = next(item for item in got if item.topic == "tenant-7/port")
        assert first.timestamp > 0
        assert (first.table, first.key, first.action, first.value, first.version) == (
            sent.table, sent.key, sent.action, sent.value, sent.version,
        )  # fmt: skip
        assert [item.version for item in got if item.topic == "tenant-8/port"] == list(range(1, 2001))
        assert worker.guid != other.guid


def test_both_names_of_the_driver_lead_to_it(host: Host) -> None:
    for name in ("ipc", "zmq_pubsub_multiproc_driver"):
        conf = host.conf()
        conf.set_override("pub_sub_multiproc_driver", name, group="pubsub")
        with multiproc.worker_publisher(conf, name="me") as worker:
            assert isinstance(worker, WorkerPublisher)
            assert worker.statistics().name == "me"
    conf.set_override("pub_sub_multiproc_driver", "nosuch", group="pubsub")
    with pytest.raises(errors.DriverNotFound, match="available: ipc, zmq_pubsub_multiproc_driver"):
        multiproc.worker_publisher(conf)


def test_what_can_never_be_sent_is_refused_at_once(host: Host) -> None:
    with working(host) as worker:
        with pytest.raises(errors.InvalidTopic):
            worker.send_event(event(1, "a//b"))
        with pytest.raises(errors.InvalidTopic):
            worker.send_event(event(1, ["a"]))  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidEvent):
            worker.send_event(event(1, value=object()))
        with pytest.raises(errors.InvalidEvent, match="frame_bytes_max"):
            worker.send_event(event(1, value="x" * 2_000_000))
        assert worker.statistics().events == 0
    with pytest.raises(errors.Closed):
        worker.send_event(event(1))
    with pytest.raises(errors.Closed):
        worker.flush(timeout_s=1)
    worker.close()


def test_a_window_that_stays_full_is_a_retriable_error_and_then_goes_on(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "WINDOW_EVENTS_MAX", 10)
    host.configure(send_timeout=0.05)
    with working(host) as worker:
        for number in range(1, 11):
            worker.send_event(event(number))
        with pytest.raises(WindowFull, match="cannot be reached") as full:
            worker.send_event(event(11))
        assert full.value.retriable
        with serving(host) as service:
            worker.flush(timeout_s=START_S)
            worker.send_event(event(11))
            worker.flush(timeout_s=START_S)
            assert service.publisher.heads() == {"tenant-7/port": 11}


def test_a_sender_that_waits_for_room_is_released_by_close(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "WINDOW_EVENTS_MAX", 1)
    host.configure(send_timeout=3600)
    worker = multiproc.worker_publisher(host.conf())
    worker.send_event(event(1))
    outcome: list[BaseException] = []

    def send() -> None:
        try:
            worker.send_event(event(2))
        except errors.Closed as error:
            outcome.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    wait_until(lambda: worker.statistics().window.blocked_sends, START_S, "the sender to wait")
    worker.close(timeout_s=0)
    thread.join()
    assert len(outcome) == 1


# -- what a stranger may do


@pytest.mark.parametrize(
    "poison",
    [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\1\xc1", b"GET / HTTP/1.1\r\n\r\n", messages.pack(WorkerBatch(1, [])),
     messages.pack(WorkerHello(1, GUID, 1)) + messages.pack(WorkerBatch(7, [("a", [b"x"])]))],
)  # fmt: skip
def test_a_poison_message_costs_its_sender_the_connection_and_nobody_else_anything(host: Host, poison: bytes) -> None:
    with serving(host) as service, working(host) as worker, raw_worker(host) as raw:
        worker.send_event(event(1))
        worker.flush(timeout_s=START_S)
        raw.sock.sendall(poison)
        while raw.hear() is not None:
            pass
        worker.send_event(event(2))
        worker.flush(timeout_s=START_S)
        wait_until(lambda: service.report()["hop"]["bad_connections"] == 1, START_S, "the count")
        assert service.report()["ok"]
        assert service.publisher.heads() == {"tenant-7/port": 2}, "nothing else was published"
        assert worker.statistics().link.disconnects == 0


def test_a_connection_lost_inside_a_message_leaves_nothing(host: Host) -> None:
    with serving(host) as service:
        with raw_worker(host) as raw:
            raw.say(WorkerHello(1, GUID, 1))
            raw.hear()
            raw.sock.sendall(messages.pack(batch(1, 1, 2))[:-1])
        with raw_worker(host) as raw:
            raw.say(WorkerHello(1, GUID, 1), batch(1, 1, 2), batch(1, 1, 2))
            assert raw.hear() == Welcome(0, service.publisher.guid, service.core.settings.event_bytes_max, 0)
            assert raw.hear() == Ack(1)
        wait_until(lambda: service.report()["hop"]["duplicate_batches"] == 1, START_S, "the count")
        assert service.publisher.heads() == {"a": 2}


def test_events_that_cannot_be_published_are_acknowledged_counted_and_told(host: Host) -> None:
    with serving(host) as service, raw_worker(host) as raw:
        raw.say(WorkerHello(1, GUID, 1))
        raw.hear()
        good = encode_event(event(1), 1)
        raw.say(WorkerBatch(1, [("a", [good]), ("bad//topic", [good, good]), ("b", [good])]))
        answer = raw.hear()
        assert isinstance(answer, Ack)
        assert (answer.number, answer.refused) == (1, 2)
        assert "bad//topic" in answer.reason
        raw.say(WorkerBatch(2, [("a", [b"x" * 1_100_000])]))
        answer = raw.hear()
        assert isinstance(answer, Ack)
        assert (answer.number, answer.refused) == (2, 1)
        assert service.publisher.heads() == {"a": 1, "b": 1}
        wait_until(lambda: service.report()["sequencer"]["refused_events"] == 3, START_S, "the count")


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_refusal_outlives_the_connection_and_the_service(host: Host, is_restarted: bool) -> None:
    good = encode_event(event(1), 1)
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(serving(host))
        with raw_worker(host) as raw:
            raw.say(WorkerHello(1, GUID, 1), WorkerBatch(1, [("a", [good]), ("bad//topic", [good, good])]))
            wait_until(lambda: service.core.taken() == {GUID: 1}, START_S, "the batch to be taken")
            wait_until(lambda: service.report()["events"] == 1, START_S, "what is good of it to be published")
        if is_restarted:
            stack.close()
            service = stack.enter_context(serving(host))
        with raw_worker(host) as raw:
            raw.say(WorkerHello(1, GUID, 1))
            welcome = raw.hear()
        assert isinstance(welcome, Welcome)
        assert (welcome.taken, welcome.refused) == (1, 2)


def test_a_worker_of_another_protocol_version_is_told_so(host: Host) -> None:
    with serving(host) as service, raw_worker(host) as raw:
        raw.say(WorkerHello(99, GUID, 1))
        answer = raw.hear()
        assert isinstance(answer, RefusalMessage)
        assert "version 99" in answer.reason
        assert raw.hear() is None
        wait_until(lambda: service.report()["hop"]["refused_workers"] == 1, START_S, "the count")


def test_who_never_greets_is_not_waited_for(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("publisher_service.config.HELLO_TIMEOUT_S", 0.05)
    with serving(host) as service, raw_worker(host) as raw:
        assert raw.hear() is None
        wait_until(lambda: service.report()["hop"]["greeting_timeouts"] == 1, START_S, "the count")


def test_too_many_workers_are_refused_and_wait(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("publisher_service.config.WORKERS_MAX", 1)
    with serving(host), working(host) as first:
        first.send_event(event(1))
        first.flush(timeout_s=START_S)
        with working(host) as second:
            second.send_event(event(2))
            wait_until(lambda: second.statistics().link.refusals, START_S, "a refusal")
            first.close()
            second.flush(timeout_s=START_S)


# -- the socket file


def test_the_socket_is_private(host: Host) -> None:
    with serving(host):
        for path in (host.socket, ownership.beside(host.socket, ".health"), ownership.beside(host.socket, ".lock")):
            assert path.stat().st_mode & 0o777 == 0o600, path
    assert not host.socket.exists()


def test_a_second_service_is_refused_with_the_pid_of_the_first(host: Host) -> None:
    with serving(host), pytest.raises(errors.AddressInUse, match=f"process {os.getpid()}"), serving(host):
        pass
    with serving(host):
        pass


def test_a_socket_that_somebody_else_listens_on_is_left_alone(host: Host) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.bind(str(host.socket))
        stranger.listen()
        with pytest.raises(errors.AddressInUse, match=f"process {os.getpid()}"), serving(host):
            pass
        assert host.socket.exists()


def test_a_stale_socket_is_replaced(host: Host) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(host.socket))
    with serving(host), working(host) as worker:
        worker.send_event(event(1))
        worker.flush(timeout_s=START_S)


def test_a_file_that_is_no_socket_is_left_alone(host: Host) -> None:
    host.socket.write_text("precious")
    with pytest.raises(errors.InvalidConfig, match="is no socket"), serving(host):
        pass
    assert host.socket.read_text() == "precious"


def test_a_path_that_is_too_long_is_refused_by_both_sides(host: Host) -> None:
    conf = host.conf()
    conf.set_override("publisher_multiproc_socket", str(host.path / ("x" * 100)), group="pubsub")
    with pytest.raises(errors.InvalidConfig, match="is longer than the 100 bytes"):
        PublisherService(conf)
    with pytest.raises(errors.InvalidConfig, match="is longer than the 100 bytes"):
        multiproc.worker_publisher(conf)


def test_the_publishers_own_socket_cannot_be_the_workers(host: Host) -> None:
    conf = host.conf()
    conf.set_override("publisher_multiproc_socket", str(host.path / "bus"), group="pubsub")
    with pytest.raises(errors.InvalidConfig, match="ipc_path"), PublisherService(conf):
        pass


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_process_of_another_user_is_refused_even_when_it_can_open_the_file(host: Host) -> None:
    with serving(host) as service:
        host.path.chmod(0o755)
        host.socket.chmod(0o666)
        stranger = (
            "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); "
            "s.connect(sys.argv[1]); print(len(s.recv(10)))"
        )
        out = subprocess.check_output([sys.executable, "-c", stranger, str(host.socket)], timeout=START_S)
        assert out.strip() == b"0"
        wait_until(lambda: service.report()["hop"]["denied"] == 1, START_S, "the count")
        host.socket.chmod(0o600)
        outcome = subprocess.run([sys.executable, "-c", stranger, str(host.socket)], capture_output=True, check=False)
        assert b"PermissionError" in outcome.stderr


# -- a service and its earlier incarnations, in one process


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\0" * 5000])
def test_a_damaged_journal_is_ignored_and_counted(host: Host, damage: bytes) -> None:
    with working(host) as worker:
        with serving(host):
            worker.send_events(event(number) for number in range(1, 1001))
            worker.flush(timeout_s=START_S)
        journals = [path for path in host.path.iterdir() if ".journal." in path.name]
        assert journals
        for path in journals:
            path.write_bytes(damage)
        with serving(host) as second:
            worker.send_events(event(number) for number in range(1001, 1101))
            worker.flush(timeout_s=START_S)
            report = second.report()
            assert report["journal"]["recovered_lives"] == 0
            assert report["journal"]["damaged"] == bool(damage)
            assert report["events"] == 100, "what was acknowledged is not published again"


def test_the_next_service_tells_where_the_last_one_ended_while_somebody_may_remember_it(host: Host) -> None:
    with working(host) as worker:
        with serving(host) as first:
            worker.send_events(event(number) for number in range(1, 11))
            worker.flush(timeout_s=START_S)
            guid = first.publisher.guid
        with serving(host) as second:
            assert [one.guid for one in second.recovered.incarnations] == [guid]
            assert second.report()["journal"]["recovered_events"] == 10
            worker.send_event(event(11))
            worker.flush(timeout_s=START_S)
            assert second.report()["hop"]["duplicate_batches"] == 0


def test_a_service_without_a_journal_leaves_none_behind(host: Host) -> None:
    with serving(host), working(host) as worker:
        worker.send_event(event(1))
        worker.flush(timeout_s=START_S)
    assert [path for path in host.path.iterdir() if ".journal." in path.name]
    host.configure(journal_bytes_max=0)
    with serving(host) as service:
        assert not service.report()["journal"]["on"]
    assert not [path for path in host.path.iterdir() if ".journal." in path.name]


def test_a_journal_that_fails_is_given_up_and_removed(host: Host) -> None:
    host.configure(journal_bytes_max=8192)
    with serving(host) as service, working(host) as worker:
        worker.send_events(event(number, f"t/{number}") for number in range(1, 3001))
        worker.flush(timeout_s=START_S)
        report = service.report()
        assert report["sequencer"]["journal_failures"] == 1
        assert not report["journal"]["on"]
        assert report["events"] == 3000
    assert not [path for path in host.path.iterdir() if ".journal." in path.name]


def test_a_journal_that_can_neither_be_written_nor_removed_ends_nothing(host: Host) -> None:
    host.configure(journal_bytes_max=65_536)
    with working(host) as worker:
        with serving(host) as service:
            worker.send_events(event(number) for number in range(1, 101))
            worker.flush(timeout_s=START_S)
            assert service.sequencer._journal is not None
            written = service.sequencer._journal.path
            other = written.with_name(written.name[:-1] + ("0" if written.name.endswith("1") else "1"))
            other.unlink(missing_ok=True)
            (other / "in the way").mkdir(parents=True)
            worker.send_events(event(number) for number in range(101, 5001))
            worker.flush(timeout_s=START_S)
            assert service.is_well
            assert service.report()["sequencer"]["journal_failures"] == 1
        with serving(host) as second:
            worker.send_event(event(5001))
            worker.flush(timeout_s=START_S)
            assert not second.report()["journal"]["on"]
            assert second.report()["journal"]["damaged"] == 1
            assert second.report()["events"] == 1


@pytest.mark.parametrize("payload", [b"C\x92\x91\x92\xc4\x00\x81\xa1\xff\x01\x80", b"C" + b"\x91" * 5000])
def test_a_journal_record_with_a_right_checksum_and_bad_text_is_ignored(host: Host, payload: bytes) -> None:
    with serving(host):
        pass
    path = next(host.path.glob("*.journal.*"))
    checksum = zlib.crc32(payload, zlib.crc32(struct.pack(">Q", 1)))
    path.write_bytes(struct.pack(">4sIIQ", b"HGJ1", len(payload), checksum, 1) + payload)
    with serving(host) as service:
        assert service.report()["journal"]["recovered_lives"] == 0


def test_one_event_too_large_takes_no_other_of_its_topic_along(host: Host) -> None:
    with serving(host) as service, raw_worker(host) as raw:
        raw.say(WorkerHello(1, GUID, 1))
        raw.hear()
        good = encode_event(event(1), 1)
        raw.say(WorkerBatch(1, [("a", [good, b"x" * 1_100_000, good])]))
        answer = raw.hear()
        assert isinstance(answer, Ack)
        assert (answer.number, answer.refused) == (1, 1)
        assert service.publisher.heads() == {"a": 2}


# -- how it is


def test_who_asks_slowly_holds_up_nobody_else(host: Host) -> None:
    host.configure(health="http", health_port=0)
    with serving(host) as service:
        address = service.health_address.removeprefix("http://").strip("/").split(":")
        slow = [socket.create_connection((address[0], int(address[1])), timeout=START_S) for _ in range(3)]
        for sock in slow:
            sock.send(b"G")
        assert health.ask_http(int(address[1]), timeout_s=START_S)["ok"]
        assert all(sock.fileno() >= 0 for sock in slow)
        for sock in slow:
            assert sock.recv(1) == b"", "it was given its time, and no more"
            sock.close()


def test_health_over_http(host: Host) -> None:
    host.configure(health="http", health_port=0)
    with serving(host) as service:
        with urllib.request.urlopen(service.health_address, timeout=START_S) as answer:
            report = json.load(answer)
        assert report["ok"] is True
        assert report["guid"] == service.publisher.guid.hex()
        port = int(service.health_address.rpartition(":")[2].strip("/"))
        assert health.ask_http(port, timeout_s=START_S)["workers"] == 0
        service.intake.stop(drain_timeout_s=0)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(service.health_address, timeout=START_S)
        assert refused.value.code == 503
        refused.value.close()
    with pytest.raises(errors.TransportUnavailable):
        health.ask_http(port, timeout_s=START_S)


def test_health_can_be_off(host: Host) -> None:
    host.configure(health="off")
    with serving(host), pytest.raises(errors.TransportUnavailable):
        health.ask(ownership.beside(host.socket, ownership.HEALTH_SUFFIX), timeout_s=1)


def test_sighup_reads_again_what_may_change_and_a_broken_file_changes_nothing(host: Host) -> None:
    host.configure(log_level="warning")
    service = host.service()
    host.configure(log_level="info")
    service.signal(signal.SIGHUP)
    wait_until(lambda: "read again" in service.log(), START_S, "the new log level")
    host.config_file.write_text("[publisher_service]\nlog_level = loud\n")
    service.signal(signal.SIGHUP)
    wait_until(lambda: "nothing was changed" in service.log(), START_S, "the complaint")
    report = service.report()
    assert (report["ok"], report["reload_failures"]) == (True, 1)
    assert service.stop() == 0


def test_systemd_is_told(host: Host) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.settimeout(START_S)
        supervisor.bind(str(host.path / "notify"))
        service = host.service(NOTIFY_SOCKET=str(host.path / "notify"), WATCHDOG_USEC="200000")
        assert supervisor.recv(1000).startswith(b"READY=1\nSTATUS=publishing at ")
        assert supervisor.recv(1000) == b"WATCHDOG=1"
        service.signal(signal.SIGTERM)
        heard = [supervisor.recv(1000)]
        while not heard[-1].startswith(b"STOPPING"):
            heard.append(supervisor.recv(1000))
        assert service.stop() == 0


def test_a_service_that_works_no_more_ends_its_process(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "20000")  # it looks at itself as often as systemd wants a sign of life
    service = PublisherService(host.conf())
    with pytest.raises(runner.ServiceFailed):
        runner.run(service, on_ready=lambda: service.intake.stop(drain_timeout_s=0))
    assert not host.socket.exists()
