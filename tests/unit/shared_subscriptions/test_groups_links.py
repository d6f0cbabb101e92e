"""A member's link to its leader counts what goes wrong with it."""

from __future__ import annotations

import selectors
import socket
from collections import Counter

from shared_subscriptions.consuming.links import LeaderLink
from shared_subscriptions.wire import KEY_BYTES
from tests.helpers.waiting import wait_until


def test_a_leader_whose_address_is_none_is_counted() -> None:
    with selectors.DefaultSelector() as selector:
        counters: Counter[str] = Counter()
        link = LeaderLink(selector, "nowhere", bytes(KEY_BYTES), counters, bytes_max=1000)
        assert not link.maintain(0.0)
        assert (counters, link.is_connected) == ({"link_failures": 1}, False)


def test_a_leader_that_hangs_up_is_counted() -> None:
    with selectors.DefaultSelector() as selector, socket.create_server(("127.0.0.1", 0)) as listener:
        counters: Counter[str] = Counter()
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        link = LeaderLink(selector, endpoint, bytes(KEY_BYTES), counters, bytes_max=1000)
        assert link.maintain(0.0)
        listener.accept()[0].close()
        wait_until(lambda: not link.receive() and not link.is_connected, 20, "the end of the connection")
        assert counters == {"link_failures": 1}
