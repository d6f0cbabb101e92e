"""Maintenance of a log on object storage, killed at each of its requests, before and after it is carried out."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Mapping

import pytest

from durable_log.segments import sealing
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.log_child import log_process
from durable_log.testing.sources import Source, numbers, read_events
from durable_log.upkeep.verifying import verify
from pubsub_api.errors import HeliographError
from pubsub_api.testing.child import ChildProcess
from tests.helpers.logs import in_time, opened
from tests.helpers.s3_server import S3Proxy, S3Server, keys

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

REQUESTS = 60
"""More than two rounds of maintenance make, with sealing and compaction."""
EVENTS = 50


@pytest.mark.parametrize("fate", ["refuse", "lose-answer"])
def test_maintenance_killed_at_any_request_loses_nothing(
    tmp_path: pathlib.Path, fate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened, state = Source(), Source()
    options = f"sqlite://{tmp_path}/log.db?shards=1&seal_events=40&compact_topics=state&"
    with S3Server() as s3, S3Proxy(s3.port).running() as proxy:
        place = s3.new_prefix()
        with opened(options + s3.options(place)) as log:
            for number in range(1, REQUESTS + 1):
                log.append([happened.frame("happened", EVENTS), state.frame("state", EVENTS)])
                with log_process(options + s3.options(place, proxy.port)) as child:
                    child.receive()
                    _kill_at(proxy, child, number, fate)
                    with contextlib.suppress(HeliographError):
                        child.ask(maintain=True, lease_s=1.0)
                        while True:
                            child.receive()
                proxy.rule = lambda _method, _path, _headers: "pass"
                _check(log, happened, state, number * EVENTS)
            monkeypatch.setattr(sealing, "STAGED_AGE_S", -3600.0)
            in_time(lambda: [Sealer(log).clean()])
            _check(log, happened, state, REQUESTS * EVENTS)
            there = [f"{place}/{key}" for key in keys(s3.objects(place), ".parquet")]
            assert there == [segment.path for segment in log.segments()], "no orphan is left, and nothing else is gone"


def _kill_at(proxy: S3Proxy, child: ChildProcess, number: int, fate: str) -> None:
    count = 0

    def rule(_method: str, _path: str, _headers: Mapping[str, str]) -> str:
        nonlocal count
        count += 1
        if count < number:
            return "pass"
        if fate == "refuse":
            child.kill()
        return fate

    def answered() -> None:
        if count >= number:
            child.kill()

    proxy.rule, proxy.on_done = rule, answered


def _check(log: SegmentedLog, happened: Source, state: Source, count: int) -> None:
    assert numbers(log, happened.guid, "happened") == list(range(1, count + 1)), "each event, once"
    sent = {(one.event.table, one.event.key): one.event.version for one in read_events(log) if one.guid == state.guid}
    assert sent
    assert max(sent.values()) == count, "of each object the newest"
    assert verify(log).problems == []
