"""Many groups in one process: what they cost while nothing happens does not grow with their number, but for memory."""

from __future__ import annotations

import os
import pathlib
import threading

import durable_log
from durable_log import LogApi
from shared_subscriptions import GroupSubscriber, groups
from shared_subscriptions.names import LEASES
from tests.helpers.group_nodes import HASTY, MemberProcess, Source, groups_conf
from tests.helpers.waiting import wait_until

PATIENCE_S = 120.0
GROUPS = 200
FILTERS = [f"$shared/g{number}/tenant-{number}/#" for number in range(GROUPS)]


def counted() -> tuple[int, int]:
    """Threads and descriptors of this process."""
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def versions(log: LogApi, prefix: str) -> dict[str, int]:
    return {record.name: record.version for record in log.list_records(prefix)}


def test_two_hundred_idle_groups_cost_as_many_threads_descriptors_and_writes_as_one(tmp_path: pathlib.Path) -> None:
    conf = groups_conf(member_lease=5.0)
    with durable_log.open(f"sqlite://{tmp_path}/log.db?shards=2", conf=conf) as log:
        Source(log).publish("tenant-1/t", 5)
        before = counted()
        with GroupSubscriber(
            durable_log.open(f"sqlite://{tmp_path}/log.db", conf=conf), conf, FILTERS, on_event=lambda _event: None
        ) as subscriber:
            subscriber.wait_ready(timeout_s=PATIENCE_S)
            assert subscriber.statistics().is_leading == GROUPS
            wait_until(lambda: subscriber.statistics().streams == GROUPS, PATIENCE_S, "the streams of all groups")
            threads, descriptors = (now - then for now, then in zip(counted(), before, strict=True))
            assert threads <= 6
            assert descriptors <= 40

            def is_quiet() -> bool:
                """Whether the process has given three signs of life, and nothing else was written."""
                others = versions(log, "group/")
                signs = versions(log, LEASES)
                assert len(signs) == 1
                newest = max(signs.values())
                for _ in range(3):
                    last = versions(log, LEASES)
                    wait_until(lambda last=last: versions(log, LEASES) != last, PATIENCE_S, "a sign of life")  # type: ignore[misc]
                # Versions count writes of all records.
                return versions(log, "group/") == others and max(versions(log, LEASES).values()) - newest <= 4

            wait_until(is_quiet, PATIENCE_S, "nothing to be written")
        assert versions(log, LEASES) == {}


def test_all_groups_of_a_process_that_is_killed_are_taken_over(tmp_path: pathlib.Path) -> None:
    url, filters = f"sqlite://{tmp_path}/log.db?shards=2", FILTERS[:20]
    conf = groups_conf(**HASTY)
    seen: set[tuple[str, int]] = set()
    with durable_log.open(url) as log:
        source = Source(log)
        with MemberProcess(url, filters, **HASTY) as leader:
            wait_until(lambda: leader.statistics()["is_leading"] == 20, PATIENCE_S, "it to lead all groups")
            with GroupSubscriber(
                durable_log.open(url, conf=conf), conf, filters,
                on_event=lambda event: seen.add((event.topic, event.version)),
            ) as survivor:  # fmt: skip
                survivor.wait_ready(timeout_s=PATIENCE_S)
                assert survivor.statistics().is_leading == 0
                leader.kill()
                for number in range(20):
                    source.publish(f"tenant-{number}/t", 3)
                wait_until(lambda: survivor.statistics().is_leading == 20, PATIENCE_S, "the other one to lead them")
                wait_until(lambda: seen >= source.expected(), PATIENCE_S, "what was published meanwhile")
                assert len(versions(log, LEASES)) == 1, "the sign of life of the dead went with its groups"


def test_one_of_many_groups_is_paused_and_destroyed_without_concern_for_the_others(tmp_path: pathlib.Path) -> None:
    conf = groups_conf()
    seen: set[tuple[str, int]] = set()
    with durable_log.open(f"sqlite://{tmp_path}/log.db?shards=2", conf=conf) as log:
        source = Source(log)
        with GroupSubscriber(
            durable_log.open(f"sqlite://{tmp_path}/log.db", conf=conf), conf, FILTERS[:20],
            on_event=lambda event: seen.add((event.topic, event.version)),
        ) as subscriber:  # fmt: skip
            subscriber.wait_ready(timeout_s=PATIENCE_S)
            source.publish("tenant-3/t", 1)
            wait_until(lambda: len(seen) == 1, PATIENCE_S, "the first event")
            wait_until(lambda: subscriber.statistics().streams == 20, PATIENCE_S, "a stream for each group")
            groups.pause(log, "g3")
            wait_until(lambda: subscriber.statistics().streams == 19, PATIENCE_S, "its stream to be taken back")
            source.publish("tenant-3/t", 1)
            source.publish("tenant-4/t", 1)
            wait_until(lambda: ("tenant-4/t", 1) in seen, PATIENCE_S, "the others to go on")
            assert ("tenant-3/t", 2) not in seen
            groups.resume(log, "g3")
            wait_until(lambda: ("tenant-3/t", 2) in seen, PATIENCE_S, "it to go on")
            groups.destroy(log, "g3")
            wait_until(lambda: subscriber.statistics().is_leading == 19, PATIENCE_S, "it to be led no more")
            source.publish("tenant-5/t", 1)
            wait_until(lambda: ("tenant-5/t", 1) in seen, PATIENCE_S, "the others to go on")
