"""What is published reaches a group, whoever records it dies, and whoever publishes it ends at once."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import durable_log
import pubsub_api
from durable_log.log_api import LogApi
from durable_log.recording.recorder import Recorder
from durable_log.recording.standby_recorder import StandbyRecorder
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.sources import read_events
from durable_log.upkeep.verifying import verify
from pubsub_api.testing.fast_conf import fast_conf
from shared_subscriptions import GroupSubscriber, groups
from shared_subscriptions.core import declaration as declarations
from shared_subscriptions.leading import recording
from shared_subscriptions.leading.serving import GroupService
from shared_subscriptions.names import Names
from tests.helpers.bus_members import SHARED, BusMember, member_conf
from tests.helpers.group_nodes import CALM, Member
from tests.helpers.group_nodes import Source as GroupSource
from tests.helpers.servers import RedisServer, free_port
from tests.helpers.waiting import wait_until

TOPIC = "tenant-7/port"
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(params=["zmq", "longpoll", "redis"])
def bus_url(request: pytest.FixtureRequest, server: RedisServer) -> str:
    if request.param == "redis":
        return f"{server.address}?channel_prefix=t{uuid.uuid4().hex[:8]}:"
    return f"{request.param}://127.0.0.1:{free_port()}"


@pytest.fixture
def log_url(tmp_path: pathlib.Path) -> str:
    return f"sqlite://{tmp_path}/log.db?shards=2"


@pytest.fixture
def log(log_url: str) -> Iterator[LogApi]:
    with contextlib.closing(durable_log.open(log_url)) as log:
        yield log


def versions(log: LogApi) -> list[int]:
    return [one.event.version for one in read_events(log) if one.event.topic == TOPIC]


def send(publisher: pubsub_api.Publisher, first: int, last: int) -> None:
    publisher.send_events([
        pubsub_api.Event(topic=TOPIC, table="t", key=f"k{number % 7}", action="set", value=number, version=number)
        for number in range(first, last + 1)
    ])  # fmt: skip
    publisher.flush(timeout_s=PATIENCE_S)


@contextlib.contextmanager
def member(bus_url: str, log_url: str, seen: list[int], **options: float) -> Iterator[GroupSubscriber]:
    with (
        pubsub_api.open(conf=member_conf(bus_url, log_url, **options)) as session,
        session.subscriber([SHARED], lambda event: seen.append(event.version)) as subscriber,
    ):
        assert isinstance(subscriber, GroupSubscriber)
        yield subscriber


def test_a_leader_that_is_killed_while_a_publisher_ends_takes_nothing_with_it(
    bus_url: str, log_url: str, log: LogApi
) -> None:
    """The publisher's cache is gone before anybody notices that the leader is."""
    seen: list[int] = []
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(pubsub_api.open(conf=fast_conf(bus_url)))
        publisher = session.publisher()
        leader = stack.enter_context(BusMember(bus_url, log_url))
        wait_until(lambda: leader.statistics()["is_leading"], PATIENCE_S, "the first to lead")
        survivor = stack.enter_context(member(bus_url, log_url, seen))
        wait_until(lambda: survivor.statistics().standing_by, PATIENCE_S, "a standby")
        assert survivor._recording is not None
        for standby in list(survivor._recording._standbys.values()):
            standby.wait_ready(PATIENCE_S)
        send(publisher, 1, 300)
        wait_until(lambda: len(versions(log)) == 300, PATIENCE_S, "the leader to record")
        leader.kill()
        send(publisher, 301, 900)
        session.close()
        wait_until(lambda: survivor.statistics().is_leading, PATIENCE_S, "another leader")
        wait_until(lambda: len(versions(log)) >= 900, PATIENCE_S, "what was published meanwhile")
        assert sorted(versions(log)) == list(range(1, 901)), "each event is in the log, once"
        wait_until(lambda: set(seen) >= set(range(301, 901)), PATIENCE_S, "its delivery")
        assert survivor.statistics().standing_by == 0


@pytest.mark.parametrize("bus_url", ["zmq"], indirect=True)
def test_a_standby_hears_until_somebody_leads_also_when_its_own_lease_has_ended(
    bus_url: str, log_url: str, log: LogApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stands by is a member, too, whose lease ends with its leader, and long before another one leads."""
    monkeypatch.setattr("shared_subscriptions.config.CLAIM_LEASES", 8.0)
    leases = {"member_lease": 1.0}
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(pubsub_api.open(conf=fast_conf(bus_url)))
        publisher = session.publisher()
        leader = stack.enter_context(BusMember(bus_url, log_url, **leases))
        wait_until(lambda: leader.statistics()["is_leading"], PATIENCE_S, "the first to lead")
        survivor = stack.enter_context(member(bus_url, log_url, [], **leases))
        wait_until(lambda: survivor.statistics().standing_by, PATIENCE_S, "a standby")
        survivor.wait_ready(timeout_s=PATIENCE_S)
        send(publisher, 1, 10)
        wait_until(lambda: len(versions(log)) == 10, PATIENCE_S, "the leader to record")
        leader.kill()
        wait_until(lambda: survivor.statistics().links.resets, PATIENCE_S, "the lease to end")
        ended_at = time.monotonic()
        wait_until(lambda: time.monotonic() - ended_at > 1.0, PATIENCE_S, "looks at who leads")
        send(publisher, 11, 300)
        session.close()
        wait_until(lambda: len(versions(log)) >= 300, PATIENCE_S, "what was published while nobody led")
        assert sorted(versions(log)) == list(range(1, 301))


def test_a_standby_keeps_no_more_than_it_may(tmp_path: pathlib.Path, log: LogApi) -> None:
    with pubsub_api.open(f"memory://{tmp_path.name}") as session:
        publisher = session.publisher()
        with StandbyRecorder(session, log, ["#"], age_max_s=3600, bytes_max=20_000) as standby:
            standby.wait_ready(PATIENCE_S)
            for first in range(1, 2000, 100):
                send(publisher, first, first + 99)
                wait_until(lambda: standby.kept_bytes, PATIENCE_S, "something to be kept")
                assert standby.kept_bytes <= 20_000
            wait_until(lambda: standby.dropped, PATIENCE_S, "the oldest to go")
            assert versions(log) == [], "while all is well it does not touch the log"
            kept = wait_until(standby.flush, PATIENCE_S, "an append")
            assert versions(log)[:kept] == sorted(versions(log)[:kept])


def test_another_than_the_standby_leads_and_the_standby_still_appends(
    log_url: str, log: LogApi, server: RedisServer
) -> None:
    """Of three, the leader is killed; whoever of the other two leads then, what only the standby heard is recorded."""
    bus_url = f"{server.address}?channel_prefix=t{uuid.uuid4().hex[:8]}:"
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(pubsub_api.open(conf=fast_conf(bus_url)))
        publisher = session.publisher()
        leader = stack.enter_context(BusMember(bus_url, log_url))
        wait_until(lambda: leader.statistics()["is_leading"], PATIENCE_S, "the first to lead")
        others = [stack.enter_context(member(bus_url, log_url, [])) for _ in range(2)]
        wait_until(lambda: sum(one.statistics().standing_by for one in others) == 1, PATIENCE_S, "one standby")
        for one in others:
            one.wait_ready(timeout_s=PATIENCE_S)
        leader.kill()
        send(publisher, 1, 300)
        session.close()
        wait_until(lambda: len(versions(log)) >= 300, PATIENCE_S, "what was published meanwhile")
        assert sorted(versions(log)) == list(range(1, 301))


@pytest.mark.parametrize("follower", ["itself", "another"])
def test_a_standby_hears_until_whoever_leads_next_records(
    monkeypatch: pytest.MonkeyPatch, log_url: str, log: LogApi, follower: str
) -> None:
    """The leader resigns, and what the next one records with takes its time; a publisher comes and goes meanwhile."""
    bus_url = f"memory://{uuid.uuid4().hex}"
    may_record, is_asked = threading.Event(), threading.Event()

    def slow_recorder(*arguments: Any, **named: Any) -> Recorder:
        is_asked.set()
        may_record.wait(2 * PATIENCE_S)
        return Recorder(*arguments, **named)

    with contextlib.ExitStack() as stack:
        leaving = contextlib.ExitStack()
        leader = stack.enter_context(leaving).enter_context(member(bus_url, log_url, [], **CALM))
        wait_until(lambda: leader.statistics().is_leading, PATIENCE_S, "the first to lead")
        standing = stack.enter_context(member(bus_url, log_url, [], **CALM))
        wait_until(lambda: standing.statistics().standing_by, PATIENCE_S, "a standby")
        standing.wait_ready(timeout_s=PATIENCE_S)
        if follower == "another":
            candidate = standing._memberships.groups["billing"].leading.candidate
            monkeypatch.setattr(candidate, "wants_to_claim", lambda _now: False)
            stack.enter_context(member(bus_url, log_url, [], **CALM)).wait_ready(timeout_s=PATIENCE_S)
        assert standing._recording is not None
        (standby,) = standing._recording._standbys.values()
        monkeypatch.setattr(recording, "Recorder", slow_recorder)
        leaving.close()
        assert is_asked.wait(PATIENCE_S)
        with pubsub_api.open(conf=fast_conf(bus_url)) as session:
            send(session.publisher(), 1, 100)
            wait_until(lambda: standby.kept_bytes or len(versions(log)) == 100, PATIENCE_S, "the standby to hear it")
        may_record.set()
        wait_until(lambda: versions(log) == list(range(1, 101)), PATIENCE_S, "what was published meanwhile")
        if follower == "itself":
            wait_until(lambda: not standing.statistics().standing_by, PATIENCE_S, "the standby to go")


@pytest.mark.parametrize("driver", ["zmq", "longpoll"])
def test_a_group_is_ready_whether_or_not_there_is_a_publisher(driver: str, log_url: str, log: LogApi) -> None:
    bus_url = f"{driver}://127.0.0.1:{free_port()}"
    seen: list[int] = []
    with member(bus_url, log_url, seen) as subscriber:
        subscriber.wait_ready(timeout_s=PATIENCE_S)
        assert subscriber.statistics().is_leading == 1
        with pubsub_api.open(conf=fast_conf(bus_url)) as session:
            send(session.publisher(), 1, 20)
            wait_until(lambda: len(seen) == 20, PATIENCE_S, "what is published after that")


@pytest.mark.parametrize("driver", ["zmq", "longpoll", "redis", "zenoh"])
def test_the_first_events_of_a_publisher_that_starts_again_reach_the_group(
    driver: str, log_url: str, log: LogApi, server: RedisServer
) -> None:
    bus_url = f"{driver}://127.0.0.1:{free_port()}"
    if driver == "redis":
        bus_url = f"{server.address}?channel_prefix=t{uuid.uuid4().hex[:8]}:"
    seen: list[int] = []
    with member(bus_url, log_url, seen, **CALM) as subscriber:
        wait_until(lambda: subscriber.statistics().is_leading, PATIENCE_S, "a leader")
        for life in range(3):
            with pubsub_api.open(conf=fast_conf(bus_url)) as session:
                send(session.publisher(), 500 * life + 1, 500 * life + 500)  # nobody waits for a link
                wait_until(lambda: len(versions(log)) >= 500 * life + 500, PATIENCE_S, f"life {life}")  # noqa: B023
        wait_until(lambda: len(seen) >= 1500, PATIENCE_S, "the group to get it")
    assert sorted(versions(log)) == list(range(1, 1501))
    assert sorted(seen) == list(range(1, 1501))


def test_a_group_passes_over_a_damaged_frame_when_it_is_given_up(
    log_url: str, log: LogApi, tmp_path: pathlib.Path
) -> None:
    """Also when it is the last one of its shard."""
    assert isinstance(log, SegmentedLog)
    groups.declare(log, "billing", "tenant-7/#")
    source = GroupSource(log)
    source.publish(TOPIC, 30, per_frame=10)
    shard = durable_log.shard_of(TOPIC, log.shards)
    with contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as connection, connection:
        connection.execute("UPDATE frames SET skipped = 1 WHERE id = (SELECT max(id) FROM frames)")
    with Member(log_url, [SHARED]) as member:
        wait_until(lambda: member.subscriber.statistics().log.errors, PATIENCE_S, "the damage to be told")
        wait_until(lambda: len(member.got()) == 20, PATIENCE_S, "what comes before it")
        Sealer(log).seal(shard, 20)
        assert Sealer(log).seal(shard, gives_up=True)[0].rows == 0
        wait_until(lambda: groups.show(log, "billing").lag == 0, PATIENCE_S, "the group to go on")
        source.publish(TOPIC, 10)
        wait_until(lambda: (TOPIC, 40) in member.got(), PATIENCE_S, "what comes after it")
    assert verify(log).problems == []


def test_a_group_that_is_declared_anew_is_served_by_who_served_its_name(log: LogApi) -> None:
    groups.declare(log, "billing", "tenant-7/#")
    with (
        pubsub_api.open(conf=fast_conf(f"memory://{uuid.uuid4().hex}")) as session,
        session.publisher() as publisher,
        GroupService(session, log, "billing") as service,
    ):
        wait_until(lambda: service.is_leading, PATIENCE_S, "the service to lead")
        groups.destroy(log, "billing")
        groups.declare(log, "billing", "tenant-7/#")
        wait_until(lambda: groups.show(log, "billing").leader, PATIENCE_S, "a leader of the new group")
        send(publisher, 1, 10)
        wait_until(lambda: versions(log) == list(range(1, 11)), PATIENCE_S, "what was published for the new group")


@pytest.mark.parametrize("ahead_s", [0, 3600])
def test_what_is_published_between_two_leaders_is_recorded_whatever_the_clock_of_who_declared_it_says(
    log: LogApi, ahead_s: int
) -> None:
    groups.declare(log, "billing", "tenant-7/#")
    with pubsub_api.open(conf=fast_conf(f"memory://{uuid.uuid4().hex}")) as session, session.publisher() as publisher:
        with GroupService(session, log, "billing") as service:
            wait_until(lambda: service.is_leading, PATIENCE_S, "the service to lead")
            send(publisher, 1, 1)
            wait_until(lambda: versions(log) == [1], PATIENCE_S, "the first event")
        send(publisher, 2, 50)
        record = log.get_record(Names("billing").group)
        assert record is not None
        declared_ns = time.time_ns() + ahead_s * 10**9
        declaration = msgspec.structs.replace(declarations.decode(record.value), declared_ns=declared_ns)
        log.put_records([(Names("billing").group, declarations.encode(declaration), record.version)])
        with GroupService(session, log, "billing"):
            wait_until(lambda: versions(log) == list(range(1, 51)), PATIENCE_S, "what was published meanwhile")
