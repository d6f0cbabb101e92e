"""What strangers can cost a ZeroMQ publisher: each its share and no more; who stays within it notices nothing."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

import pytest
import zmq

import pubsub_api
from pubsub_api.testing.conformance.stage import Speaker, Stage, wait_routed
from pubsub_api.testing.frames import Frames
from tests.helpers.waiting import wait_until
from tests.helpers.zmq_tools import SYNC, URL, RawPeer, RawSockets, driver_at, open_stage

WAIT_S = 60.0
SHARE = 65_536
FLOOD_BYTES = 8 * SHARE
SMALL = f"{URL}?peers_bytes_max={4 * SHARE}"
SUBSCRIBE = b"\x01"


@pytest.fixture(autouse=True)
def four_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """One peer may cost a fourth of what all may."""
    monkeypatch.setattr("heliograph_drivers.pubsub.zmq.options.PEERS_PER_BOUND", 4)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with open_stage(SMALL) as stage:
        yield stage


@pytest.fixture
def speaker(stage: Stage) -> Speaker:
    return stage.publisher(driver_at(SMALL))


@pytest.fixture
def raw() -> Iterator[RawSockets]:
    with contextlib.closing(RawSockets()) as raw:
        yield raw


@pytest.fixture
def peers() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def connect(peers: contextlib.ExitStack, address: str, kind: bytes) -> RawPeer:
    return peers.enter_context(contextlib.closing(RawPeer(address, kind)))


def send(peer: RawPeer, data: bytes) -> None:
    """Send until everything is sent or the other end has had enough."""
    with contextlib.suppress(ConnectionError):
        peer.send_raw(data)


def flood(peer: RawPeer, data: bytes) -> None:
    """Send, and then see the other end close the connection."""
    send(peer, data)
    peer.wait_cut()


def check_alive(stage: Stage, speaker: Speaker) -> None:
    """Somebody else gets frames and answers."""
    friend = stage.subscriber("t", to=[speaker])
    friend.heard.wait_frame(speaker.send("t"))


def cuts(speaker: Speaker) -> int:
    return speaker.api.counters["connections_cut"]


@pytest.mark.parametrize("size", [0, 200])
def test_a_message_without_end_on_the_socket_for_frames_is_cut(
    stage: Stage, speaker: Speaker, peers: contextlib.ExitStack, size: int
) -> None:
    part = RawPeer.part(b"p" * size, more=True)
    flood(connect(peers, speaker.address, b"SUB"), part * (FLOOD_BYTES // len(part)))
    wait_until(lambda: cuts(speaker) == 1, WAIT_S, "the cut to be counted")
    check_alive(stage, speaker)


@pytest.mark.parametrize("size", [0, 200])
def test_a_message_without_end_on_the_socket_for_questions_is_cut(
    stage: Stage, speaker: Speaker, raw: RawSockets, peers: contextlib.ExitStack, size: int
) -> None:
    speaker.api.serve(speaker.echo())
    part = RawPeer.part(b"p" * size, more=True)
    flood(connect(peers, raw.query_address(speaker), b"DEALER"), part * (FLOOD_BYTES // len(part)))
    wait_until(lambda: cuts(speaker) == 1, WAIT_S, "the cut to be counted")
    check_alive(stage, speaker)


def test_subscriptions_beyond_the_share_of_a_connection_are_cut(
    stage: Stage, speaker: Speaker, peers: contextlib.ExitStack
) -> None:
    filters = b"".join(RawPeer.part(SUBSCRIBE + os.urandom(200)) for _ in range(FLOOD_BYTES // 200))
    flood(connect(peers, speaker.address, b"SUB"), filters)
    wait_until(lambda: cuts(speaker) == 1, WAIT_S, "the cut to be counted")
    check_alive(stage, speaker)


def test_many_connections_that_each_stay_within_their_share_are_cut_when_they_exceed_that_of_all(
    stage: Stage, speaker: Speaker, peers: contextlib.ExitStack
) -> None:
    part = RawPeer.part(b"p" * 200, more=True)
    for _ in range(8):
        send(connect(peers, speaker.address, b"SUB"), part * (SHARE * 3 // 4 // len(part)))
    wait_until(lambda: cuts(speaker) >= 2, WAIT_S, "some to be cut")
    check_alive(stage, speaker)
    assert cuts(speaker) < 8


def test_a_subscriber_with_as_many_filters_as_fit_is_left_alone(stage: Stage, speaker: Speaker) -> None:
    filters = [f"topic-{number:04}/x" for number in range(1000)]
    listener = stage.subscriber(*filters, to=[speaker])
    listener.heard.wait_frame(speaker.send(filters[-1]))
    other = stage.subscriber(*filters, to=[speaker])
    other.heard.wait_frame(speaker.send(filters[0]))
    assert cuts(speaker) == 0


def test_questions_are_no_cost_once_they_are_read(stage: Stage, speaker: Speaker, raw: RawSockets) -> None:
    speaker.api.serve(speaker.echo())
    listener = stage.subscriber("t", to=[speaker])
    wait_routed(listener, [speaker])
    asker = raw.socket(zmq.DEALER)
    asker.connect(raw.query_address(speaker))
    garbage = b"g" * 1000
    at_once = SHARE // 2 // len(garbage)  # who has sent more than its share before any of it was read is cut
    for count in range(at_once, 8 * at_once + 1, at_once):
        for _ in range(at_once):
            asker.send(garbage)
        wait_until(lambda: speaker.api.counters["not_queries"] == count, WAIT_S, "garbage to be read")  # noqa: B023
    number = listener.ask()
    listener.wait_answers(number, 1)
    assert cuts(speaker) == 0


def test_messages_of_many_parts_are_read_to_their_end_and_what_follows_is_understood(
    stage: Stage, speaker: Speaker, raw: RawSockets
) -> None:
    speaker.api.serve(speaker.echo())
    listener = stage.subscriber("t", to=[speaker])
    wait_routed(listener, [speaker])
    asker, subscriber = raw.socket(zmq.DEALER), raw.socket(zmq.XSUB)
    asker.connect(raw.query_address(speaker))
    subscriber.connect(speaker.address)
    _, question = listener.new_query()
    parts = [b""] * 1000
    subscriber.send_multipart([b"x", *parts, SUBSCRIBE + SYNC + bytes(16)])
    subscriber.send(SUBSCRIBE + SYNC + b"n" * 16)
    asker.send_multipart([question, *parts])
    asker.send(question)
    assert len(asker.recv_multipart()) == 1
    topic, _echo = subscriber.recv_multipart()
    assert topic == SYNC + b"n" * 16
    assert speaker.api.counters["not_queries"] == 1


def test_garbage_questions_are_counted_one_by_one_and_logged_once(
    raw: RawSockets, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages that are no questions, and questions that cannot be decoded."""
    with pubsub_api.open(URL) as session:
        publisher = session.publisher()
        address = raw.query_address(publisher)
        asker = raw.socket(zmq.DEALER)
        asker.connect(address)
        for _ in range(50):
            asker.send(b"garbage")
            asker.send(Frames().data("t", 40))
        wait_until(lambda: publisher.statistics().driver["not_queries"] == 50, WAIT_S, "messages that are none")
        wait_until(lambda: publisher.statistics().questions.bad_queries == 50, WAIT_S, "questions that are none")
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 2


def test_answers_that_nobody_reads_are_not_made(
    stage: Stage, speaker: Speaker, raw: RawSockets, peers: contextlib.ExitStack
) -> None:
    made = []

    def handler(query: bytes) -> Iterator[bytes]:
        for part in range(100):
            made.append(part)
            yield speaker.frames.reply(query, part, SHARE // 8)

    speaker.api.serve(handler)
    address = raw.query_address(speaker)
    _, question = stage.subscriber("t", to=[speaker]).new_query()
    peer = connect(peers, address, b"DEALER")
    for _ in range(200):
        peer.send(question)
    wait_until(lambda: speaker.api.counters["replies_dropped"] > 0, WAIT_S, "more questions than may wait")
    # What the system itself takes for a connection is not ours to count, some megabytes at most.
    assert len(made) * SHARE // 8 < 200 * 100 * SHARE // 8 / 4


def test_who_sends_and_does_not_read_its_answers_is_cut(
    stage: Stage, raw: RawSockets, peers: contextlib.ExitStack
) -> None:
    speaker = stage.publisher(driver_at(f"{SMALL}&link_timeout=1.0"))
    speaker.api.serve(speaker.echo(parts=1000, size=SHARE // 4))
    _, question = stage.subscriber("t", to=[speaker]).new_query()
    address = raw.query_address(speaker)
    peer = connect(peers, address, b"DEALER")
    peer.send(question)

    def is_cut() -> bool:
        nonlocal peer
        try:
            peer.send(b"I am alive")  # so that heartbeats do not end the connection
        except ConnectionError:
            peer = connect(peers, address, b"DEALER")  # unless this came too late
            peer.send(question)
        return cuts(speaker) > 0

    wait_until(is_cut, WAIT_S, "the one who reads nothing to be cut")


def test_an_answer_much_larger_than_the_share_arrives_whole(stage: Stage, speaker: Speaker) -> None:
    parts = 100
    speaker.api.serve(speaker.echo(parts=parts, size=SHARE // 4))
    listener = stage.subscriber("t", to=[speaker])
    wait_routed(listener, [speaker])
    number = listener.ask()
    assert [part for _, part in listener.wait_answers(number, parts)] == list(range(parts))
    assert speaker.api.counters["replies_dropped"] == cuts(speaker) == 0
