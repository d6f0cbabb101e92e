"""The protocol between workers and publisher service, both sides: every message in every state, and both together."""

from __future__ import annotations

import dataclasses
import random

import msgpack
import pytest

from publisher_service.core import messages, service_side, worker_side
from publisher_service.core.messages import (
    Ack,
    MessageReader,
    RefusalMessage,
    Welcome,
    WorkerBatch,
    WorkerBye,
    WorkerHello,
)
from publisher_service.core.service_side import IntakeSettings, ServiceCore, TakenBatch, WorkerConnection
from publisher_service.core.worker_side import WorkerCore, WorkerSettings
from publisher_service.errors import MalformedMessage, UnexpectedMessage, WorkerProtocolError, WorkerRefused

GUID = b"w" * 16
SERVICE = b"s" * 16
ALL = (
    WorkerHello(1, GUID, 1, "name", 7, 2), Welcome(3, SERVICE, 1000, 2, "no"),
    WorkerBatch(1, [("a/b", [b"x", b"y"]), ("c", [b""])]), Ack(9, 1, "why"), WorkerBye(), RefusalMessage("no"),
)  # fmt: skip


def payload(message: object) -> bytes:
    return messages.encode(message)  # type: ignore[arg-type]


# -- messages


@pytest.mark.parametrize("message", ALL, ids=lambda message: type(message).__name__)
def test_a_message_is_plain_msgpack_behind_its_length(message: object) -> None:
    packed = messages.pack(message)  # type: ignore[arg-type]
    assert int.from_bytes(packed[:4], "big") == len(packed) - 4
    assert isinstance(msgpack.unpackb(packed[4:]), list)
    is_workers = isinstance(message, WorkerHello | WorkerBatch | WorkerBye)
    read = messages.read_from_worker if is_workers else messages.read_from_service
    other = messages.read_from_service if is_workers else messages.read_from_worker
    assert read(packed[4:]) == message
    with pytest.raises(MalformedMessage):
        other(packed[4:])


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_messages_are_cut_wherever_the_stream_was_cut(step: int) -> None:
    stream = b"".join(messages.pack(message) for message in ALL)
    inbox = MessageReader(1000)
    got = [part for at in range(0, len(stream), step) for part in inbox.feed(stream[at : at + step])]
    assert got == [payload(message) for message in ALL]
    assert inbox.waiting_bytes == 0


@pytest.mark.parametrize("size", [0, 1001, 2**32 - 1])
def test_a_length_out_of_bounds_is_refused_before_anything_is_held(size: int) -> None:
    inbox = MessageReader(1000)
    with pytest.raises(MalformedMessage, match="at most 1000 are accepted"):
        list(inbox.feed(size.to_bytes(4, "big")))
    assert inbox.waiting_bytes == 0


@pytest.mark.parametrize(
    "bad",
    [b"", b"\xc1", b"\x93", msgpack.packb([]), msgpack.packb([99]), msgpack.packb({}), msgpack.packb([3, "1", []]),
     msgpack.packb([3, 1, [["t", ["text"]]]]), msgpack.packb([1, 1, b"short", 1]), msgpack.packb([1, 1, GUID, 0]),
     b"\x91" * 5000, msgpack.packb([3, 1, []]) + b"x"],
)  # fmt: skip
def test_garbage_is_one_typed_error(bad: bytes) -> None:
    with pytest.raises(MalformedMessage):
        messages.read_from_worker(bad)


def test_random_bytes_never_raise_anything_else() -> None:
    dice = random.Random(1)
    for _ in range(3000):
        raw = bytearray(payload(dice.choice(ALL)))
        for _ in range(dice.randrange(1, 4)):
            raw[dice.randrange(len(raw))] = dice.randrange(256)
        for read in (messages.read_from_worker, messages.read_from_service):
            try:
                read(bytes(raw))
            except MalformedMessage:
                continue


@pytest.mark.parametrize("number", [0, 1, 127, 128, 2**32, messages.NUMBER_MAX])
def test_an_acknowledgement_without_refusals_is_the_same_message(number: int) -> None:
    packed = messages.pack_ack(number)
    assert int.from_bytes(packed[:4], "big") == len(packed) - 4
    assert messages.read_from_service(packed[4:]) == Ack(number)


# -- the worker's half


def make_worker(**settings: int) -> WorkerCore:
    return WorkerCore(WorkerSettings(**settings), guid=GUID, name="w", pid=1)


def worker_in(state: worker_side.WorkerState) -> WorkerCore:
    core = make_worker()
    if state is not worker_side.WorkerState.AWAY:
        core.connected()
    if state is worker_side.WorkerState.OPEN:
        core.receive(payload(Welcome(0, SERVICE, 1000)))
    return core


WORKER_ALLOWED = {(worker_side.WorkerState.GREETING, Welcome), (worker_side.WorkerState.OPEN, Ack)}


@pytest.mark.parametrize("state", worker_side.WorkerState)
@pytest.mark.parametrize(
    "message",
    [Welcome(0, SERVICE, 1000), Ack(0), RefusalMessage("no"), WorkerHello(1, GUID, 1), WorkerBye()],
    ids=lambda message: type(message).__name__,
)
def test_every_message_in_every_state_of_a_worker(state: worker_side.WorkerState, message: object) -> None:
    core = worker_in(state)
    if (state, type(message)) in WORKER_ALLOWED:
        core.receive(payload(message))
        assert core.state is worker_side.WorkerState.OPEN
    else:
        kind = {RefusalMessage: WorkerRefused, WorkerHello: MalformedMessage, WorkerBye: MalformedMessage}.get(
            type(message), UnexpectedMessage
        )
        with pytest.raises(kind):
            core.receive(payload(message))


def test_events_collect_into_batches_that_are_numbered_and_bounded() -> None:
    core = make_worker(batch_events_max=3, batch_bytes_max=100)
    core.connected()
    core.receive(payload(Welcome(0, SERVICE, 1000)))
    for number in range(7):
        core.add("ab"[number % 2], b"%d" % number)
        assert core.position == number + 1
    core.add("c", b"x" * 90)
    core.add("c", b"y" * 20)
    sent = []
    while (message := core.next_message()) is not None:
        sent.append(messages.read_from_worker(message[4:]))
    assert [(batch.number, batch.groups) for batch in sent if isinstance(batch, WorkerBatch)] == [
        (1, [("a", [b"0", b"2"]), ("b", [b"1"])]),
        (2, [("b", [b"3", b"5"]), ("a", [b"4"])]),
        (3, [("a", [b"6"]), ("c", [b"x" * 90])]),
        (4, [("c", [b"y" * 20])]),
    ]


def test_a_lone_event_is_written_and_others_wait_for_the_occasion() -> None:
    core = worker_in(worker_side.WorkerState.OPEN)
    assert core.add("a", b"1")
    assert core.next_message() is not None
    assert not core.add("a", b"2")
    core.receive(payload(Ack(1)))
    assert core.add("a", b"3"), "nothing is under way"


def test_in_a_flood_what_has_collected_waits_until_nothing_is_under_way() -> None:
    core = worker_in(worker_side.WorkerState.OPEN)
    for _ in range(2):
        core.add("a", b"full")
        assert core.next_message() is not None
    core.add("a", b"rest")
    core.receive(payload(Ack(1)))
    assert core.next_message(is_urgent=False) is None, "batch 2 is under way"
    core.receive(payload(Ack(2)))
    assert core.next_message(is_urgent=False) == messages.pack(WorkerBatch(3, [("a", [b"rest"])]))
    core.add("a", b"flushed")
    assert core.next_message() == messages.pack(WorkerBatch(4, [("a", [b"flushed"])])), "somebody waits for it"


@pytest.mark.parametrize("seed", range(20))
def test_events_that_are_appended_the_quick_way_make_the_same_batches(seed: int) -> None:
    dice = random.Random(seed)
    limits = {"window_events_max": 40, "window_bytes_max": 500, "batch_events_max": 7, "batch_bytes_max": 90}
    plain, quick = make_worker(**limits), make_worker(**limits)
    for core in (plain, quick):
        core.connected()
        core.receive(payload(Welcome(0, SERVICE, 1000)))
    sent, appended, acknowledged = 0, 0, 0
    for _ in range(300):
        if not plain.is_full:
            topic, encoded = dice.choice("ab"), b"x" * dice.randrange(1, 40)
            is_due = plain.add(topic, encoded)
            is_quick = (
                quick.position + 1 < quick.quick_position and quick.window_bytes + len(encoded) < quick.quick_bytes
            )
            if is_quick and topic in quick.open:
                assert not is_due, "nobody has to write now"
                quick.open[topic].append(encoded)
                quick.position += 1
                quick.window_bytes += len(encoded)
                appended += 1
            else:
                assert quick.add(topic, encoded) == is_due
        if dice.random() < 0.2:
            message = plain.next_message()
            assert quick.next_message() == message
            sent += message is not None
        if sent > acknowledged and dice.random() < 0.2:
            acknowledged += 1
            for core in (plain, quick):
                core.receive(payload(Ack(acknowledged)))
        assert (quick.position, quick.window_bytes, quick.is_full) == (
            plain.position,
            plain.window_bytes,
            plain.is_full,
        )
    assert appended > 20


def test_the_window_is_bounded_in_events_and_in_bytes() -> None:
    core = make_worker(window_events_max=2, window_bytes_max=100)
    core.add("a", b"1")
    assert not core.is_full
    core.add("a", b"2")
    assert core.is_full
    core = make_worker(window_events_max=10, window_bytes_max=100)
    core.add("a", b"x" * 100)
    assert core.is_full


def test_what_is_not_acknowledged_is_sent_again_and_the_rest_is_not() -> None:
    core = worker_in(worker_side.WorkerState.OPEN)
    for number in range(3):
        core.add("a", b"%d" % number)
        core.next_message()
    core.receive(payload(Ack(1)))
    assert (core.acknowledged, core.waiting, core.window_bytes) == (1, 2, 2)
    core.lost()
    core.add("a", b"new")
    assert core.next_message() is None, "there is no connection"
    hello = messages.read_from_worker(core.connected()[4:])
    assert isinstance(hello, WorkerHello)
    assert hello.first == 2
    assert core.next_message() is None, "the service has not said what it has"
    core.receive(payload(Welcome(2, SERVICE, 1000)))
    assert core.acknowledged == 2
    resent = [messages.read_from_worker(message[4:]) for message in iter(core.next_message, None)]
    assert [batch.number for batch in resent if isinstance(batch, WorkerBatch)] == [3, 4]
    assert core.counters.resent == 1


@pytest.mark.parametrize("number", [2, 3])
def test_an_acknowledgement_of_what_was_never_sent_is_refused(number: int) -> None:
    core = worker_in(worker_side.WorkerState.OPEN)
    core.add("a", b"1")
    core.next_message()
    core.add("a", b"2")
    core.seal()
    with pytest.raises(UnexpectedMessage):
        core.receive(payload(Ack(number)))
    core.lost()
    core.connected()
    with pytest.raises(UnexpectedMessage):
        core.receive(payload(Welcome(number, SERVICE, 1)))


# -- the service's half


def make_service(**settings: int) -> ServiceCore:
    return ServiceCore(IntakeSettings(**settings), guid=SERVICE)


def take(connection: WorkerConnection, *sent: object) -> list[TakenBatch]:
    return list(connection.feed(b"".join(messages.pack(message) for message in sent)))  # type: ignore[arg-type]


def said(connection: WorkerConnection) -> list[object]:
    out, connection.outgoing = connection.outgoing, b""
    return [messages.read_from_service(part) for part in MessageReader(10_000).feed(out)]


def connection_in(state: service_side.ConnectionState) -> WorkerConnection:
    connection = make_service().connect()
    if state is not service_side.ConnectionState.NEW:
        take(connection, WorkerHello(1, GUID, 1))
    if state is service_side.ConnectionState.ENDED:
        take(connection, WorkerBye())
    return connection


SERVICE_ALLOWED = {
    (service_side.ConnectionState.NEW, WorkerHello): service_side.ConnectionState.OPEN,
    (service_side.ConnectionState.OPEN, WorkerBatch): service_side.ConnectionState.OPEN,
    (service_side.ConnectionState.OPEN, WorkerBye): service_side.ConnectionState.ENDED,
}


@pytest.mark.parametrize("state", service_side.ConnectionState)
@pytest.mark.parametrize(
    "message",
    [WorkerHello(1, GUID, 1), WorkerBatch(1, [("a", [b"x"])]), WorkerBye(), Ack(1), RefusalMessage("no")],
    ids=lambda message: type(message).__name__,
)
def test_every_message_in_every_state_of_a_connection(state: service_side.ConnectionState, message: object) -> None:
    connection = connection_in(state)
    if (state, type(message)) in SERVICE_ALLOWED:
        take(connection, message)
        assert connection.state is SERVICE_ALLOWED[state, type(message)]
    else:
        with pytest.raises(WorkerProtocolError):
            take(connection, message)
        assert connection.state is service_side.ConnectionState.ENDED


def test_batches_are_taken_once_and_acknowledged_together() -> None:
    core = make_service()
    connection = core.connect()
    taken = take(connection, WorkerHello(1, GUID, 1), *(WorkerBatch(number, [("a", [b"x"])]) for number in (1, 2, 3)))
    assert [batch.number for batch in taken] == [1, 2, 3]
    assert messages.read_from_worker(taken[0].payload) == WorkerBatch(1, [("a", [b"x"])])
    assert said(connection) == [Welcome(0, SERVICE, core.settings.event_bytes_max, 0)]
    connection.refuse(2, "too large")
    connection.acknowledge()
    connection.acknowledge()
    assert said(connection) == [Ack(3, 2, "too large")]
    assert take(connection, WorkerBatch(2, [("a", [b"x"])]), WorkerBatch(4, [])) != []
    assert core.counters.duplicate_batches == 1
    connection.acknowledge()
    assert said(connection) == [Ack(4)]


def test_a_batch_that_comes_alone_is_taken_the_short_way_and_everything_else_is_left_to_be_fed() -> None:
    connection = connection_in(service_side.ConnectionState.OPEN)
    first, second = (messages.pack(WorkerBatch(number, [("a", [b"x"])])) for number in (1, 2))
    bad = b"\0\0\0\1\xc1"
    for data in (first + second, first[:-1], second, bad, messages.pack(WorkerBye()), b""):
        assert connection.take_lone(memoryview(data)) is None
    taken = connection.take_lone(memoryview(first))
    assert taken is not None
    assert (taken.number, taken.groups, bytes(taken.payload)) == (1, [("a", [b"x"])], first[4:])
    assert connection.take_lone(memoryview(first)) is None, "it was taken already"
    assert list(connection.feed(second[:5])) == []
    assert connection.take_lone(memoryview(second)) is None, "it would be in the middle of another message"
    assert [batch.number for batch in connection.feed(second[5:])] == [2]
    connection.acknowledge()
    assert said(connection)[-1] == Ack(2)


@pytest.mark.parametrize("number", [0, 3, 2**62])
def test_a_batch_that_does_not_follow_ends_the_connection(number: int) -> None:
    connection = connection_in(service_side.ConnectionState.OPEN)
    take(connection, WorkerBatch(1, []))
    with pytest.raises(UnexpectedMessage):
        take(connection, WorkerBatch(number, []))
    assert connection.worker is not None
    assert connection.worker.taken == 1


def test_a_worker_that_comes_back_is_told_what_was_taken() -> None:
    core = make_service()
    first = core.connect()
    take(first, WorkerHello(1, GUID, 1), WorkerBatch(1, []), WorkerBatch(2, []))
    second = core.connect()
    take(second, WorkerHello(1, GUID, 2))
    assert first.state is service_side.ConnectionState.ENDED, "a worker has one connection"
    assert core.connected == 1
    assert said(second) == [Welcome(2, SERVICE, core.settings.event_bytes_max, 0)]


def test_a_service_that_does_not_tell_what_it_refused_has_published_nothing() -> None:
    """One of an older release."""
    core = worker_in(worker_side.WorkerState.OPEN)
    for number in range(3):
        core.add("a", b"%d" % number)
    assert core.next_message() is not None
    core.lost()
    core.connected()
    core.receive(payload(Welcome(1, SERVICE, 1000)))
    assert (core.acknowledged, core.counters.refused_events) == (3, 3)
    assert core.counters.refused_reason


def test_a_worker_that_nobody_remembers_goes_on_where_it_is() -> None:
    connection = make_service().connect()
    taken = take(connection, WorkerHello(1, GUID, 41), WorkerBatch(41, []))
    assert [batch.number for batch in taken] == [41]


def test_a_worker_of_whom_too_little_is_remembered_goes_on_and_is_counted() -> None:
    core = ServiceCore(IntakeSettings(), guid=SERVICE, taken={GUID: 7})
    take(core.connect(), WorkerHello(1, GUID, 10), WorkerBatch(10, []))
    assert core.counters.unproven_batches == 2
    assert core.taken() == {GUID: 10}


def test_workers_are_refused_when_there_are_too_many_or_too_new() -> None:
    core = make_service(workers_max=1)
    take(core.connect(), WorkerHello(1, GUID, 1))
    for hello in (WorkerHello(1, b"x" * 16, 1), WorkerHello(2, b"y" * 16, 1)):
        refused = core.connect()
        take(refused, hello)
        assert refused.state is service_side.ConnectionState.ENDED
        assert isinstance(said(refused)[0], RefusalMessage)
    assert core.counters.refused_workers == 2
    take(core.connect(), WorkerHello(1, GUID, 1))  # the same worker again needs no further place
    assert core.connected == 1


def test_the_workers_heard_longest_ago_are_forgotten_and_connected_ones_never() -> None:
    core = make_service(remembered_max=2)
    staying = core.connect()
    take(staying, WorkerHello(1, GUID, 1))
    for number in range(5):
        passing = core.connect()
        take(passing, WorkerHello(1, bytes([number]) * 16, 1), WorkerBatch(1, []))
        passing.end()
    assert list(core.taken()) == [GUID, bytes([4]) * 16]
    assert core.counters.forgotten_workers == 4
    take(staying, WorkerBye())
    assert GUID not in core.taken()


# -- both together


@pytest.mark.parametrize("seed", range(20))
def test_whatever_breaks_each_event_is_taken_once_and_in_order_and_refusals_are_told(seed: int) -> None:
    """Connections break at any byte in either direction, and the service restarts with what it had journaled."""
    dice = random.Random(seed)
    client = make_worker(batch_events_max=4, window_events_max=40)
    core = make_service()
    taken: list[bytes] = []
    added = refused = 0
    while client.acknowledged < 300:
        if dice.random() < 0.1:
            core = ServiceCore(core.settings, guid=SERVICE, taken=core.taken(), refused={client.guid: refused})
        connection, inbox = core.connect(), MessageReader(1000)
        to_service = client.connected()
        for _ in range(dice.randrange(1, 12)):
            for _ in range(dice.randrange(6)):
                if not client.is_full and added < 300:
                    client.add(dice.choice("ab"), b"%d" % added)
                    added += 1
            to_service += b"".join(iter(client.next_message, None))
            cut = dice.randrange(len(to_service) + 1)
            for batch in connection.feed(to_service[:cut]):
                taken += sorted((event for _, group in batch.groups for event in group), key=int)
                if dice.random() < 0.2:
                    connection.refuse(1, "no room")
                    refused += 1
            to_service = to_service[cut:]
            connection.acknowledge()
            cut = dice.randrange(len(connection.outgoing) + 1)
            for part in inbox.feed(connection.outgoing[:cut]):
                client.receive(part)
            connection.outgoing = connection.outgoing[cut:]
        client.lost()
        connection.end()
    assert client.counters.refused_events == refused
    assert taken == [b"%d" % number for number in range(300)]
    assert dataclasses.asdict(core.counters)["unproven_batches"] == 0
