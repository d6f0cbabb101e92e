"""Addresses of the ZeroMQ driver: checking them, binding to them, and the addresses for queries.

An address is ``tcp://host:port`` or ``ipc:///path/of/socket``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import socket
from urllib.parse import urlsplit

import zmq

from heliograph_drivers.pubsub.zmq.options import WILDCARD_HOSTS
from pubsub_api.errors import AddressInUse, DriverError, InvalidConfig
from pubsub_api.runtime.files import identity_of
from pubsub_api.runtime.sockets import socket_file

Socket = zmq.Socket[bytes]

_QUERY_SUFFIX = ".query"


def tcp_address(host: str, port: int | str) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def ipc_address(path: pathlib.Path) -> str:
    return f"ipc://{path}"


def query_path(path: pathlib.Path) -> pathlib.Path:
    """The socket file for queries of a publisher whose socket file is ``path``."""
    return path.with_name(path.name + _QUERY_SUFFIX)


def query_address(address: str, port: int) -> str:
    """The address for queries of the publisher at ``address``, with the port from its echo."""
    parts = urlsplit(address)
    if parts.scheme == "ipc":
        return ipc_address(query_path(pathlib.Path(parts.path)))
    return tcp_address(parts.hostname or "", port)


def check_address(address: str) -> str:
    """Return ``address`` if a subscriber can connect to it.  Raises InvalidConfig otherwise."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidConfig(f"address {address!r}: {error}") from error
    if parts.scheme == "tcp" and host and port and not parts.path and host not in WILDCARD_HOSTS:
        return address
    if parts.scheme == "ipc" and not parts.netloc and parts.path.startswith("/"):
        check_path(pathlib.Path(parts.path))
        return address
    raise InvalidConfig(
        f"{address!r} is no address for a ZeroMQ subscriber; write tcp://host:port or ipc:///path/of/socket"
    )


def check_path(path: pathlib.Path) -> None:
    """Raises InvalidConfig when the path, or the path for queries beside it, cannot be a socket file."""
    longest = zmq.IPC_PATH_MAX_LEN - len(_QUERY_SUFFIX)
    if not path.is_absolute() or not path.name:
        raise InvalidConfig(f"the socket path {str(path)!r} is not absolute")
    if len(os.fsencode(path)) > longest:
        raise InvalidConfig(f"the socket path {str(path)!r} is longer than the {longest} bytes that the system allows")


def host_name(address: str) -> str:
    """The host name in an address that must be resolved; empty for a numeric address and a socket file."""
    host = "" if "[" in address else urlsplit(address).hostname or ""
    return "" if host in WILDCARD_HOSTS or host.replace(".", "").isdigit() else host


def uses_ipv6(address: str) -> bool:
    """Whether an address needs IPv6.  It is switched on only if needed: with it ``*`` would mean other interfaces, and
    a name with addresses of both kinds, such as ``localhost``, would mean the one on which publishers seldom listen.

    Resolves a host name, which blocks for as long as the system's resolver takes.
    """
    if not (name := host_name(address)):
        return "[" in address
    try:
        found = {family for family, *_ in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False  # not known now; ZeroMQ resolves it again with each attempt to connect
    return found == {socket.AF_INET6}


def set_heartbeats(sock: Socket, link_timeout_s: float) -> None:
    """Have ZeroMQ test an idle link six times in ``link_timeout``; the link is lost when all answers are missing."""
    timeout_ms = int(link_timeout_s * 1000)
    sock.set(zmq.HEARTBEAT_IVL, timeout_ms // 6)
    sock.set(zmq.HEARTBEAT_TIMEOUT, timeout_ms)


def bind_tcp(sock: Socket, host: str, port: int) -> None:
    """Bind; port 0 takes a free port, which `bound_to` returns.  Raises AddressInUse, InvalidConfig, DriverError."""
    address = tcp_address(_numeric(host), port or "*")
    sock.set(zmq.IPV6, uses_ipv6(address))
    try:
        sock.bind(address)
    except zmq.ZMQError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"{address} belongs to another process: one process per address can publish. Publish through the "
                "publisher service of this host, or choose another publisher_port"
            ) from error
        if error.errno in (errno.EADDRNOTAVAIL, errno.ENODEV, errno.EINVAL, errno.EACCES):
            raise InvalidConfig(f"{address} cannot be bound to: {error}") from error
        raise DriverError(f"{address} cannot be bound to: {error}") from error


def bound_to(sock: Socket) -> tuple[str, int]:
    """Host and port of a socket that is bound by tcp."""
    parts = urlsplit(sock.getsockopt_string(zmq.LAST_ENDPOINT))
    return parts.hostname or "", parts.port or 0


def _numeric(host: str) -> str:
    """The numeric address of a host name: ZeroMQ cannot bind to a name.  Blocks while it is resolved."""
    if host in WILDCARD_HOSTS:
        return host
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidConfig(f"[pubsub] publisher_bind_address {host!r}: {error}") from error
    return str(found[0][4][0])


class SocketFile:
    """A socket file that this process has bound.  ``remove`` deletes it, unless another process has bound it since."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._identity = identity_of(path)

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError), socket_file.directory_locked(self._path):
            if identity_of(self._path) == self._identity:
                self._path.unlink()


def bind_ipc(sock: Socket, path: pathlib.Path) -> SocketFile:
    """Bind to a socket file that only this user may open.  Raises AddressInUse, InvalidConfig, DriverError.

    ZeroMQ would remove an existing file, even that of a live publisher, and its mode would depend on the umask.  So the
    listening socket is made here and given to ZeroMQ.
    """
    check_path(path)
    try:
        listener = socket_file.listen(path)
    except AddressInUse as error:
        raise AddressInUse(
            f"{error}: one process per address can publish. Publish through the publisher service of this host, or "
            "choose another path"
        ) from error
    try:
        owned = SocketFile(path)
        sock.set(zmq.USE_FD, listener.fileno())
        sock.bind(ipc_address(path))
        listener.detach()  # ZeroMQ closes it from now on
    except (OSError, zmq.ZMQError) as error:
        raise DriverError(f"{path} cannot be bound to: {error}") from error
    finally:
        listener.close()
    return owned
