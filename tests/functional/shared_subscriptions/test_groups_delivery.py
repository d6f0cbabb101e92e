"""What a member's user sees: acknowledging, retries, dead letters, queues, lanes, and what operators can do."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import os
import pathlib
import socket
import sqlite3
import threading
import time

import msgspec
import pytest

import durable_log
import pubsub_api
from durable_log import LogApi
from pubsub_api.errors import Closed, Forked, InvalidTopic, UsageError
from pubsub_api.testing.fast_conf import fast_conf
from shared_subscriptions import GroupEvent, GroupExists, GroupNotFound, GroupSubscriber, config, groups
from shared_subscriptions.consuming.dead_letters import DeadLetters
from shared_subscriptions.consuming.dispatch import Dispatch
from shared_subscriptions.core.leading import candidate as candidates
from shared_subscriptions.errors import NotAGroupEvent
from shared_subscriptions.names import Names
from shared_subscriptions.sockets import MessageConnection
from tests.helpers.group_nodes import CALM, CALM_LEASE, Member, Source, disordered, duplicates, groups_conf
from tests.helpers.waiting import wait_until

SHARED = "$shared/billing/tenant-7/#"
QUEUE = "$queue/work/tenant-7/#"
TOPIC = "tenant-7/t"
PATIENCE_S = 60.0


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    return f"sqlite://{tmp_path}/log.db?shards=2"


def new_subscriber(url: str, topics: list[str], **arguments: object) -> GroupSubscriber:
    conf = groups_conf()
    log = durable_log.open(url, conf=conf)
    try:
        return GroupSubscriber(log, conf, topics, **arguments)  # type: ignore[arg-type]
    except BaseException:
        log.close()
        raise


def has_got(member: Member, wanted: set[tuple[str, int]]) -> bool:
    return wanted <= member.got()


def numbers(member: Member) -> list[int]:
    return [seen.number for seen in member.seen]


# -- acknowledging


def test_without_automatic_acknowledgement_one_event_of_a_key_is_out_at_a_time(url: str, source: Source) -> None:
    with Member(url, [SHARED], auto_ack=False, unsubscribe_timeout=0.1) as member:
        source.publish(TOPIC, 6, keys=2)
        wait_until(lambda: len(member.events) == 2, PATIENCE_S, "one event of each key")
        assert sorted(numbers(member)) == [1, 2]
        assert member.subscriber.acknowledge(member.events[0])
        wait_until(lambda: len(member.events) == 3, PATIENCE_S, "the next of that key")
        assert member.events[2].key == member.events[0].key
        assert not member.subscriber.acknowledge(member.events[0])
        assert member.subscriber.statistics().late == 1


def test_a_refused_event_comes_again_after_its_delay(url: str, source: Source) -> None:
    with Member(url, [SHARED], auto_ack=False, unsubscribe_timeout=0.1) as member:
        source.publish(TOPIC, 1)
        wait_until(lambda: len(member.events) == 1, PATIENCE_S, "the event")
        before = time.monotonic()
        member.subscriber.refuse(member.events[0], delay_s=0.3)
        wait_until(lambda: len(member.events) == 2, PATIENCE_S, "the event again")
        assert time.monotonic() - before >= 0.3
        assert member.events[1].attempt == 2
        assert member.subscriber.acknowledge(member.events[1])
        with pytest.raises(UsageError):
            member.subscriber.refuse(member.events[1], delay_s=-1)
        with pytest.raises(NotAGroupEvent):
            member.subscriber.acknowledge(pubsub_api.Event(table="", key="", action="set"))  # type: ignore[arg-type]


def test_iterating_acknowledges_when_the_next_event_is_asked_for(url: str, log: LogApi, source: Source) -> None:
    with new_subscriber(url, [SHARED]) as subscriber:
        source.publish(TOPIC, 10)
        seen = []
        for event in subscriber:
            seen.append(event.version)
            if len(seen) == 4:
                break
    with new_subscriber(url, [SHARED]) as subscriber:
        rest = []
        for event in subscriber:
            rest.append(event.version)
            if len(rest) == 7:
                break
    assert seen == [1, 2, 3, 4]
    assert rest == [4, 5, 6, 7, 8, 9, 10]  # the loop was left while it had 4


def test_iterating_ends_with_the_subscriber(url: str, source: Source) -> None:
    """Also one that was begun, and whose thread comes to it when it is closed already."""
    subscriber = new_subscriber(url, [SHARED])
    waiting, late = iter(subscriber), iter(subscriber)
    thread = threading.Thread(target=lambda: list(waiting))
    thread.start()
    subscriber.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert list(late) == []
    with pytest.raises(Closed):
        iter(subscriber)
    with pytest.raises(Closed):
        subscriber.subscribe("$shared/other/#")


# -- failing callbacks


def test_a_failing_event_is_tried_again_and_then_parked_while_other_keys_go_on(
    url: str, log: LogApi, source: Source
) -> None:
    with (
        Member(url, ["$shared/letters/dead-letter/#"]) as undertaker,
        Member(url, [SHARED], attempts_max=3) as member,
    ):
        member.failing = {(TOPIC, 2): 99}
        source.publish(TOPIC, 20, keys=5)
        wait_until(lambda: undertaker.events, PATIENCE_S, "a dead letter")
        wait_until(lambda: member.got() >= source.expected(), PATIENCE_S, "everything else")
        (letter,) = undertaker.events
        assert letter.topic == "dead-letter/billing"
        assert (letter.key, letter.value["value"], letter.value["attempts"]) == ("k2", 2, 3)
        assert letter.value["reason"] == "ValueError: event 2 cannot be handled"
        assert [seen.attempt for seen in member.seen if seen.number == 2] == [1, 2, 3]
        assert [seen.number for seen in member.seen if seen.key == "k2"] == [2, 2, 2, 7, 12, 17]
        assert duplicates([seen for seen in member.seen if seen.number != 2]) == []
        wait_until(lambda: groups.show(log, "billing").lag == 0, PATIENCE_S, "all of it done")
        statistics = member.subscriber.statistics()
        assert (statistics.dead_letters, statistics.failed, statistics.redelivered) == (1, 3, 2)


@pytest.mark.parametrize("raised", [ValueError, SystemExit, asyncio.CancelledError])
def test_an_event_whose_callback_ends_its_thread_comes_again(
    url: str, source: Source, raised: type[BaseException]
) -> None:
    conf = groups_conf()
    seen: list[int] = []

    def on_event(event: GroupEvent) -> None:
        seen.append(event.version)
        if len(seen) == 1:
            raise raised("the first of all")

    with GroupSubscriber(durable_log.open(url, conf=conf), conf, [SHARED], on_event=on_event) as subscriber:
        source.publish(TOPIC, 5, keys=5)
        wait_until(lambda: subscriber.statistics().acknowledged == 5, PATIENCE_S, "all of them done")
        assert subscriber.statistics().callback_errors == 1
    assert sorted(seen) == [1, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("raised", [ValueError, SystemExit, asyncio.CancelledError])
def test_a_batch_that_fails_is_taken_apart_until_the_guilty_event_is_found(
    url: str, source: Source, raised: type[BaseException]
) -> None:
    conf = groups_conf(attempts_max=2)
    calls: list[list[int]] = []

    def on_events(events: list[GroupEvent]) -> None:
        calls.append([event.version for event in events])
        if any(event.version == 5 for event in events):
            raise raised("five")

    subscriber = GroupSubscriber(durable_log.open(url, conf=conf), conf, [SHARED], on_events=on_events)  # type: ignore[arg-type]
    with subscriber:
        source.publish(TOPIC, 10, keys=10)
        wait_until(lambda: subscriber.statistics().dead_letters == 1, PATIENCE_S, "a dead letter")
        wait_until(lambda: subscriber.statistics().acknowledged == 9, PATIENCE_S, "the other nine")
    assert [5] in calls


def test_a_batch_that_is_being_settled_is_settled_by_nobody_else(
    url: str, log: LogApi, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its dead letter is written, in the middle of a batch, the member goes on reporting progress."""
    rounds: list[int] = []
    settle_done, park = Dispatch.settle_done, DeadLetters.park

    def settle_and_count(dispatch: Dispatch) -> None:
        settle_done(dispatch)
        rounds.append(len(rounds))

    def park_slowly(letters: DeadLetters, event: GroupEvent, reason: str) -> None:
        before = len(rounds)
        wait_until(lambda: len(rounds) > before + 1, PATIENCE_S, "a report of progress")
        park(letters, event, reason)

    monkeypatch.setattr(Dispatch, "settle_done", settle_and_count)
    monkeypatch.setattr(DeadLetters, "park", park_slowly)
    with Member(url, [SHARED], attempts_max=1, unsubscribe_timeout=0.1) as member:
        member.failing = {(TOPIC, 5): 1}
        source.publish(TOPIC, 10)
        wait_until(lambda: len(member.seen) == 10, PATIENCE_S, "all of it")
        wait_until(lambda: groups.show(log, "billing").lag == 0, PATIENCE_S, "all of it done")
        assert numbers(member) == list(range(1, 11))


@pytest.mark.parametrize("concurrency", [1, 4])
def test_keys_keep_their_order_under_failures(url: str, source: Source, concurrency: int) -> None:
    with Member(url, [SHARED], concurrency=concurrency, attempts_max=0, retry_delay=0.001) as member:
        member.failing = {(TOPIC, number): 3 for number in range(1, 200, 13)}
        source.publish(TOPIC, 200, keys=7, per_frame=50)
        wait_until(lambda: member.subscriber.statistics().acknowledged == 200, PATIENCE_S, "all of them done")
        for key in {seen.key for seen in member.seen}:
            order = [seen.number for seen in member.seen if seen.key == key]
            assert order == sorted(order)


def test_several_threads_handle_several_keys_at_once(url: str, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "BATCH_EVENTS_MAX", 1)
    together = threading.Barrier(3)
    conf = groups_conf(concurrency=3)

    def on_event(event: GroupEvent) -> None:
        together.wait(PATIENCE_S)

    subscriber = GroupSubscriber(durable_log.open(url, conf=conf), conf, [SHARED], on_event=on_event)
    with subscriber:
        source.publish(TOPIC, 9, keys=3)
        wait_until(lambda: subscriber.statistics().acknowledged == 9, PATIENCE_S, "three at a time")


# -- queues and lanes


def test_a_queue_delivers_each_event_once_to_somebody(url: str, source: Source) -> None:
    with Member(url, [QUEUE]) as one, Member(url, [QUEUE]) as two, Member(url, [QUEUE]) as three:
        for member in (one, two, three):
            member.subscriber.wait_ready(timeout_s=PATIENCE_S)
            member.gate.clear()
        source.publish(TOPIC, 2000, per_frame=100)
        wait_until(lambda: one.begun and two.begun and three.begun, PATIENCE_S, "some for everybody")
        for member in (one, two, three):
            member.gate.set()
        wait_until(lambda: len(one.got() | two.got() | three.got()) == 2000, PATIENCE_S, "all")
        source.publish(TOPIC, 2000, per_frame=100)
        wait_until(lambda: len(one.got() | two.got() | three.got()) == 4000, PATIENCE_S, "all")
        assert min(len(member.seen) for member in (one, two, three)) > 0
        assert not duplicates(one.seen, two.seen, three.seen)


def test_lanes_let_more_members_work_than_there_are_shards_and_keep_the_order_of_keys(url: str, source: Source) -> None:
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(Member(url, [SHARED], lanes=4)) for _ in range(4)]
        source.publish(TOPIC, 10)  # one topic, so one shard
        wait_until(lambda: [member.streams for member in members] == [1] * 4, PATIENCE_S, "a lane for each")
        source.publish(TOPIC, 1000, keys=50, per_frame=100)
        wait_until(lambda: set().union(*(m.got() for m in members)) == source.expected(), PATIENCE_S, "all")
        assert not duplicates(*(member.seen for member in members))
        assert sum(bool(member.seen) for member in members) > 1
        for member in members:
            assert not disordered(member.seen)


# -- members


def test_a_member_that_comes_back_under_its_name_gets_its_streams_back(tmp_path: pathlib.Path) -> None:
    url = f"sqlite://{tmp_path}/log.db?shards=12"
    with contextlib.closing(durable_log.open(url)) as log:
        source = Source(log)
        for number in range(200):
            source.publish(f"tenant-7/t{number}", 1)

        def held(name: str) -> list[int]:
            status = groups.show(log, "billing").status
            return next((one.streams for one in status.members if one.name == name), []) if status else []

        with Member(url, [SHARED], name="one"), Member(url, [SHARED], name="two"):
            with Member(url, [SHARED], name="three"):
                wait_until(lambda: len(held("three")) == len(held("one")) == 4, PATIENCE_S, "a third each")
                before = held("three")
            wait_until(lambda: len(held("one")) == len(held("two")) == 6, PATIENCE_S, "a half each")
            with Member(url, [SHARED], name="three"):
                wait_until(lambda: len(held("three")) == 4, PATIENCE_S, "a third again")
                assert held("three") == before


def test_a_group_has_one_filter_and_one_mode(url: str, log: LogApi) -> None:
    groups.declare(log, "billing", "tenant-7/#", lease=CALM_LEASE)
    for other in ("$shared/billing/tenant-8/#", "$queue/billing/tenant-7/#"):
        with pytest.raises(GroupExists, match=r"\$shared/billing/tenant-7/#"), new_subscriber(url, [other]):
            pass
    with pytest.raises(InvalidTopic), new_subscriber(url, ["tenant-7/#"]):
        pass
    with pytest.raises(UsageError), new_subscriber(url, []):
        pass


def test_a_stranger_without_the_key_is_not_listened_to(url: str, log: LogApi, source: Source) -> None:
    with Member(url, [SHARED]) as member:
        member.subscriber.wait_ready(timeout_s=PATIENCE_S)
        record = log.get_record(Names("billing").leader)
        assert record is not None
        endpoint = candidates.decode(record.value).endpoint
        stranger = MessageConnection.to(endpoint, b"k" * 32, bytes_max=1000)
        try:
            stranger.send(b"let me in")
            wait_until(lambda: stranger.flush() or not stranger.wants_to_write, PATIENCE_S, "it to be sent")
            wait_until(lambda: stranger.receive() or not stranger.is_open, PATIENCE_S, "the leader to hang up")
        finally:
            stranger.close()
        with socket.create_connection((endpoint.partition(":")[0], int(endpoint.rpartition(":")[2]))) as noise:
            noise.sendall(b"\xff" * 100)
            with contextlib.suppress(ConnectionResetError):  # hung up before it had read all of it
                assert noise.recv(1) == b""
        source.publish(TOPIC, 3)
        wait_until(lambda: len(member.seen) == 3, PATIENCE_S, "members are served all the same")


def test_a_crowd_of_strangers_costs_little_and_locks_no_member_out(url: str, log: LogApi, source: Source) -> None:
    with Member(url, [SHARED]) as member, contextlib.ExitStack() as crowd:
        member.subscriber.wait_ready(timeout_s=PATIENCE_S)
        record = log.get_record(Names("billing").leader)
        assert record is not None
        host, _, port = candidates.decode(record.value).endpoint.partition(":")
        door = member.subscriber._leaders.listening
        large = crowd.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_S))
        large.sendall((8 * 1024 * 1024).to_bytes(4, "big"))
        assert large.recv(1) == b"", "a stranger may not announce so much"
        idle = [crowd.enter_context(socket.create_connection((host, int(port)))) for _ in range(200)]
        wait_until(lambda: door.counters["strangers_turned_away"] >= 100, PATIENCE_S, "the oldest to make room")
        assert len(door.strangers) <= 64
        with Member(url, [SHARED]) as late:
            late.subscriber.wait_ready(timeout_s=PATIENCE_S)
            source.publish(TOPIC, 3)
            wait_until(lambda: len(member.seen) + len(late.seen) == 3, PATIENCE_S, "members are served all the same")
        wait_until(lambda: not door.strangers, PATIENCE_S, "the rest to have had its time")
        assert all(sock.fileno() >= 0 for sock in idle)


def test_what_retention_drops_is_counted(url: str, log: LogApi, source: Source) -> None:
    groups.declare(log, "billing", "tenant-7/#", lease=CALM_LEASE)
    source.publish(TOPIC, 100)
    shard = durable_log.shard_of(TOPIC, 2)
    log.trim(shard, 50)
    with Member(url, [SHARED]) as member:
        wait_until(lambda: len(member.seen) == 50, PATIENCE_S, "what is left")
        assert numbers(member) == list(range(51, 101))
        views = wait_until(
            lambda: [one for one in groups.show(log, "billing").streams if one.shard == shard and one.expired == 50],
            PATIENCE_S,
            "fifty counted",
        )
        assert [view.end for view in views] == [100]


# -- operators


def test_pause_keeps_events_back_and_resume_delivers_them(url: str, log: LogApi, source: Source) -> None:
    with Member(url, [SHARED]) as member:
        source.publish(TOPIC, 5)
        wait_until(lambda: len(member.seen) == 5, PATIENCE_S, "five")
        groups.pause(log, "billing")
        wait_until(lambda: member.streams == 0, PATIENCE_S, "all streams given back")
        source.publish(TOPIC, 5)
        assert groups.show(log, "billing").wish == "paused"
        assert len(member.seen) == 5
        groups.resume(log, "billing")
        wait_until(lambda: len(member.seen) == 10, PATIENCE_S, "ten")
        assert not duplicates(member.seen)


def test_drain_delivers_what_was_there_and_nothing_after_it(url: str, log: LogApi, source: Source) -> None:
    groups.declare(log, "billing", "tenant-7/#", lease=CALM_LEASE)
    source.publish(TOPIC, 50)
    groups.drain(log, "billing")
    assert not groups.show(log, "billing").is_drained
    source.publish(TOPIC, 50)
    with Member(url, [SHARED]) as member:
        wait_until(lambda: groups.show(log, "billing").is_drained, PATIENCE_S, "the drain")
        wait_until(lambda: member.streams == 0, PATIENCE_S, "nothing more to do")
        assert len(member.seen) == 50
        groups.resume(log, "billing")
        wait_until(lambda: len(member.seen) == 100, PATIENCE_S, "the rest")
        assert not duplicates(member.seen)


def test_seek_delivers_again_from_there(url: str, log: LogApi, source: Source) -> None:
    shard = durable_log.shard_of(TOPIC, 2)
    with Member(url, [SHARED]) as member:
        source.publish(TOPIC, 30)
        wait_until(lambda: len(member.seen) == 30, PATIENCE_S, "thirty")
        groups.seek(log, "billing", {shard: 10})
        wait_until(lambda: len(member.seen) == 50, PATIENCE_S, "twenty again")
        assert numbers(member)[30:] == list(range(11, 31))
        groups.seek(log, "billing", "earliest")
        wait_until(lambda: len(member.seen) == 80, PATIENCE_S, "all again")


def test_where_a_group_begins(log: LogApi, source: Source) -> None:
    source.publish(TOPIC, 10)
    shard = durable_log.shard_of(TOPIC, 2)
    before = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=1)
    starts: list[tuple[str, groups.Start, int]] = [
        ("a", "now", 10), ("b", "earliest", 0), ("c", before, 0), ("d", {shard: 4}, 4),
    ]  # fmt: skip
    for name, start, expected in starts:
        assert groups.declare(log, name, "#", start=start).positions[shard] == expected
    assert groups.names(log) == ["a", "b", "c", "d"]
    assert groups.declare(log, "a", "#", start="earliest").positions[shard] == 10, "declaring again moves nothing"
    assert groups.show(log, "b").lag == 10
    for bad in ({shard: 11}, {9: 0}, datetime.datetime(2026, 1, 1), "sometime"):
        with pytest.raises(UsageError):
            groups.positions(log, bad)  # type: ignore[arg-type]
    with pytest.raises(GroupNotFound):
        groups.pause(log, "nobody")


# -- on a bus


def bus_conf(bus: str, log: str, **options: object) -> object:
    conf = fast_conf(bus)
    conf.register_opts(durable_log.config.OPTIONS, group="log")
    conf.set_override("url", log, group="log")
    config.register(conf)
    for name, value in {**CALM, **options}.items():
        conf.set_override(name, value, group=config.GROUP)
    return conf


def test_a_session_makes_members_and_its_leader_records_the_bus(url: str, tmp_path: pathlib.Path) -> None:
    conf = bus_conf(f"memory://{tmp_path.name}", url)
    seen: list[int] = []
    with pubsub_api.open(conf=conf) as session:  # type: ignore[arg-type]
        publisher = session.publisher()
        with session.group(
            "billing", "tenant-7/#", lambda event: seen.append(event.version), member="one"
        ) as subscriber:
            subscriber.wait_ready(timeout_s=PATIENCE_S)
            for number in range(1, 101):
                publisher.send_event(
                    pubsub_api.Event(topic=TOPIC, table="t", key="k", action="set", value=number, version=number)
                )
            publisher.flush(timeout_s=PATIENCE_S)
            wait_until(lambda: len(seen) == 100, PATIENCE_S, "all of it")
            assert seen == list(range(1, 101))
            assert [role for role, _, _ in session.statistics()].count("member") == 1
        with pytest.raises(UsageError):
            session.subscriber([SHARED, "tenant-7/#"])
        with pytest.raises(UsageError):
            session.frames([SHARED], print)


def test_names_on_the_wire_are_those_of_the_specification() -> None:
    from shared_subscriptions.core import messages as m

    tags = {msgspec.inspect.type_info(kind).tag for kind in (*m.TO_LEADER, *m.TO_BORROWER)}  # type: ignore[attr-defined]
    assert tags == {
        "leader_wanted", "ping", "update_progress", "revoke_finished", "disconnect", "leader_connect_response",
        "ping_response", "grant", "revoke", "revoked", "invalidate",
    }  # fmt: skip


def test_streams_of_a_lost_log_connection_are_not_lost(url: str, source: Source) -> None:
    """A member whose lease ended begins anew and goes on where it was, without repeating what it had acknowledged."""
    with Member(url, [SHARED], member_lease=2.0) as member:
        source.publish(TOPIC, 10)
        wait_until(lambda: member.subscriber.statistics().acknowledged == 10, PATIENCE_S, "ten")
        handler = member.subscriber._handler
        with member.subscriber._lock:
            borrower = next(iter(handler.agent._borrowers.values()))
            borrower._lease_end = 0.0
        source.publish(TOPIC, 10)
        wait_until(lambda: len(member.got()) == 20, PATIENCE_S, "ten more")
        assert member.subscriber.statistics().links.resets >= 1  # more on a machine that stands still
        assert sorted(number for number in numbers(member) if number <= 10) == list(range(1, 11))


def test_a_damaged_frame_stops_the_stream_that_comes_to_it_and_no_other(tmp_path: pathlib.Path) -> None:
    url, shards = f"sqlite://{tmp_path}/damaged.db?shards=4", 4
    topics = [f"tenant-7/{number}" for number in range(16)]
    damaged = [topic for topic in topics if durable_log.shard_of(topic, shards) == 0]
    with contextlib.closing(durable_log.open(url)) as log:
        source = Source(log)
        groups.declare(log, "billing", "tenant-7/#", start="earliest", lease=CALM_LEASE)
        for topic in topics:
            source.publish(topic, 5)
        with contextlib.closing(sqlite3.connect(tmp_path / "damaged.db")) as store, store:
            store.execute("UPDATE frames SET frame = zeroblob(length(frame)) WHERE id = 0")
        store.close()
        with Member(url, [SHARED]) as member:
            for count in (5, 10):  # what is there, and what comes then
                wanted = {(topic, number) for topic in topics if topic not in damaged for number in range(1, count + 1)}
                wait_until(functools.partial(has_got, member, wanted), PATIENCE_S, "the others")
                for topic in topics:
                    source.publish(topic, 5)
            wait_until(lambda: member.subscriber.statistics().log.errors, PATIENCE_S, "the damage to be told")
            assert not {(damaged[0], number) for number in range(1, 6)} & member.got()


def test_a_forked_child_does_not_touch_the_member(url: str, source: Source) -> None:
    with Member(url, [SHARED]) as member:
        member.subscriber.wait_ready(timeout_s=PATIENCE_S)
        child = os.fork()
        if child == 0:
            try:
                member.subscriber.subscribe("$shared/other/#")
            except Forked:
                member.subscriber.close()
                os._exit(7)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        source.publish(TOPIC, 10)
        wait_until(lambda: len(member.seen) == 10, PATIENCE_S, "the parent goes on")
