"""A log on Redis servers that replicate: the master is killed, and another server takes its place."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

import durable_log
from durable_log.log_api import shard_of
from durable_log.testing.sources import Source, check_consistent, numbers
from pubsub_api.errors import InvalidConfig
from tests.helpers.logs import in_time, opened
from tests.helpers.redis_sites import RedisSite, SlotMove, in_a_cluster, watched_by_sentinels
from tests.helpers.servers import free_port

TOPICS = ("t", "other")


@pytest.fixture(params=["sentinel", "cluster"])
def site(request: pytest.FixtureRequest) -> Iterator[RedisSite]:
    making = watched_by_sentinels() if request.param == "sentinel" else in_a_cluster("heliograph:log:")
    with making as site:
        yield site


def test_a_fail_over_loses_nothing_that_was_acknowledged(site: RedisSite) -> None:
    source = Source()

    def append(log: durable_log.LogApi, count: int) -> None:
        for _ in range(count):
            in_time(functools.partial(log.append, [source.frame(topic, 3) for topic in TOPICS]))

    with opened(site.url) as log:
        append(log, 20)
        log.put_records([("a", b"1", 0)])
        former = site.master()
        former.kill()
        append(log, 20)
        assert site.master() is not former
        record = in_time(lambda: log.get_record("a"))
        assert record is not None
        assert record.value == b"1"
        with opened(site.url) as second:
            for topic in TOPICS:
                assert numbers(second, source.guid, topic) == list(range(1, 121))
            check_consistent(second)
        assert log.wait({0: 0, 1: 0}, timeout_s=60)


def test_what_no_replica_has_is_not_acknowledged(site: RedisSite) -> None:
    source, frame = Source(), None
    master = site.master()
    with opened(site.url + "&operation_timeout=1") as log:
        log.append([source.frame("t", 3)])
        for server in site.servers:
            if server is not master:
                server.freeze()
        frame = source.frame("t", 3)
        with pytest.raises(durable_log.LogUnavailable, match=r"replicas have|NOREPLICAS"):
            log.append([frame])
        for server in site.servers:
            if server is not master:
                server.thaw()
        in_time(lambda: log.append([frame]))
        assert in_time(lambda: numbers(log, source.guid, "t")) == list(range(1, 7))


def test_a_slot_that_moves_to_another_node_takes_the_log_with_it() -> None:
    source = Source()
    with in_a_cluster("heliograph:log:") as site, opened(site.url) as log:
        log.append([source.frame("t", 3)])
        move = SlotMove(site, "heliograph:log:")
        move.begin()
        # A stream of which the shard, but not the stream itself, has keys already.
        beside = next(name for name in ("a", "b", "c", "d", "e") if shard_of(name, 2) == shard_of("t", 2))
        frames = [source.frame("t", 3), source.frame(beside, 3)]
        with pytest.raises(durable_log.LogUnavailable):
            log.append(frames)
        with pytest.raises(durable_log.LogUnavailable):
            log.put_records([("a", b"1", 0)])
        move.finish()
        assert in_time(lambda: log.append(frames)).events == 6, "nothing was kept of what was refused"
        assert in_time(lambda: log.put_records([("a", b"1", 0)]))
        assert in_time(lambda: numbers(log, source.guid, "t")) == list(range(1, 7))
        check_consistent(log)


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://127.0.0.1:1",
        "redis+sentinel://127.0.0.1:1/truth/0/more",
        "redis+sentinel://127.0.0.1:1/truth/zero",
        "redis+cluster://127.0.0.1:1/3",
        "redis+cluster://127.0.0.1:0",
        "redis+cluster://127.0.0.1:1,",
        "redis+sentinel://,127.0.0.1:1/truth",
        "redis+cluster://u:hidden@127.0.0.1:1,u:hidden@127.0.0.1:2",
        "redis+cluster://127.0.0.1:1?key_prefix=a{}b",
        "redis+cluster://127.0.0.1:1?key_prefix=a{b",
        "redis+cluster://127.0.0.1:1?key_prefix=}b",
        "redis+sentinel://u:hidden/x@127.0.0.1:1/truth",
    ],
)
def test_an_address_that_leads_nowhere_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        durable_log.open(url)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("place", ["127.0.0.1:", "[::1]", "[::1]:"])
def test_a_sentinel_without_a_port_has_that_of_sentinels(place: str) -> None:
    with pytest.raises(durable_log.LogUnavailable) as caught:
        durable_log.open(f"redis+sentinel://{place},{place}/no-such-master")
    assert str(caught.value).partition("/no-such-master")[0].count(":26379") == 2


@pytest.mark.parametrize("scheme", ["redis+sentinel://{}/truth", "redis+cluster://{}"])
def test_servers_that_are_away_are_told_without_the_password(scheme: str) -> None:
    places = f"user:secret@127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    with pytest.raises(durable_log.LogUnavailable) as found:
        durable_log.open(scheme.format(places))
    assert "127.0.0.1" in str(found.value)
    assert "secret" not in str(found.value)
