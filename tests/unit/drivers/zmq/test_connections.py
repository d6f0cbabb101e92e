"""Connections that were accepted by this process, as the system tells of them."""

from __future__ import annotations

import socket

from heliograph_drivers.pubsub.zmq.access.connections import Connections


def test_a_connection_is_cut_once_and_no_more_counted_though_its_owner_has_not_closed_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as peer:
        accepted = server.accept()[0]
        with accepted:
            connections = Connections()
            connections.listen_on_port(server.getsockname()[1], "127.0.0.1")
            (connection,) = connections.scan()
            assert connection.cut()
            assert peer.recv(1) == b""
            assert not connection.cut()
            assert connections.scan() == []
            assert connections.closing == 1
