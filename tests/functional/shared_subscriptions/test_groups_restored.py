"""An older copy of a log's store is put back under running members: offsets are given again, to other events.

What members remember of those offsets is void, told and counted, and all of the new events are delivered.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
from collections.abc import Iterator

import pytest

import durable_log
from durable_log import LogApi
from shared_subscriptions import groups
from shared_subscriptions.consuming import marks
from shared_subscriptions.core.events import Mode
from tests.helpers.group_nodes import HASTY_LEASE, Member, Source
from tests.helpers.log_copies import Copier, copier_of_postgres, copier_of_redis, copier_of_sqlite
from tests.helpers.servers import RedisServer
from tests.helpers.servers_db import PostgresServer
from tests.helpers.waiting import wait_until

PATIENCE_S = 60.0
TOPICS = [f"tenant-7/{number}" for number in range(4)]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> tuple[str, Copier]:
    """The URL of a new log, and what copies its store."""
    if request.param == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        url = f"{postgres.new_schema()}&shards=2"
        return url, copier_of_postgres(postgres, url)
    if request.param == "redis":
        redis: RedisServer = request.getfixturevalue("redis")
        with redis.client() as client:
            client.flushall()
        return f"{redis.address}?shards=2", copier_of_redis(redis)
    return f"sqlite://{tmp_path}/log.db?shards=2", copier_of_sqlite(tmp_path / "log.db")


def publish(log: LogApi, events: int) -> set[tuple[str, int]]:
    """Events of a publisher that was never seen before, in all topics."""
    source = Source(log)
    for topic in TOPICS:
        source.publish(topic, events, per_frame=4)
    return source.expected()


@pytest.mark.parametrize("events", [3, 60])
@pytest.mark.parametrize("mode", ["shared", "queue"])
def test_offsets_that_are_given_again_are_delivered_again(
    store: tuple[str, Copier],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    mode: Mode,
    events: int,
) -> None:
    """Also when the log has grown beyond where it ended before anybody looks."""
    monkeypatch.setattr(marks, "CHECK_S", 0.0)  # here both happen within milliseconds
    url, copy = store
    with contextlib.closing(durable_log.open(url)) as log:
        groups.declare(log, "g", "tenant-7/#", mode=mode, lanes=2 if mode == "shared" else 1, lease=HASTY_LEASE)
        with Member(url, [f"${mode}/g/tenant-7/#"], member_lease=HASTY_LEASE.member_lease_s) as member:
            first = publish(log, 10)
            wait_until(lambda: member.got() >= first, PATIENCE_S, "the first events")
            wait_until(lambda: groups.show(log, "g").lag == 0, PATIENCE_S, "their acknowledgement")
            restore = copy()
            more = publish(log, 20)
            wait_until(lambda: len(member.seen) >= len(first) + len(more), PATIENCE_S, "more events")
            wait_until(lambda: groups.show(log, "g").lag == 0, PATIENCE_S, "their acknowledgement")
            restore()
            member.seen.clear()
            new = publish(log, events)
            wait_until(lambda: member.got() >= new, PATIENCE_S, "every event that was appended after the restore")
            wait_until(lambda: groups.show(log, "g").lag == 0, PATIENCE_S, "their acknowledgement")
            counted = member.subscriber.statistics().log.went_back
            status = groups.show(log, "g").status
    assert counted >= 1
    assert status is not None
    assert status.counters["log_went_back"] >= 1
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert any(text.startswith("Group g: ") and "older state" in text for text in told)
