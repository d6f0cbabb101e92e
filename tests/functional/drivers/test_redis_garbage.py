"""What strangers and careless operators give the Redis driver: garbage for questions, options that mean nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

import pubsub_api
from pubsub_api import loading
from pubsub_api.core import frame as frames
from pubsub_api.core.frame import Kind
from tests.helpers.redis_ends import Ends
from tests.helpers.servers import RedisServer
from tests.helpers.waiting import WAIT_S, wait_until


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


def test_garbage_questions_are_counted_one_by_one_and_logged_once(
    redis_server: RedisServer, ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    publisher, _ = ends.publisher(f"{redis_server.address}?channel_prefix=garbage:")
    publisher.serve(lambda _query: [])
    with caplog.at_level(logging.WARNING), redis_server.client() as stranger:
        for number in range(300):
            assert stranger.publish("garbage:$ask:#", b"garbage %d" % number) == 1
        wait_until(lambda: publisher.counters["not_queries"] == 300, WAIT_S, "all of it to be counted")
    assert len(caplog.records) == 1


def test_frames_that_are_no_questions_are_counted_one_by_one_and_logged_once(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{redis_server.address}?channel_prefix=broken:"
    no_question = frames.pack(Kind.QUERY, bytes(16), "#", b"\xc1")
    with pubsub_api.open(url) as session, redis_server.client() as stranger:
        publisher = session.publisher()
        with caplog.at_level(logging.WARNING):
            for _ in range(300):
                assert stranger.publish("broken:$ask:#", bytes(16) + no_question) == 1
            wait_until(lambda: publisher.statistics().questions.bad_queries == 300, WAIT_S, "all of it to be counted")
        assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("option", "value"), [("publisher_port", 7777), ("publishers_ips", ["192.0.2.1"]), ("publisher_transport", "ipc")]
)
def test_an_address_that_the_driver_has_no_use_for_is_named(
    option: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    conf = loading.conf_from_url("redis://127.0.0.1:6379/0")
    loading.build_driver(conf)
    assert not caplog.records
    conf.set_override(option, value, group="pubsub")
    loading.build_driver(conf)
    assert f"[pubsub] {option} is set, and the redis driver ignores it" in caplog.text


def test_the_url_of_an_encrypted_server_is_understood() -> None:
    driver = loading.build_driver(loading.conf_from_url("rediss://redis.example.org:6380/0"))
    assert driver.listen_addresses() == ["rediss://redis.example.org:6380/0"]
