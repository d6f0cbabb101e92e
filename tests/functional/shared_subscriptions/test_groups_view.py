"""What operators and programs are told of a group: its lag, who leads, and what retention has taken from it."""

from __future__ import annotations

import logging
import pathlib
import time
from typing import Any

import pytest

import durable_log
from durable_log import LogApi
from durable_log.segments.compaction import SegmentCompactor
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from durable_log.upkeep.maintenance import Maintainer
from shared_subscriptions import config, groups
from shared_subscriptions.names import LEASES
from tests.helpers.group_nodes import CALM_LEASE, HASTY, HASTY_LEASE, Member, MemberProcess, Source
from tests.helpers.waiting import wait_until

PATIENCE_S = 60.0
SHARED = "$shared/billing/tenant-7/#"
TOPIC = "tenant-7/t"


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    return f"sqlite://{tmp_path}/log.db?shards=1"


@pytest.mark.parametrize("lanes", [1, 4])
def test_lag_counts_the_events_of_the_group_and_no_others(log: LogApi, source: Source, lanes: int) -> None:
    groups.declare(log, "billing", "tenant-7/#", lanes=lanes, lease=CALM_LEASE)
    for _ in range(10):
        source.publish("elsewhere/t", 100)
        source.publish(TOPIC, 10)
    view = groups.show(log, "billing")
    assert (view.lag, view.is_lag_exact) == (100, True)
    assert sum(stream.lag for stream in view.streams) == 100
    assert any(stream.oldest_s is not None for stream in view.streams)


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_lag_that_takes_too_long_to_count_is_said_to_be_a_bound(log: LogApi, source: Source, lanes: int) -> None:
    groups.declare(log, "billing", "tenant-7/#", lanes=lanes, lease=CALM_LEASE)
    source.publish("elsewhere/t", 50)
    source.publish(TOPIC, 50)
    view = groups.show(log, "billing", offsets_max=20)
    assert (view.lag, view.is_lag_exact) == (80, False)


def test_who_is_gone_is_not_listed(url: str, log: LogApi, source: Source) -> None:
    groups.declare(log, "billing", "tenant-7/#", lease=CALM_LEASE)
    assert groups.show(log, "billing").heard_s is None
    with Member(url, [SHARED], name="worker-1"):
        source.publish(TOPIC, 10)
        view = wait_until(
            lambda: found if (found := groups.show(log, "billing")).status and found.streams[0].owner else None,
            PATIENCE_S, "the owner",
        )  # fmt: skip
        assert view.leader
        assert view.status is not None
        assert [one.name for one in view.status.members] == ["worker-1"]
    view = groups.show(log, "billing")
    assert (view.leader, view.streams[0].owner) == ("", "")
    assert view.heard_s is not None
    assert view.status is not None
    assert view.status.members == []
    assert view.status.reported_ns > 0


def test_a_leader_that_was_killed_is_not_called_one(url: str, log: LogApi) -> None:
    groups.declare(log, "billing", "tenant-7/#", lease=HASTY_LEASE)
    with MemberProcess(url, [SHARED], **HASTY) as doomed:
        wait_until(lambda: groups.show(log, "billing").leader, PATIENCE_S, "a leader")
        doomed.kill()
    view = wait_until(
        lambda: found if not (found := groups.show(log, "billing")).leader else None, PATIENCE_S, "its time to run out"
    )
    assert view.heard_s is not None
    assert view.heard_s >= HASTY_LEASE.claim_time_s
    assert view.status is not None
    assert view.status.members == []


def test_nothing_is_written_for_an_idle_group_but_a_sign_of_life_of_its_leader(
    url: str, log: LogApi, source: Source
) -> None:
    groups.declare(log, "billing", "tenant-7/#", lease=HASTY_LEASE)
    with Member(url, [SHARED], **HASTY) as member:
        source.publish(TOPIC, 10)
        wait_until(lambda: member.got() == source.expected(), PATIENCE_S, "the events")

        def versions(prefix: str) -> dict[str, int]:
            return {record.name: record.version for record in log.list_records(prefix)}

        def is_quiet() -> bool:
            """Whether the leader has given two signs of life, and nothing else was written."""
            before = versions("group/")
            for _ in range(2):
                last = versions(LEASES)
                wait_until(lambda last=last: versions(LEASES) != last, PATIENCE_S, "a sign of life")  # type: ignore[misc]
            return versions("group/") == before

        wait_until(is_quiet, PATIENCE_S, "the group to be quiet")


def test_what_a_member_has_read_before_retention_dropped_it_is_not_expired(
    url: str, log: LogApi, source: Source
) -> None:
    groups.declare(log, "billing", "tenant-7/#", lease=CALM_LEASE)
    with Member(url, [SHARED]) as member:
        member.gate.clear()
        source.publish(TOPIC, 100)
        wait_until(lambda: member.subscriber.statistics().waiting == 100, PATIENCE_S, "all to be read")
        log.trim(0, 50)
        source.publish(TOPIC, 10)
        group = member.subscriber._memberships.groups["billing"].leading
        wait_until(lambda: group.leader and group.leader.partitions[0].info.start == 50, PATIENCE_S, "it to be noticed")
        member.gate.set()
        wait_until(lambda: groups.show(log, "billing").lag == 0, PATIENCE_S, "all of it done")
        assert len(member.seen) == 110
        assert member.subscriber.statistics().expired == groups.show(log, "billing").expired == 0


@pytest.mark.parametrize("lanes", [1, 60])
def test_a_leader_whose_records_are_too_large_stores_what_they_hold_and_goes_on(
    url: str, log: LogApi, source: Source, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one lane it is progress that is too large, with sixty it is the status."""
    groups.declare(log, "billing", "tenant-7/#", lanes=lanes, lease=CALM_LEASE)
    monkeypatch.setattr("durable_log.config.RECORD_BYTES_MAX", 1024)
    with Member(url, [SHARED], auto_ack=False, unsubscribe_timeout=1.0) as member:
        source.publish(TOPIC, 2000, keys=2000, per_frame=1000)
        wait_until(lambda: len(member.events) == 2000, PATIENCE_S, "all events")
        for event in member.events[1::2]:
            assert member.subscriber.acknowledge(event)
        counter = "records_cut" if lanes == 1 else "grants"
        status = wait_until(
            lambda: found if (found := groups.show(log, "billing").status) and found.counters.get(counter) else None,
            PATIENCE_S, "the status",
        )  # fmt: skip
        assert status.is_cut == (lanes > 1)
        for event in member.events[::2]:
            assert member.subscriber.acknowledge(event)
        wait_until(lambda: groups.show(log, "billing").lag == 0, PATIENCE_S, "all of it done")
        source.publish(TOPIC, 1)
        wait_until(lambda: len(member.events) == 2001, PATIENCE_S, "one more event")
        assert member.is_leading


@pytest.mark.parametrize("mode", ["shared", "queue"])
def test_a_program_is_told_that_retention_overtook_its_group(
    url: str, log: LogApi, source: Source, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    groups.declare(log, "billing", "tenant-7/#", mode=mode, lease=CALM_LEASE)  # type: ignore[arg-type]
    source.publish(TOPIC, 100)
    log.trim(0, 50)
    assert groups.show(log, "billing").expired == 50
    with caplog.at_level(logging.WARNING), Member(url, [f"${mode}/billing/tenant-7/#"]) as member:
        wait_until(lambda: len(member.seen) == 50, PATIENCE_S, "what is left")
        wait_until(lambda: member.subscriber.statistics().expired == 50, PATIENCE_S, "it to be told")
        wait_until(lambda: "retention has dropped 50 offsets" in caplog.text, PATIENCE_S, "a line in the log")
        wait_until(lambda: groups.show(log, "billing").lag == 0, PATIENCE_S, "all of it done")
        assert groups.show(log, "billing").expired == 50


def drop(url: str, rule: str, *, after_s: float = 3600.0) -> None:
    """Seal everything, and drop what the rule says as if so much time had passed."""
    with durable_log.open(f"{url}&seal_age=0&retention_topics={rule.replace('#', '%23')}") as log:
        assert isinstance(log, SegmentedLog)
        with Maintainer(log) as maintainer:
            maintainer.run_once(log.now_ns() + int(after_s * 1e9))


@pytest.mark.parametrize("mode", ["shared", "queue"])
@pytest.mark.parametrize("is_at_end", [True, False])
def test_a_program_is_told_what_retention_by_topic_has_taken_from_its_group(
    url: str, log: LogApi, source: Source, caplog: pytest.LogCaptureFixture, mode: str, is_at_end: bool
) -> None:
    groups.declare(log, "billing", "tenant-7/#", mode=mode, lease=CALM_LEASE)  # type: ignore[arg-type]
    groups.declare(log, "other", "elsewhere/#", lease=CALM_LEASE)
    source.publish("elsewhere/t", 10)
    for _ in range(3):
        source.publish(TOPIC, 20, per_frame=10)
        source.publish("elsewhere/t", 10)
    source.publish(TOPIC, 10)
    if not is_at_end:
        source.publish("tenant-7/kept", 5)
    drop(url, f"{TOPIC}=60")
    assert groups.show(log, "billing").expired == 70
    assert groups.show(log, "other").expired == 0
    left = 0 if is_at_end else 5
    with (
        caplog.at_level(logging.WARNING),
        Member(url, [f"${mode}/billing/tenant-7/#"]) as member,
        Member(url, ["$shared/other/elsewhere/#"]) as other,
    ):
        wait_until(lambda: member.subscriber.statistics().expired == 70, PATIENCE_S, "it to be told")
        wait_until(lambda: "as many events of the group are lost at most" in caplog.text, PATIENCE_S, "a warning")
        assert "Group billing: retention has dropped" in caplog.text
        wait_until(lambda: groups.show(log, "billing").streams[0].low == 110 + left, PATIENCE_S, "all of it done")
        wait_until(lambda: len(other.seen) == 40, PATIENCE_S, "what the other group gets")
        assert len(member.seen) == left
        assert groups.show(log, "billing").expired == 70
        assert other.subscriber.statistics().expired == groups.show(log, "other").expired == 0
    assert groups.show(log, "billing").expired == 70


def test_what_was_gone_when_a_group_got_its_place_and_what_compaction_removed_is_no_loss(
    url: str, log: LogApi, source: Source
) -> None:
    groups.declare(log, "billing", "tenant-7/#", lease=CALM_LEASE)
    source.publish("elsewhere/t", 10)
    source.publish(TOPIC, 10)
    drop(url, f"{TOPIC}=0.001", after_s=0.1)
    assert groups.show(log, "billing").expired == 10
    wait_until(lambda: time.time_ns() > log.segments()[0].dropped[0].dropped_ns, PATIENCE_S, "that time to be over")
    groups.declare(log, "late", "tenant-7/#", start="earliest", lease=CALM_LEASE)
    groups.seek(log, "billing", "earliest")
    source.publish(TOPIC, 20)
    assert isinstance(log, SegmentedLog)
    sealer = Sealer(log)
    (segment,) = sealer.seal(0)
    compactor = SegmentCompactor(log, sealer)
    compactor.write_anew(segment, [table.slice(10) for table in compactor.row_groups(segment)])
    with Member(url, [SHARED, "$shared/late/tenant-7/#"]) as member:
        wait_until(lambda: len(member.seen) == 20, PATIENCE_S, "what is left, in both groups")
        wait_until(lambda: groups.show(log, "late").lag == 0, PATIENCE_S, "all of it done")
        assert member.subscriber.statistics().expired == 0
        assert [groups.show(log, name).expired for name in ("billing", "late")] == [0, 0]


def test_a_window_is_bounded_in_bytes_too(url: str, log: LogApi) -> None:
    groups.declare(log, "billing", "tenant-7/#", lease=CALM_LEASE)
    big = Source(log, padding=1 << 19)
    with Member(url, [SHARED]) as member:
        member.gate.clear()
        big.publish(TOPIC, 80, per_frame=1)
        wait_until(lambda: member.subscriber.statistics().waiting >= 32, PATIENCE_S, "a full window")
        loan = member.subscriber._handler.loans[0]
        wait_until(lambda: loan.delivery.room == 0, PATIENCE_S, "reading to stop")
        assert member.subscriber.statistics().waiting < 60
        member.gate.set()
        wait_until(lambda: len(member.seen) == 80, PATIENCE_S, "all of it")


def test_what_a_member_finds_dropped_is_counted_once(
    url: str, log: LogApi, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member may notice before its leader does, or after it."""
    monkeypatch.setattr(config, "WINDOW", 10)
    groups.declare(log, "billing", "tenant-7/#", lease=CALM_LEASE)
    with Member(url, [SHARED]) as member:
        member.gate.clear()
        source.publish(TOPIC, 100, per_frame=10)
        wait_until(lambda: member.subscriber.statistics().waiting >= 10, PATIENCE_S, "a full window")
        log.trim(0, 50)
        member.gate.set()
        wait_until(lambda: groups.show(log, "billing").lag == 0, PATIENCE_S, "all of it done")
        lost = 100 - len(member.seen)
        assert lost > 0
        assert member.subscriber.statistics().expired == lost
        assert groups.show(log, "billing").expired == lost


def test_what_a_leader_says_is_looked_at_for_its_own_group_only(
    url: str, log: LogApi, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the cost of idle groups grows with the square of their number."""
    for name in "abc":
        groups.declare(log, name, "tenant-7/#", lease=CALM_LEASE)  # nobody begins anew, and is called by an old name
    with Member(url, [f"$shared/{name}/tenant-7/#" for name in "abc"]) as member:
        source.publish(TOPIC, 1)
        wait_until(lambda: member.streams == 3, PATIENCE_S, "a stream of each group")
        handler = member.subscriber._handler
        heard: list[int] = []
        strange: list[object] = []
        on_message = handler.on_message

        def listen(number: int, message: Any, now: float) -> None:
            borrower = handler.agent.borrower(number)
            heard.append(number)
            if borrower is None or borrower.id != message.borrower:
                strange.append(message)
            on_message(number, message, now)

        monkeypatch.setattr(handler, "on_message", listen)
        source.publish(TOPIC, 1)  # the leaders say that the log has grown
        wait_until(lambda: len(set(heard)) == 3, PATIENCE_S, "something of each leader")
        assert strange == []
