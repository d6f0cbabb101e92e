"""What a program may get wrong when it calls a session is refused at once, with what was expected."""

from __future__ import annotations

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
        ({"history": "all"}, "history is a pubsub_api.History, not 'all'"),
        ({"durability": "persistent"}, "Durability.PERSISTENT, not 'persistent'"),
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
