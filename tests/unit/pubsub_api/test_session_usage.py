"""What a program may get wrong when it calls a session is refused at once, with what was expected."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import pubsub_api
from pubsub_api.errors import InvalidEvent, UsageError


@pytest.fixture
def session() -> Iterator[pubsub_api.Session]:
    with pubsub_api.open("memory://usage") as session:
        yield session


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"on_event": "print"}, "on_event is called back, and 'print' cannot be called"),
        ({"on_resync": 7}, "on_resync is called back, and 7 cannot be called"),
        ({"past": "ever"}, "past is 'all', a number from 1, 'volatile', .*, not 'ever'"),
        ({"past": 0}, "a number from 1, .* not 0"),
        ({"past": True}, "a number from 1, .* not True"),
    ],
)
def test_a_subscriber_refuses(session: pubsub_api.Session, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        session.subscriber(["port"], **arguments)


@pytest.mark.parametrize("event", [{"topic": "port"}, None, "port"])
def test_only_events_are_sent(session: pubsub_api.Session, event: Any) -> None:
    with pytest.raises(InvalidEvent, match=f"not an object of type {type(event).__name__}"):
        session.publisher().send_event(event)
    with pytest.raises(InvalidEvent, match=f"not an object of type {type(event).__name__}"):
        session.publisher().send_events([event])


@pytest.mark.parametrize("needed", [{"caches": -1}, {"services": -1}])
def test_fewer_than_no_cache_cannot_confirm(session: pubsub_api.Session, needed: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="cannot be fewer than none"):
        session.publisher().confirm(timeout_s=0, **needed)


def test_files_are_a_list() -> None:
    with pytest.raises(UsageError, match="config_files is a list of files"):
        pubsub_api.open(config_files="heliograph.conf")


def test_a_subscriber_that_calls_back_has_nothing_to_get(session: pubsub_api.Session) -> None:
    with session.subscriber(["port"], print) as subscriber, pytest.raises(UsageError, match="calls back"):
        subscriber.get(timeout_s=0)


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_group_has_a_name(session: pubsub_api.Session, name: str) -> None:
    with pytest.raises(UsageError, match="without /"):
        session.group(name, "port")


@pytest.mark.parametrize("call", ["subscriber", "group", "frames"])
def test_a_call_has_seven_arguments_at_most(call: str) -> None:
    assert len(inspect.signature(getattr(pubsub_api.Session, call)).parameters) <= 1 + 7
