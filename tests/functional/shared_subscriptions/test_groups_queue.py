"""A work queue: each event goes to a member that has room, and a slow member delays nobody."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
from collections.abc import Iterator

import pytest

import durable_log
from durable_log import LogApi
from pubsub_api.errors import UsageError
from shared_subscriptions import groups
from tests.helpers.group_nodes import CALM_LEASE, HASTY, HASTY_LEASE, Member, MemberProcess, Source, duplicates
from tests.helpers.waiting import wait_until

QUEUE = "$queue/work/tenant-7/#"
TOPIC = "tenant-7/t"
PATIENCE_S = 60.0


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    return f"sqlite://{tmp_path}/log.db?shards=1"


@pytest.fixture
def log(url: str) -> Iterator[LogApi]:
    with contextlib.closing(durable_log.open(url)) as log:
        groups.declare(log, "work", "tenant-7/#", mode="queue", lease=CALM_LEASE)
        yield log


def test_jobs_are_spread_over_all_members(url: str, source: Source) -> None:
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(Member(url, [QUEUE])) for _ in range(4)]
        for member in members:
            member.subscriber.wait_ready(timeout_s=PATIENCE_S)
            member.gate.clear()  # every job takes until the test says so
        source.publish(TOPIC, 8)
        wait_until(lambda: [m.subscriber.statistics().streams for m in members] == [2] * 4, PATIENCE_S, "two for each")
        for member in members:
            member.gate.set()
        wait_until(lambda: set().union(*(m.got() for m in members)) == source.expected(), PATIENCE_S, "all of them")
        assert not duplicates(*(member.seen for member in members))


def test_what_a_busy_member_has_not_begun_goes_to_one_that_is_idle(url: str, source: Source) -> None:
    with Member(url, [QUEUE]) as busy, Member(url, [QUEUE]) as other:
        for member in (busy, other):
            member.subscriber.wait_ready(timeout_s=PATIENCE_S)
            member.gate.clear()
        source.publish(TOPIC, 50)
        wait_until(lambda: busy.begun and other.begun, PATIENCE_S, "a job for each")
        other.gate.set()
        # One job is with the program that does not go on; everything else is done by the other one.
        wait_until(lambda: len(other.got()) == 49, PATIENCE_S, "all but the one that is being handled")
        busy.gate.set()
        wait_until(lambda: len(busy.got() | other.got()) == 50, PATIENCE_S, "the last one")
        assert not duplicates(busy.seen, other.seen)


def test_a_damaged_frame_takes_no_room_away_is_shown_and_is_got_over_when_it_is_repaired(
    url: str, log: LogApi, source: Source, tmp_path: pathlib.Path
) -> None:
    source.publish(TOPIC, 30)  # three frames
    with contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as store, store:
        number, frame = store.execute("SELECT id, frame FROM frames ORDER BY id").fetchall()[1]
        store.execute("UPDATE frames SET frame = zeroblob(length(frame)) WHERE id = ?", (number,))
    damaged = {(TOPIC, job) for job in range(11, 21)}
    with Member(url, [QUEUE]) as member:
        wait_until(lambda: member.got() == source.expected() - damaged, PATIENCE_S, "all that can be read")
        source.publish(TOPIC, 30)
        wait_until(lambda: member.got() == source.expected() - damaged, PATIENCE_S, "what comes later")
        wait_until(lambda: groups.show(log, "work").streams[0].damaged == [(10, 20)], PATIENCE_S, "it to be shown")
        assert member.subscriber.statistics().log.damaged == 1
        assert groups.show(log, "work").lag >= 10
        with contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as store, store:
            store.execute("UPDATE frames SET frame = ? WHERE id = ?", (frame, number))
        wait_until(lambda: member.got() == source.expected(), PATIENCE_S, "what was repaired")
        wait_until(lambda: not groups.show(log, "work").streams[0].damaged, PATIENCE_S, "nothing more to be shown")
        assert not duplicates(member.seen)


def test_a_job_that_fails_is_tried_again_by_whoever_is_free_and_then_parked(
    url: str, log: LogApi, source: Source
) -> None:
    with Member(url, [QUEUE], attempts_max=3) as one, Member(url, [QUEUE], attempts_max=3) as two:
        one.failing = two.failing = {(TOPIC, 5): 99, (TOPIC, 6): 1}
        source.publish(TOPIC, 20)
        wait_until(lambda: groups.show(log, "work").lag == 0, PATIENCE_S, "all of it done")
        seen = [*one.seen, *two.seen]
        assert sorted(item.attempt for item in seen if item.number == 5) == [1, 2, 3]
        assert sorted(item.attempt for item in seen if item.number == 6) == [1, 2]
        statistics = [member.subscriber.statistics() for member in (one, two)]
        assert sum(item.dead_letters for item in statistics) == 1
        assert len(seen) == 23


def test_jobs_of_a_member_that_is_killed_are_done_by_others(url: str, log: LogApi, source: Source) -> None:
    groups.destroy(log, "work")
    groups.declare(log, "work", "tenant-7/#", mode="queue", lease=HASTY_LEASE)
    source.publish(TOPIC, 60)
    with MemberProcess(url, [QUEUE], hangs_at=20, **HASTY) as victim:
        wait_until(lambda: (TOPIC, 20) in victim.got(), PATIENCE_S, "the job at which it hangs")
        victim.kill()
    with Member(url, [QUEUE], **HASTY) as member:
        wait_until(lambda: groups.show(log, "work").lag == 0, PATIENCE_S, "all of it done")
        assert (TOPIC, 20) in member.got()


def test_a_program_that_acknowledges_has_a_bounded_number_of_jobs(
    url: str, log: LogApi, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared_subscriptions.config.QUEUE_IN_FLIGHT_MIN", 5)
    source.publish(TOPIC, 50)
    with Member(url, [QUEUE], auto_ack=False, unsubscribe_timeout=0.1) as member:
        wait_until(lambda: len(member.events) == 5, PATIENCE_S, "five jobs")
        for done in range(5):
            assert member.subscriber.acknowledge(member.events[done])
            wait_until(lambda done=done: len(member.events) >= 6 + done, PATIENCE_S, "another one")
        unsettled = len(member.events) - 5
        assert unsettled == 5


def test_a_seek_delivers_a_queue_again(url: str, log: LogApi, source: Source) -> None:
    with Member(url, [QUEUE]) as member:
        source.publish(TOPIC, 100)
        wait_until(lambda: len(member.seen) == 100, PATIENCE_S, "all of it")
        groups.seek(log, "work", "earliest")
        wait_until(lambda: len(member.seen) == 200, PATIENCE_S, "all of it again")
        groups.pause(log, "work")
        wait_until(lambda: groups.show(log, "work").wish == "paused" and member.streams == 0, PATIENCE_S, "the pause")
        source.publish(TOPIC, 10)
        groups.resume(log, "work")
        wait_until(lambda: len(member.seen) == 210, PATIENCE_S, "the rest")


def test_a_queue_has_no_lanes(log: LogApi) -> None:
    with pytest.raises(UsageError, match="no lanes"):
        groups.declare(log, "other", "#", mode="queue", lanes=4)
