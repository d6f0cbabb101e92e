"""Connections that were accepted by this process, as the system tells of them."""

from __future__ import annotations

import socket

from heliograph_drivers.pubsub.zmq.access.connections import Connections


def test_one_connection_is_found_by_its_descriptor_and_is_the_one_that_a_look_at_all_finds() -> None:
    connections = Connections()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as peer:
        with server.accept()[0] as accepted:
            assert connections.find(accepted.fileno()) is None, "nobody said that this address is ours"
            connections.listen_on_port(server.getsockname()[1], "127.0.0.1")
            connection = connections.find(accepted.fileno())
            assert connection is not None
            assert connections.find(accepted.fileno()) is connection
            assert connections.scan() == [connection]
            assert connections.find(server.fileno()) is None
            assert connections.find(peer.fileno()) is None
            assert connections.find(-1) is None
            assert connection.cut()
            assert connections.find(accepted.fileno()) is None
            descriptor = accepted.fileno()
        assert connections.find(descriptor) is None


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
