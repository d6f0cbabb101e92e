"""What the ZeroMQ driver promises beyond the conformance suite.  Raw sockets play the peers that do not."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
from collections.abc import Iterator, Sequence

import pytest
import zmq

from pubsub_api.core.frame import Kind
from pubsub_api.driver import Connected, Disconnected, LinkReport, Subscribed
from pubsub_api.errors import Closed, TransportUnavailable, UsageError
from pubsub_api.testing.child import ChildProcess
from pubsub_api.testing.conformance.forks import in_forked_child
from pubsub_api.testing.conformance.stage import Listener, Speaker, Stage, wait_routed
from pubsub_api.testing.frames import Frames, header
from pubsub_api.testing.receivers import RecordingReceiver
from tests.helpers.servers import free_port
from tests.helpers.waiting import wait_until
from tests.helpers.zmq_tools import SYNC, URL, WAIT_MS, RawSockets, driver_at, listener_at, open_stage

FUTURE_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"UNHEARD-OF".ljust(20, b"\0") + bytes(32)
"""ZeroMQ's greeting, with a security mechanism that nobody has."""


@pytest.fixture
def stage() -> Iterator[Stage]:
    with open_stage() as stage:
        yield stage


@pytest.fixture
def raw() -> Iterator[RawSockets]:
    with contextlib.closing(RawSockets()) as sockets:
        yield sockets


def guids_of_replies(listener: Listener) -> list[str]:
    headers = [header(frame) for frame in listener.heard.frames]
    return [seen.guid.hex() for seen in headers if seen.kind == Kind.REPLY]


class PromptReceiver(RecordingReceiver):
    """Sends a frame as soon as a report says that it will arrive."""

    def __init__(self, speaker: Speaker) -> None:
        super().__init__()
        self.speaker = speaker
        self.sent: list[bytes] = []

    def on_link(self, report: LinkReport) -> None:
        if isinstance(report, Subscribed):
            self.sent.append(self.speaker.send(report.topic_filter))
        elif isinstance(report, Connected):
            self.sent.append(self.speaker.send("first"))
        super().on_link(report)


class TestSubscriptions:
    @pytest.mark.parametrize(
        ("topic_filter", "prefixes"),
        [
            ("D", {b"D\0"}),
            ("$control", {b"$control\0"}),
            ("a/b", {b"a/b\0"}),
            ("a/#", {b"a\0", b"a/"}),
            ("a/+", {b"a/"}),
            ("a/+/c", {b"a/"}),
            ("a/b/+/#", {b"a/b/"}),
            ("+/a", {b""}),
            ("#", {b""}),
        ],
    )
    def test_filters_become_prefixes_that_select_little_more(
        self, stage: Stage, raw: RawSockets, topic_filter: str, prefixes: set[bytes]
    ) -> None:
        publisher, address = raw.publisher()
        listener_at(stage, address, topic_filter)
        asked: list[bytes] = []
        while not asked or not asked[-1].startswith(b"\x01" + SYNC):  # the nonce comes last
            asked.append(publisher.recv())
        assert {message[1:] for message in asked[:-1]} == prefixes
        assert {message[:1] for message in asked} == {b"\x01"}

    def test_a_topic_is_no_prefix(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("D", "sentinel")
        wanted = []
        for topic in ("Dx", "D/x", "D", "sentinel"):
            frame = speaker.send(topic)
            wanted += [frame] if topic in ("D", "sentinel") else []
        assert listener.heard.wait_frames(2) == wanted

    def test_a_prefix_that_two_filters_need_stays_until_both_are_gone(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("a", "a/#", "sentinel")
        assert listener.api.unregister_topic("a/#")
        listener.add_topic("after")  # in effect at the publisher, and so is what was dropped before
        wanted = [speaker.send(topic) for topic in ("a/x", "a", "sentinel")][1:]
        assert listener.heard.wait_frames(2) == wanted
        assert listener.api.unregister_topic("a")
        listener.add_topic("later")
        speaker.send("a")
        last = speaker.send("sentinel")
        assert listener.heard.wait_frames(3) == [*wanted, last]

    def test_a_frame_sent_at_the_very_report_arrives(self, stage: Stage) -> None:
        speaker = stage.publisher()
        for number in range(50):
            receiver = PromptReceiver(speaker)
            listener = stage.unstarted_subscriber("first", receiver=receiver)
            listener.listen_to([speaker.address])
            listener.start()
            listener.add_topic(f"added/{number}")
            assert receiver.wait_frames(2) == receiver.sent
            listener.api.close()

    def test_a_busy_publisher_overlooks_no_subscription(self, stage: Stage) -> None:
        """Sending takes away the sign that a subscription has come.  Nobody asks again here within the test's time."""
        speaker = stage.publisher()
        is_over = threading.Event()

        def send_on() -> None:
            while not is_over.is_set():
                speaker.send("nobody/listens", 0)

        sender = threading.Thread(target=send_on)
        sender.start()
        try:
            with open_stage(URL) as patient:
                for _ in range(30):
                    patient.subscriber("t", to=[speaker]).api.close()
        finally:
            is_over.set()
            sender.join()

    def test_more_filters_than_any_queue_holds_are_all_in_effect(self, stage: Stage) -> None:
        """ZeroMQ drops subscriptions beyond its high-water mark, and resends them in no particular order."""
        url = f"zmq://127.0.0.1:{free_port()}?send_hwm=5000"
        speaker = stage.publisher(driver_at(url))
        topics = [f"{number % 7}/{number}" for number in range(3000)]
        listener = stage.subscriber(*topics)
        sent = [speaker.send(topic) for topic in topics]
        assert listener.heard.wait_frames(len(sent)) == sent
        speaker.api.close()
        listener.heard.wait_link(Disconnected(speaker.address, ""))
        successor = stage.publisher(driver_at(url))
        listener.heard.wait_connected(speaker.address, count=2)
        sent += [successor.send(topic) for topic in topics]
        assert listener.heard.wait_frames(len(sent)) == sent

    def test_a_lost_confirmation_is_asked_for_again(
        self, stage: Stage, raw: RawSockets, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("heliograph_drivers.pubsub.zmq.link.BARRIER_TIMEOUT_S", 0.05)
        publisher, address = raw.publisher()
        with open_stage(URL) as fast:
            listener_at(fast, address, "t")
            nonces: set[bytes] = set()
            while len(nonces) < 3:
                message = publisher.recv()
                nonces |= {message[1:]} if message.startswith(b"\x01" + SYNC) else set()


class TestQueries:
    def test_a_publisher_that_serves_late_is_found(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("t")
        with pytest.raises(TransportUnavailable):
            listener.ask()
        speaker.api.serve(speaker.echo())
        wait_routed(listener, [speaker])

    def test_queries_reach_the_successor_of_a_killed_publisher(self, stage: Stage) -> None:
        listener, url = stage.unstarted_subscriber("t"), f"zmq://127.0.0.1:{free_port()}"
        with ChildProcess("publisher", url) as child:
            address = child.receive()["address"]
            listener.listen_to([address])
            listener.start()
            assert listener.wait_answers(listener.ask(), 1)
        listener.heard.wait_link(Disconnected(address, ""))
        with pytest.raises(TransportUnavailable):
            listener.ask()
        with ChildProcess("publisher", url) as successor:
            listener.heard.wait_connected(address, count=2)
            successor.receive()
            guid = successor.ask(send="t", count=1, size=1)["guid"]

            def is_answered() -> bool:
                with contextlib.suppress(TransportUnavailable):  # connected before it served
                    asked.append(listener.ask())
                return any(listener.answers(number) for number in asked)

            asked: list[int] = []
            wait_until(is_answered, 60, "an answer of the successor")
            assert guids_of_replies(listener)[-1] == guid

    def test_an_asker_that_does_not_read_blocks_nobody(self, stage: Stage, raw: RawSockets) -> None:
        speaker = stage.publisher(driver_at(f"{URL}?send_hwm=2"))
        speaker.api.serve(speaker.echo(parts=64, size=100_000))
        deaf = raw.socket(zmq.DEALER)
        deaf.set(zmq.RCVHWM, 1)
        deaf.connect(raw.query_address(speaker))
        for number in range(20):
            deaf.send(Frames().query(number))
        listener = stage.subscriber("t")
        wait_routed(listener, [speaker])
        listener.heard.wait_frame(speaker.send("t"))


class TestSlowSubscribers:
    def test_one_that_is_behind_is_waited_for(self, stage: Stage) -> None:
        speaker = stage.publisher(driver_at(f"{URL}?send_hwm=2&send_wait=60"))
        listener = stage.subscriber("t")
        sent = [speaker.send("t", 20_000) for _ in range(500)]
        assert listener.heard.wait_frames(len(sent)) == sent

    def test_one_that_stands_still_blocks_nobody(self, stage: Stage, raw: RawSockets) -> None:
        speaker = stage.publisher(driver_at(f"{URL}?send_hwm=2&send_wait=0.01"))
        deaf = raw.socket(zmq.SUB)
        deaf.set(zmq.RCVHWM, 1)
        deaf.subscribe(b"")
        deaf.connect(speaker.address)
        listener = stage.subscriber("t")
        for _ in range(500):  # more than the sockets between it and us hold
            speaker.send("t", 50_000)
        later: list[bytes] = []

        def is_one_heard() -> bool:
            later.append(speaker.send("t"))
            return any(frame in listener.heard.frames for frame in later)

        wait_until(is_one_heard, what="a frame that was sent after the deaf one's queue was full")


class TestLinks:
    def test_a_publisher_that_stands_still_is_noticed(self) -> None:
        with (
            open_stage(f"{URL}?link_timeout=1") as stage,
            ChildProcess("publisher", URL) as child,
        ):
            listener = stage.unstarted_subscriber("t")
            listener.listen_to([child.receive()["address"]])
            listener.start()
            child.stop()
            listener.heard.wait_link(Disconnected(listener.addresses[0], ""))
            child.resume()
            listener.heard.wait_connected(listener.addresses[0], count=2)

    def test_a_link_can_be_left_in_any_state(self, stage: Stage, raw: RawSockets) -> None:
        _publisher, unconfirmed = raw.publisher()
        speaker, gone = stage.publisher(), stage.publisher()
        listener = stage.subscriber("t")
        gone.api.close()
        listener.heard.wait_link(Disconnected(gone.address, ""))
        for address in (unconfirmed, "tcp://127.0.0.1:9"):
            assert listener.api.register_listen_address(address)
        for address in (unconfirmed, "tcp://127.0.0.1:9", gone.address):
            assert listener.api.unregister_listen_address(address)
        listener.heard.wait_frame(speaker.send("t"))
        assert listener.api.unregister_listen_address(speaker.address)
        listener.heard.wait_link(Disconnected(speaker.address, ""))


class TestGarbage:
    """Peers that speak ZeroMQ, or not even that, and none of our messages."""

    def throw(self, address: str) -> None:
        """Bytes that are not ZeroMQ, and a connection that says nothing."""
        host, port = address.removeprefix("tcp://").split(":")
        for data in (b"GET / HTTP/1.0\r\n\r\n", bytes(range(256)) * 16, b""):
            with contextlib.suppress(ConnectionError), socket.create_connection((host, int(port))) as peer:
                peer.sendall(data)

    def test_a_publisher_is_not_disturbed(self, stage: Stage, raw: RawSockets) -> None:
        speaker = stage.publisher()
        speaker.api.serve(speaker.echo())
        listener = stage.subscriber("t")
        questions = raw.query_address(speaker)
        subscriber, asker = raw.socket(zmq.XSUB), raw.socket(zmq.DEALER)
        subscriber.connect(speaker.address)
        asker.connect(questions)
        for parts in (
            [b""],
            [b"x" * 4000],
            [b"\x01" + SYNC],
            [b"\x01" + SYNC + b"n" * 99],
            [b"\x02", b"a", b"b"],
            [b"\x00"],
        ):
            subscriber.send_multipart(parts)
            asker.send_multipart(parts)
        monitor = subscriber.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        monitor.set(zmq.RCVTIMEO, WAIT_MS)
        subscriber.send(b"\x01" + b"x" * 100_000)
        monitor.recv_multipart()  # too long: the publisher has ended this link
        subscriber.disable_monitor()
        monitor.close(0)
        self.throw(speaker.address)
        self.throw(questions)
        asker.send(Frames().query(1))
        assert header(asker.recv()).first == 1
        listener.heard.wait_frame(speaker.send("t"))
        assert listener.wait_answers(listener.ask(), 1)
        assert listener.heard.links == [Connected(speaker.address)]

    def test_a_subscriber_stays_in_step(self, stage: Stage, raw: RawSockets) -> None:
        publisher, address = raw.publisher()
        listener = listener_at(stage, address, "#")
        while not publisher.recv().startswith(b"\x01" + SYNC):
            pass
        frames = Frames()
        odd: Sequence[list[bytes]] = (
            [b"one part"], [b"one part\0"], [b"t\0", b"x", b"three parts"], [b"", b""], [b"\xff\0", b"x"], [b"+", b"x"],
            [b"t\0", b"x", b"y", b"z\0"], [SYNC, b"x"], [SYNC + b"n" * 16, b"x"], [b"t", b"x", frames.data("t")],
        )  # fmt: skip
        sent = []
        for parts in odd:
            publisher.send_multipart(parts)
            sent.append(frames.data("t"))
            publisher.send_multipart([b"t\0", sent[-1]])
            publisher.send_multipart(parts)
        sent.append(frames.data("t"))
        publisher.send_multipart([b"t\0", sent[-1]])
        listener.heard.wait_frame(sent[-1])
        assert [frame for frame in listener.heard.frames if frame in sent] == sent
        assert listener.heard.foreign == []
        assert listener.heard.links == []

    def test_a_peer_that_speaks_otherwise_is_reported_and_may_be_replaced(self, stage: Stage) -> None:
        port = free_port()
        with socket.create_server(("127.0.0.1", port)) as impostor:
            address = f"tcp://127.0.0.1:{port}"
            listener = listener_at(stage, address, "t")
            peer, _ = impostor.accept()
            with peer:
                peer.sendall(FUTURE_GREETING)
                listener.heard.wait_link(Disconnected(address, ""))
        speaker = stage.publisher(driver_at(f"zmq://127.0.0.1:{port}"))
        listener.heard.wait_connected(address)
        listener.heard.wait_frame(speaker.send("t"))

    def test_plain_publishers_are_heard(self, stage: Stage, raw: RawSockets) -> None:
        publisher, address = raw.publisher()
        listener = listener_at(stage, address, "exact", "wild/#")
        while not publisher.recv().startswith(b"\x01" + SYNC):
            pass
        for name, payload in ((b"exact\0", b"1"), (b"exactly\0", b"no"), (b"wild/x", b"2"), (b"wild/y\0", b"")):
            publisher.send_multipart([name, payload])
        listener.heard.wait_until(lambda: len(listener.heard.foreign) == 3, "three foreign messages")
        assert listener.heard.foreign == [("exact", b"1"), ("wild/x", b"2"), ("wild/y", b"")]


class TestLife:
    def test_calls_out_of_order_are_refused(self, stage: Stage) -> None:
        speaker, listener = stage.unopened_publisher(), stage.driver.get_subscriber()
        with pytest.raises(UsageError):
            speaker.api.send("t", b"")
        with pytest.raises(UsageError):
            speaker.api.serve(speaker.echo())
        with pytest.raises(UsageError):
            listener.daemonize()
        speaker.api.close()
        with pytest.raises(Closed):
            speaker.api.initialize(speaker.reports.on_link)

    def test_a_publisher_can_be_closed_from_a_query(self, stage: Stage) -> None:
        speaker = stage.publisher()
        is_closed = threading.Event()

        def close(_: bytes) -> list[bytes]:
            speaker.api.close()
            is_closed.set()
            return []

        speaker.api.serve(close)
        listener = stage.subscriber("t")
        listener.ask()
        assert is_closed.wait(60)
        listener.heard.wait_link(Disconnected(speaker.address, ""))
        speaker.api.close()

    def test_a_stopped_subscriber_does_not_keep_a_publisher_from_closing(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("heliograph_drivers.pubsub.zmq.publisher.LINGER_S", 0.05)
        speaker = stage.publisher(driver_at(URL))
        with ChildProcess("subscriber", URL, speaker.address, "t") as child:
            child.receive()
            child.stop()
            for _ in range(100):
                speaker.send("t", 1_000_000)
            closing = threading.Thread(target=speaker.api.close)
            closing.start()
            closing.join(60)
            assert not closing.is_alive()

    def test_what_a_child_inherits_may_be_collected_there(self, stage: Stage) -> None:
        speaker = stage.publisher()
        speaker.api.serve(speaker.echo())
        listener = stage.subscriber("t")
        wait_routed(listener, [speaker])

        def forget() -> str:
            stage.speakers.clear()
            stage.listeners.clear()
            nonlocal speaker, listener
            del speaker, listener
            gc.collect()
            return "forgotten"

        assert in_forked_child(forget) == "forgotten"
        listener.heard.wait_frame(speaker.send("t"))
        assert listener.wait_answers(listener.ask(), 1)
