"""Long runs of groups: many seeds, and a storm of members that come and go under load."""

from __future__ import annotations

import contextlib
import math
import pathlib
import random
import threading

import pytest

import durable_log
from shared_subscriptions import groups
from shared_subscriptions.core.settings import LeaseSettings
from shared_subscriptions.testing.simulator import run_seeds
from tests.helpers.group_nodes import Member, MemberProcess, Source, disordered, duplicates
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

SHARED = "$shared/billing/tenant-7/#"
QUEUE = "$queue/work/tenant-7/#"
TOPICS = [f"tenant-7/t{number}" for number in range(64)]
MEMBERS = 100
SHARDS = 16


def test_no_invariant_is_broken_in_many_seeds() -> None:
    assert run_seeds(100_000, 10_000) == []


def test_a_hundred_members_join_and_leave_at_random_under_load(tmp_path: pathlib.Path) -> None:
    """Nothing is lost or repeated, keys keep their order, and a join moves no more than its fair share."""
    url = f"sqlite://{tmp_path}/log.db?shards={SHARDS}"
    chance = random.Random(7)
    with contextlib.closing(durable_log.open(url)) as log, Member(url, [SHARED], name="anchor") as anchor:
        source = Source(log)
        stop = threading.Event()

        def load() -> None:
            while not stop.wait(0.02):
                source.publish(chance.choice(TOPICS), 50, keys=10, per_frame=25)

        for topic in TOPICS:
            source.publish(topic, 1)
        loader = threading.Thread(target=load)
        loader.start()
        present: list[Member] = []
        everybody = [anchor]
        try:
            for number in range(MEMBERS):
                member = Member(url, [SHARED], name=f"m{number}")
                present.append(member)
                everybody.append(member)
                member.subscriber.wait_ready(timeout_s=120)
                while len(present) > 1 and chance.random() < 0.55:
                    present.pop(chance.randrange(len(present))).subscriber.close()
        finally:
            stop.set()
            loader.join()
        wait_until(lambda: set().union(*(one.got() for one in everybody)) >= source.expected(), 300, "everything")
        for member in present:
            member.subscriber.close()
        assert not duplicates(*(one.seen for one in everybody))
        assert not [problem for one in everybody for problem in disordered(one.seen)]


@pytest.mark.parametrize("before", [1, 3, 7])
def test_a_join_moves_no_more_streams_than_its_share(tmp_path: pathlib.Path, before: int) -> None:
    url = f"sqlite://{tmp_path}/log.db?shards={SHARDS}"
    with contextlib.closing(durable_log.open(url)) as log, contextlib.ExitStack() as stack:
        source = Source(log)
        for topic in TOPICS:
            source.publish(topic, 1)

        def settled(count: int) -> int | None:
            """How many moves there were, once so many members have their shares."""
            status = groups.show(log, "billing").status
            if status is None or {state for state, _ in status.streams.values()} != {"granted"}:
                return None
            shares = [len(member.streams) for member in status.members]
            is_balanced = len(shares) == count and sum(shares) == SHARDS and max(shares) - min(shares) <= 1
            return status.counters["moves"] if is_balanced else None

        for _ in range(before):
            stack.enter_context(Member(url, [SHARED]))
        moves = wait_until(lambda: settled(before), 120, "balance")
        stack.enter_context(Member(url, [SHARED]))
        after = wait_until(lambda: settled(before + 1), 120, "balance again")
        assert after - moves <= math.ceil(SHARDS / (before + 1))


def test_members_and_leaders_are_killed_again_and_again(tmp_path: pathlib.Path) -> None:
    """Nothing is lost; what is repeated was not acknowledged, or not yet stored."""
    url = f"sqlite://{tmp_path}/log.db?shards=4"
    options = {"member_lease": 1.5}
    with contextlib.closing(durable_log.open(url)) as log:
        source = Source(log)
        groups.declare(log, "billing", "tenant-7/#", lease=LeaseSettings(1.5, 3.0))
        for topic in TOPICS[:8]:
            source.publish(topic, 1)
        seen: set[tuple[str, int]] = set()
        with MemberProcess(url, [SHARED], **options) as survivor:
            for _ in range(6):
                with MemberProcess(url, [SHARED], **options) as doomed:
                    wait_until(lambda one=doomed: one.statistics()["streams"], 120, "a share")  # type: ignore[misc]
                    for topic in TOPICS[:8]:
                        source.publish(topic, 50)
                    wait_until(lambda one=doomed: one.got(), 120, "some of it")  # type: ignore[misc]
                    seen |= doomed.got()
                    doomed.kill()
            for topic in TOPICS[:8]:
                source.publish(topic, 50)
            wait_until(lambda: survivor.got() | seen >= source.expected(), 300, "everything")
            assert not disordered(survivor.record())


def test_members_of_a_queue_are_killed_again_and_again(tmp_path: pathlib.Path) -> None:
    """Nothing is lost, and of what was done nothing comes again but what was not yet stored."""
    url = f"sqlite://{tmp_path}/log.db?shards=4"
    options = {"member_lease": 1.5}
    with contextlib.closing(durable_log.open(url)) as log:
        source = Source(log)
        groups.declare(log, "work", "tenant-7/#", mode="queue")
        diary = tmp_path / "seen by those who were killed"
        with MemberProcess(url, [QUEUE], **options) as survivor:
            for _ in range(6):
                with MemberProcess(url, [QUEUE], writes_to=str(diary), **options) as doomed:
                    for topic in TOPICS[:8]:
                        source.publish(topic, 200)
                    wait_until(lambda one=doomed: one.got(), 120, "some of it")  # type: ignore[misc]
                    doomed.kill()
            for topic in TOPICS[:8]:
                source.publish(topic, 50)
            wait_until(lambda: groups.show(log, "work").lag == 0, 300, "everything")
            pairs = [line.split() for line in diary.read_text().splitlines()]
            assert survivor.got() | {(topic, int(number)) for topic, number in pairs} == source.expected()
            assert not duplicates(survivor.record()), "the survivor has told what it had done, and was not killed"
