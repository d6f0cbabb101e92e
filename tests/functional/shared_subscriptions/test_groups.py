"""The acceptance scenarios of shared subscriptions, with real members on real logs."""

from __future__ import annotations

import contextlib
import pathlib
import threading
import time
import uuid
from collections.abc import Iterator

import pytest
import redis

from durable_log import LogApi
from pubsub_api import HistoryOutcome
from pubsub_api.errors import WaitTimeout
from shared_subscriptions import GroupDestroyed, config, groups
from tests.helpers.group_nodes import (
    CALM_LEASE,
    HASTY,
    HASTY_LEASE,
    Member,
    MemberProcess,
    Source,
    disordered,
    duplicates,
)
from tests.helpers.servers import RedisServer
from tests.helpers.servers_db import PostgresServer
from tests.helpers.waiting import wait_until

SHARDS = 4
SHARED = "$shared/billing/tenant-7/#"
TOPICS = [f"tenant-7/t{number}" for number in range(8)]
PATIENCE_S = 60.0


EVERY_LOG = pytest.mark.parametrize("url", ["sqlite", "redis", "postgres"], indirect=True)
"""For what shows that groups work on a log; the other scenarios are the groups' own."""


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/log.db?shards={SHARDS}"
    if request.param == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        return f"{postgres.new_schema()}&shards={SHARDS}&segment_directory={tmp_path}"
    server = request.getfixturevalue("redis_server")
    prefix = uuid.uuid4().hex[:8]
    return f"{server.address}?key_prefix={prefix}:&shards={SHARDS}&segment_directory={tmp_path}"


def publish_everywhere(source: Source, count: int = 10) -> None:
    for topic in TOPICS:
        source.publish(topic, count)


def wait_for_all(source: Source, *members: Member | MemberProcess, earlier: set[tuple[str, int]] = frozenset()) -> None:  # type: ignore[assignment]
    """Until everything that was published has been seen by somebody."""
    wait_until(
        lambda: source.expected() <= earlier.union(*(member.got() for member in members)),
        PATIENCE_S,
        "everything to be delivered",
    )


def is_balanced(total: int, *members: Member) -> bool:
    counts = [member.streams for member in members]
    return sum(counts) == total and max(counts) - min(counts) <= 1


# -- the scenarios, in their order


@EVERY_LOG
def test_a_single_member_gets_what_comes_before_and_after(url: str, source: Source) -> None:
    with Member(url, [SHARED]) as member:
        publish_everywhere(source)
        wait_for_all(source, member)
        publish_everywhere(source)
        wait_for_all(source, member)
        assert not duplicates(member.seen)
        assert not disordered(member.seen)
        assert member.subscriber.wait_for_historical_data(0) is HistoryOutcome.COMPLETE
        assert not member.subscriber.durability_mismatches()


def test_a_declared_group_keeps_events_without_members(url: str, log: LogApi, source: Source) -> None:
    source.publish(TOPICS[0], 5)
    groups.declare(log, "billing", "tenant-7/#", lease=CALM_LEASE)
    before = source.expected()
    publish_everywhere(source)
    source.publish("elsewhere/t", 10)
    wanted = source.expected(TOPICS) - before
    with Member(url, [SHARED]) as member:
        wait_until(lambda: member.got() >= wanted, PATIENCE_S, "what was kept")
        assert member.got() == wanted


def test_destroying_a_group_ends_its_members(url: str, log: LogApi, source: Source) -> None:
    with Member(url, [SHARED]) as one, Member(url, [SHARED]) as two:
        publish_everywhere(source)
        wait_for_all(source, one, two)
        groups.destroy(log, "billing")
        for member in (one, two):
            with pytest.raises(GroupDestroyed):
                member.subscriber.wait_streams(1000, timeout_s=PATIENCE_S)
        wait_until(lambda: one.streams == two.streams == 0, PATIENCE_S, "the members to let go")
        seen = len(one.seen) + len(two.seen)
        publish_everywhere(source)
        assert len(one.seen) + len(two.seen) == seen
        assert log.list_records("group/") == []


def test_a_group_that_is_destroyed_and_declared_anew_is_another_one(url: str, log: LogApi, source: Source) -> None:
    """Members of the first get nothing of the second, whose members get what comes from then on, and nothing else."""
    with Member(url, [SHARED]) as one, Member(url, [SHARED]) as two:
        publish_everywhere(source)
        wait_for_all(source, one, two)
        groups.destroy(log, "billing")
        groups.declare(log, "billing", "tenant-8/#", lease=CALM_LEASE)
        for member in (one, two):
            with pytest.raises(GroupDestroyed):
                member.subscriber.wait_streams(1000, timeout_s=PATIENCE_S)
            with pytest.raises(GroupDestroyed, match="make a new one"):
                member.subscriber.subscribe("$shared/billing/tenant-8/#")
        wait_until(lambda: one.streams == two.streams == 0, PATIENCE_S, "the members to let go")
        seen = len(one.seen) + len(two.seen)
        source.publish("tenant-8/t", 10)
        publish_everywhere(source)
        with Member(url, ["$shared/billing/tenant-8/#"]) as new:
            wait_until(lambda: new.got() >= source.expected(["tenant-8/t"]), PATIENCE_S, "the new filter's events")
            assert new.got() == source.expected(["tenant-8/t"])
        assert len(one.seen) + len(two.seen) == seen


def test_a_log_that_was_emptied_ends_the_members_of_its_groups(
    redis_server: RedisServer, tmp_path: pathlib.Path
) -> None:
    prefix = uuid.uuid4().hex[:8]
    url = f"{redis_server.address}?key_prefix={prefix}:&shards={SHARDS}&segment_directory={tmp_path}"
    with Member(url, [SHARED]) as member, redis.Redis.from_url(redis_server.address) as client:
        member.subscriber.wait_ready(timeout_s=PATIENCE_S)
        client.delete(*client.scan_iter(f"{prefix}:*"))
        with pytest.raises(GroupDestroyed):
            member.subscriber.wait_streams(1000, timeout_s=PATIENCE_S)


def test_leases_are_those_of_the_declaration_whatever_a_member_is_configured_with(url: str, source: Source) -> None:
    """A member with short times of its own must not take over from a leader that promised long ones."""
    with Member(url, [SHARED], member_lease=30.0) as leader:
        leader.subscriber.wait_ready(timeout_s=PATIENCE_S)
        with Member(url, [SHARED], **HASTY) as hasty:
            hasty.subscriber.wait_ready(timeout_s=PATIENCE_S)
            group = hasty.subscriber._memberships.groups["billing"].leading
            assert group.lease == CALM_LEASE
            assert group.candidate._settings == CALM_LEASE
            publish_everywhere(source)
            wait_for_all(source, leader, hasty)
            assert not group.is_leading


def test_two_members_share(url: str, source: Source) -> None:
    with Member(url, [SHARED]) as one, Member(url, [SHARED]) as two:
        publish_everywhere(source)
        wait_for_all(source, one, two)
        wait_until(lambda: is_balanced(SHARDS, one, two), PATIENCE_S, "a fair share for both")
        publish_everywhere(source)
        wait_for_all(source, one, two)
        assert one.seen
        assert two.seen
        assert not duplicates(one.seen, two.seen)


@EVERY_LOG
def test_the_streams_of_a_killed_member_go_to_the_others(url: str, source: Source) -> None:
    with Member(url, [SHARED], **HASTY) as member:
        with MemberProcess(url, [SHARED], **HASTY) as doomed:
            publish_everywhere(source)
            wait_for_all(source, member, doomed)
            wait_until(lambda: doomed.statistics()["streams"] > 0, PATIENCE_S, "a share")
            publish_everywhere(source)
            seen = doomed.got()
            doomed.kill()
        publish_everywhere(source)
        wait_for_all(source, member, earlier=seen)
        wait_until(lambda: member.streams == SHARDS, PATIENCE_S, "all streams")
        assert not disordered(member.seen)


def test_a_second_member_takes_streams_over_without_repeating(url: str, source: Source) -> None:
    with Member(url, [SHARED]) as one:
        publish_everywhere(source)
        wait_for_all(source, one)
        with Member(url, [SHARED]) as two:
            wait_until(lambda: is_balanced(SHARDS, one, two), PATIENCE_S, "a grant for the second")
            publish_everywhere(source)
            wait_for_all(source, one, two)
            assert two.seen
            assert not duplicates(one.seen, two.seen)


def test_a_member_that_leaves_hands_over_before_any_lease_ends(url: str, source: Source) -> None:
    """Leases are far longer than this test may take: only a good-bye can be the reason."""
    long = {"member_lease": 500.0}
    with Member(url, [SHARED], **long) as one:
        one.subscriber.wait_ready(timeout_s=PATIENCE_S)
        with Member(url, [SHARED], **long) as two:
            publish_everywhere(source)
            wait_for_all(source, one, two)
            wait_until(lambda: is_balanced(SHARDS, one, two), PATIENCE_S, "balance")
        publish_everywhere(source)
        wait_for_all(source, one, two)
        assert not duplicates(one.seen, two.seen)


def test_progress_outlives_all_members(url: str, source: Source) -> None:
    with Member(url, [SHARED]) as first:
        publish_everywhere(source)
        wait_for_all(source, first)
    source.publish(TOPICS[0], 7)
    with Member(url, [SHARED]) as second:
        wait_for_all(source, first, second)
        assert len(second.seen) == 7


def test_members_that_join_under_load_lose_and_repeat_nothing(url: str, source: Source) -> None:
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(Member(url, [SHARED]))]
        for _ in range(3):
            for _ in range(10):
                for topic in TOPICS:
                    source.publish(topic, 3)
            members.append(stack.enter_context(Member(url, [SHARED])))
        wait_for_all(source, *members)
        wait_until(lambda: is_balanced(SHARDS, *members), PATIENCE_S, "balance")
        assert not duplicates(*(member.seen for member in members))


def test_groups_do_not_disturb_each_other(url: str, source: Source) -> None:
    names = [f"g{number}" for number in range(6)]
    with contextlib.ExitStack() as stack:
        members = {
            name: [stack.enter_context(Member(url, [f"$shared/{name}/{topic}"])) for _ in range(2)]
            for name, topic in zip(names, TOPICS, strict=False)
        }
        for number, topic in enumerate(TOPICS):
            source.publish(topic, 20 * (number + 1))
        for name, topic in zip(names, TOPICS, strict=False):
            one, two = members[name]
            wait_until(
                lambda one=one, two=two, topic=topic: one.got() | two.got() == source.expected([topic]),  # type: ignore[misc]
                PATIENCE_S, f"everything of {topic} and nothing else",
            )  # fmt: skip
            assert not duplicates(one.seen, two.seen)


def test_unsubscribing_under_load_loses_and_repeats_nothing(url: str, source: Source) -> None:
    with Member(url, [SHARED]) as one, Member(url, [SHARED]) as two:
        publish_everywhere(source)
        wait_for_all(source, one, two)
        publish_everywhere(source)
        assert one.subscriber.unsubscribe(SHARED)
        with Member(url, [SHARED]) as three:
            publish_everywhere(source)
            wait_for_all(source, one, two, three)
            assert not duplicates(one.seen, two.seen, three.seen)
            assert not one.subscriber.unsubscribe(SHARED)


def test_quick_resubscribing_loses_and_repeats_nothing(url: str, source: Source) -> None:
    with Member(url, [SHARED]) as one, Member(url, [SHARED]) as two:
        publish_everywhere(source)
        wait_for_all(source, one, two)
        for _ in range(10):
            one.subscriber.unsubscribe(SHARED)
            source.publish(TOPICS[0], 3)
            one.subscriber.subscribe(SHARED)
            publish_everywhere(source, 2)
        wait_for_all(source, one, two)
        wait_until(lambda: is_balanced(SHARDS, one, two), PATIENCE_S, "balance")
        assert not duplicates(one.seen, two.seen)


def test_leaving_in_the_middle_of_much_loses_nothing(url: str, source: Source) -> None:
    with Member(url, [SHARED]) as one:
        with Member(url, [SHARED]) as two:
            for topic in TOPICS:
                source.publish(topic, 1000, per_frame=100)
            wait_until(lambda: len(one.seen) + len(two.seen) > 1000, PATIENCE_S, "some of it")
        wait_for_all(source, one, two)
        assert not duplicates(one.seen, two.seen)


def test_what_one_member_acknowledged_is_not_repeated_to_the_next(
    url: str, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what it acknowledged since its last report, when its time to leave is over."""
    monkeypatch.setattr(config, "PROGRESS_INTERVAL_S", 60.0)
    source.publish(TOPICS[0], 1)
    with Member(url, [SHARED], auto_ack=False, unsubscribe_timeout=0.1) as one:
        source.publish(TOPICS[0], 20, keys=20)
        wait_until(lambda: len(one.events) == 20, PATIENCE_S, "all twenty")
        assert one.subscriber.acknowledge(one.events[7])
    with Member(url, [SHARED], auto_ack=False, unsubscribe_timeout=0.1) as two:
        wait_until(lambda: len(two.events) == 19, PATIENCE_S, "all but one")
        assert two.got() == one.got() - {(TOPICS[0], one.events[7].version)}
        assert {event.attempt for event in two.events} == {2}


def test_a_member_that_finds_no_leader_asks_again(url: str, source: Source) -> None:
    """The record names a leader that is not there any more; nobody answers until its time is over."""
    with MemberProcess(url, [SHARED], **HASTY) as leader:
        publish_everywhere(source)
        wait_until(lambda: source.expected() <= leader.got(), PATIENCE_S, "all of it")
        leader.kill()
    started = time.monotonic()
    with Member(url, [SHARED]) as patient, contextlib.suppress(WaitTimeout):
        patient.subscriber.wait_ready(timeout_s=0.3)
        assert time.monotonic() - started >= HASTY_LEASE.claim_time_s  # this thread stood still for that long
    with Member(url, [SHARED], **HASTY) as member:
        member.subscriber.wait_ready(timeout_s=PATIENCE_S)
        publish_everywhere(source)
        wait_until(lambda: member.streams == SHARDS, PATIENCE_S, "all streams")
        wait_until(lambda: len(member.got()) >= 10 * len(TOPICS), PATIENCE_S, "what is new")


def test_a_killed_leader_is_replaced(url: str, source: Source) -> None:
    with MemberProcess(url, [SHARED], **HASTY) as leader:
        wait_until(lambda: leader.statistics()["is_leading"], PATIENCE_S, "it to lead")
        with Member(url, [SHARED], **HASTY) as one, Member(url, [SHARED], **HASTY) as two:
            publish_everywhere(source)
            wait_until(lambda: leader.got() | one.got() | two.got() >= source.expected(), PATIENCE_S, "all of it")
            seen = leader.got()
            leader.kill()
            publish_everywhere(source)
            wait_for_all(source, one, two, earlier=seen)
            wait_until(lambda: is_balanced(SHARDS, one, two), PATIENCE_S, "balance")
            wait_until(lambda: one.is_leading + two.is_leading == 1, PATIENCE_S, "a leader")
            assert not disordered(one.seen)


@EVERY_LOG
def test_members_and_publishers_in_several_processes(url: str, source: Source) -> None:
    with MemberProcess(url, [SHARED]) as one, MemberProcess(url, [SHARED]) as two, Member(url, [SHARED]) as three:
        publish_everywhere(source)
        wait_for_all(source, one, two, three)
        wait_until(
            lambda: sorted([one.statistics()["streams"], two.statistics()["streams"], three.streams]) == [1, 1, 2],
            PATIENCE_S, "a share for everybody",
        )  # fmt: skip
        publish_everywhere(source, 20)
        wait_for_all(source, one, two, three)
        assert not duplicates(one.record(), two.record(), three.seen)


def test_of_many_candidates_one_leads(url: str, source: Source) -> None:
    members: list[Member] = []
    barrier = threading.Barrier(4)

    def join() -> None:
        barrier.wait(PATIENCE_S)
        members.append(Member(url, [SHARED]))

    threads = [threading.Thread(target=join) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        publish_everywhere(source)
        wait_for_all(source, *members)
        for member in members:
            member.subscriber.wait_ready(timeout_s=PATIENCE_S)
        (leader,) = [member for member in members if member.is_leading]
        members.remove(leader)
        leader.subscriber.close()
        publish_everywhere(source)
        wait_for_all(source, leader, *members)
        wait_until(lambda: is_balanced(SHARDS, *members), PATIENCE_S, "balance")
        wait_until(lambda: sum(member.is_leading for member in members) == 1, PATIENCE_S, "a leader")
    finally:
        for member in members:
            member.subscriber.close()
