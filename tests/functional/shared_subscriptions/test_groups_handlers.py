"""What becomes of events whose handler is killed, kills its process, or does not return."""

from __future__ import annotations

import pathlib
import threading
import time

import pytest

import durable_log
import pubsub_api
from durable_log import LogApi
from pubsub_api.errors import Closed
from shared_subscriptions import GroupEvent, GroupSubscriber, config, groups
from tests.helpers.group_nodes import CALM_LEASE, HASTY, HASTY_LEASE, Member, MemberProcess, Source, groups_conf
from tests.helpers.waiting import wait_until

SHARED = "$shared/billing/tenant-7/#"
TOPIC = "tenant-7/t"
PATIENCE_S = 60.0
HANGS_S = 3.0
"""Who does not answer for so long hangs: longer than a thread waits for a processor, as a rule."""
LONELY = {**HASTY, "member_lease": 0.3}
"""Of several processes one is there at a time, so that a lease which ends too early gives nothing to another one."""
LONELY_LEASE = config.lease_settings(groups_conf(**LONELY))


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    return f"sqlite://{tmp_path}/log.db?shards=1"


def stored_low(log: LogApi, group: str = "billing") -> int:
    return max((view.low for view in groups.show(log, group).streams), default=0)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_progress_is_reported_in_the_middle_of_a_batch(url: str, log: LogApi, source: Source, concurrency: int) -> None:
    groups.declare(log, "billing", "tenant-7/#", lease=CALM_LEASE)
    source.publish(TOPIC, 100, keys=1 if concurrency == 1 else 100)
    with Member(url, [SHARED], concurrency=concurrency, hangs_at=50) as member:
        wait_until(lambda: stored_low(log) == 49, PATIENCE_S, "what is done to be stored while the batch goes on")
        member.release.set()
        wait_until(lambda: len(member.seen) == 100, PATIENCE_S, "the rest")
        assert member.subscriber.statistics().redelivered == 0


def test_a_member_that_is_killed_repeats_only_what_it_has_not_reported(url: str, log: LogApi, source: Source) -> None:
    groups.declare(log, "billing", "tenant-7/#", lease=HASTY_LEASE)
    source.publish(TOPIC, 100)
    with MemberProcess(url, [SHARED], hangs_at=50, **HASTY) as victim:
        wait_until(lambda: stored_low(log) == 49, PATIENCE_S, "what is done to be stored")
        victim.kill()
    with Member(url, [SHARED], **HASTY) as member:
        wait_until(lambda: len(member.got()) == 51, PATIENCE_S, "the rest")
        assert min(seen.number for seen in member.seen) == 50


def test_an_event_whose_handler_hangs_is_delivered_elsewhere_and_its_late_end_is_refused(
    url: str, log: LogApi, source: Source
) -> None:
    with Member(url, [SHARED], handler_timeout=HANGS_S) as slow:
        slow.hangs_at = 5
        slow.subscriber.wait_ready(timeout_s=PATIENCE_S)
        source.publish(TOPIC, 10)
        wait_until(lambda: slow.subscriber.statistics().hung == 1, PATIENCE_S, "the time-out")
        assert slow.subscriber.statistics().timed_out >= 1
        with Member(url, [SHARED]) as other:
            wait_until(lambda: len(other.got()) == 6, PATIENCE_S, "what the first one cannot handle")
            assert sorted(seen.number for seen in other.seen) == [5, 6, 7, 8, 9, 10]
            assert {seen.number: seen.attempt for seen in other.seen}[5] == 2
            slow.release.set()
            wait_until(lambda: slow.subscriber.statistics().late >= 1, PATIENCE_S, "the late end to be refused")
            wait_until(lambda: slow.subscriber.statistics().hung == 0, PATIENCE_S, "the thread to be back")
        slow.hangs_at = 0
        source.publish(TOPIC, 10)
        wait_until(lambda: len(slow.seen) == 15, PATIENCE_S, "the first one to take part again")


def test_a_thread_that_hangs_does_not_keep_its_event_from_the_others_of_the_member(url: str, source: Source) -> None:
    with Member(url, [SHARED], handler_timeout=HANGS_S, concurrency=2, attempts_max=2) as member:
        member.hangs_at = 5
        member.subscriber.wait_ready(timeout_s=PATIENCE_S)
        source.publish(TOPIC, 10, keys=10)
        wait_until(lambda: [seen.attempt for seen in member.seen if seen.number == 5] == [1, 2], PATIENCE_S, "again")
        wait_until(lambda: member.subscriber.statistics().hung == 2, PATIENCE_S, "the second time-out")
        member.hangs_at = 0
        member.release.set()
        wait_until(lambda: member.subscriber.statistics().dead_letters == 1, PATIENCE_S, "its dead letter")
        wait_until(lambda: member.subscriber.statistics().acknowledged == 9, PATIENCE_S, "the others")


def test_a_batch_whose_handler_hangs_comes_again_in_parts(url: str, source: Source) -> None:
    conf = groups_conf(handler_timeout=HANGS_S, concurrency=2)
    release, calls = threading.Event(), []

    def on_events(events: list[GroupEvent]) -> None:
        calls.append([event.version for event in events])
        if len(events) > 1:
            release.wait(PATIENCE_S)

    with GroupSubscriber(durable_log.open(url, conf=conf), conf, [SHARED], on_events=on_events) as subscriber:  # type: ignore[arg-type]
        subscriber.wait_ready(timeout_s=PATIENCE_S)
        source.publish(TOPIC, 4, keys=4)
        wait_until(lambda: subscriber.statistics().acknowledged == 4, PATIENCE_S, "each of them")
        release.set()
        assert calls[0] == [1, 2, 3, 4]
        assert sorted(calls[1:]) == [[1], [2], [3], [4]]


def test_what_a_program_does_not_settle_comes_again(url: str, source: Source) -> None:
    with Member(url, [SHARED], auto_ack=False, handler_timeout=HANGS_S, unsubscribe_timeout=0.1) as member:
        member.subscriber.wait_ready(timeout_s=PATIENCE_S)
        source.publish(TOPIC, 1)
        wait_until(lambda: len(member.events) >= 2, PATIENCE_S, "it again")
        assert [seen.attempt for seen in member.seen[:2]] == [1, 2]
        assert not member.subscriber.acknowledge(member.events[0])
        # The newest one is accepted in time; should this thread stand still for that long, there is a newer one.
        wait_until(lambda: member.subscriber.acknowledge(member.events[-1]), PATIENCE_S, "it to be done")


def test_closing_does_not_wait_for_a_handler_that_hangs(url: str, source: Source) -> None:
    with Member(url, [SHARED], unsubscribe_timeout=0.1) as member:
        member.hangs_at = 1
        source.publish(TOPIC, 3)
        wait_until(lambda: member.seen, PATIENCE_S, "the callback to be called")
        member.subscriber.close()
        assert not member.release.is_set()
        with Member(url, [SHARED]) as other:
            wait_until(lambda: len(other.got()) == 3, PATIENCE_S, "all of it elsewhere")


@pytest.mark.parametrize("ends", ["late", "closed"])
def test_a_handler_that_returns_at_the_last_moment_is_not_taken_for_one_that_hangs(
    url: str, source: Source, ends: str
) -> None:
    with Member(url, [SHARED]) as member:
        member.subscriber.wait_ready(timeout_s=PATIENCE_S)
        member.gate.clear()
        source.publish(TOPIC, 1)
        wait_until(lambda: member.begun, PATIENCE_S, "the handler to be called")
        dispatch = member.subscriber._dispatch
        with member.subscriber._lock:  # so that its thread cannot settle what it has handled
            member.gate.set()
            (call,) = dispatch._calls
            wait_until(lambda: call.place == 1, PATIENCE_S, "the handler to return")
            if ends == "late":
                dispatch.take_back_from_hung(time.monotonic() + 10_000)
            else:
                dispatch.close(timeout_s=0.0)
        wait_until(lambda: member.subscriber.statistics().acknowledged == 1, PATIENCE_S, "it to be done")
        assert (member.begun, member.subscriber.statistics().timed_out) == (1, 0)


# -- events that kill their consumers


@pytest.mark.parametrize("topics", [SHARED, "$queue/billing/tenant-7/#"])
def test_an_event_that_kills_its_process_is_parked_after_its_attempts(url: str, log: LogApi, topics: str) -> None:
    """The process that it kills is the leader's too, so that nobody is left who remembers it."""
    mode = "queue" if topics.startswith("$queue") else "shared"
    groups.declare(log, "billing", "tenant-7/#", mode=mode, lease=LONELY_LEASE)  # type: ignore[arg-type]
    Source(log).publish(TOPIC, 40)
    deaths = 0
    while True:
        with MemberProcess(url, [topics], kills_at=20, attempts_max=3, **LONELY) as doomed:
            wait_until(
                lambda: doomed.has_ended or groups.show(log, "billing").lag == 0,
                PATIENCE_S,
                "its end, or that of all events",
            )
            if not doomed.has_ended:
                assert (TOPIC, 20) not in doomed.got()
                assert doomed.statistics()["dead_letters"] >= 1
                break
            deaths += 1
            assert deaths <= 3  # perhaps fewer, on a machine that stands still for longer than a lease


def test_what_was_not_to_blame_is_delivered_after_a_crash(url: str, log: LogApi, source: Source) -> None:
    groups.declare(log, "billing", "tenant-7/#", lease=LONELY_LEASE)
    source.publish(TOPIC, 700)
    with MemberProcess(url, [SHARED], kills_at=650, attempts_max=2, **LONELY) as doomed:
        wait_until(lambda: doomed.has_ended, PATIENCE_S, "its end")
    with Member(url, [SHARED], attempts_max=2, **LONELY) as member:
        wait_until(lambda: groups.show(log, "billing").lag == 0, PATIENCE_S, "all of it done")
        assert member.subscriber.statistics().dead_letters == 0
        assert (TOPIC, 650) in member.got()


def test_progress_reported_while_a_dead_letter_is_written_leaves_the_rest_of_the_batch_deliverable(
    url: str, log: LogApi, source: Source
) -> None:
    """The store is slow with the dead letter; meanwhile progress is reported, and the rest must still come."""
    conf = groups_conf(attempts_max=1)
    groups.declare(log, "billing", "tenant-7/#", lease=CALM_LEASE)
    own = durable_log.open(url, conf=conf)
    append, may_append = own.append, threading.Event()
    own.append = lambda frames: may_append.wait(PATIENCE_S) and append(frames)  # type: ignore[method-assign, assignment, return-value]
    seen = []

    def on_event(event: GroupEvent) -> None:
        seen.append(event.version)
        if event.version == 5:
            raise ValueError("it cannot be handled")

    source.publish(TOPIC, 10, keys=10)
    with GroupSubscriber(own, conf, [SHARED], on_event=on_event) as subscriber:
        wait_until(lambda: stored_low(log) == 4, PATIENCE_S, "what was done before it to be stored")
        may_append.set()
        wait_until(lambda: len(seen) == 10, PATIENCE_S, "the rest of the batch")
        wait_until(lambda: subscriber.statistics().acknowledged == 9, PATIENCE_S, "its end")
        assert subscriber.statistics().waiting == 0


def test_a_program_gets_settles_and_extends_one_event_after_the_other(url: str, tmp_path: pathlib.Path) -> None:
    with pubsub_api.open(f"memory://{tmp_path.name}", log=url) as session:
        with session.group("work", "jobs/#", ordered=False, auto_ack=False) as member:
            assert member.get(timeout_s=0) is None
            member.wait_ready(timeout_s=PATIENCE_S)
            publisher = session.publisher()
            for number in (1, 2):
                publisher.send_event(pubsub_api.Event(topic="jobs/a", table="", key=f"k{number}", action="set"))
            first = member.get(timeout_s=PATIENCE_S)
            assert first is not None
            assert member.extend(first)
            member.refuse(first, delay_s=0.0)
            assert not member.extend(first), "it is not with the program any more"
            left = {"k1": 1, "k2": 1}
            attempts = {first.key: 1}
            while left:
                event = member.get(timeout_s=PATIENCE_S)
                assert event is not None
                attempts[event.key] = event.attempt
                assert member.acknowledge(event)
                left.pop(event.key)
            assert attempts[first.key] == 2
        with pytest.raises(Closed):
            member.get()


def test_what_was_got_last_is_acknowledged_by_the_next_get_and_goes_back_at_the_end(
    url: str, log: LogApi, source: Source, tmp_path: pathlib.Path
) -> None:
    with pubsub_api.open(f"memory://{tmp_path.name}", log=url) as session:
        with session.group("billing", "tenant-7/#") as member:
            member.wait_ready(timeout_s=PATIENCE_S)
            source.publish(TOPIC, 3, keys=1)
            got = [member.get(timeout_s=PATIENCE_S) for _ in range(2)]
            assert [event.version for event in got if event is not None] == [1, 2]
        with session.group("billing", "tenant-7/#") as member:
            again = member.get(timeout_s=PATIENCE_S)
            assert again is not None
            assert again.version == 2
