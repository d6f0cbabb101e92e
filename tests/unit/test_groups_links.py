"""A member's link to its leader counts what goes wrong with it."""

from __future__ import annotations

import selectors
import socket

from shared_subscriptions.core.candidate import LeaderRecord
from shared_subscriptions.links import LeaderLink
from shared_subscriptions.wire import KEY_BYTES
from tests.waiting import wait_until


def test_a_leader_whose_address_is_none_is_counted() -> None:
    with selectors.DefaultSelector() as selector:
        link = LeaderLink(selector, bytes_max=1000)
        link.leader = LeaderRecord("l", "nowhere", bytes(KEY_BYTES))
        assert not link.maintain(0.0)
        assert (link.link_failures, link.is_connected) == (1, False)


def test_a_leader_that_hangs_up_is_counted() -> None:
    with selectors.DefaultSelector() as selector, socket.create_server(("127.0.0.1", 0)) as listener:
        link = LeaderLink(selector, bytes_max=1000)
        link.leader = LeaderRecord("l", f"127.0.0.1:{listener.getsockname()[1]}", bytes(KEY_BYTES))
        assert link.maintain(0.0)
        listener.accept()[0].close()
        wait_until(lambda: not link.receive() and not link.is_connected, 20, "the end of the connection")
        assert (link.link_failures, link.bad_messages) == (1, 0)
