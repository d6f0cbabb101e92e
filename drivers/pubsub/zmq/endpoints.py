"""Addresses of the ZeroMQ driver: which are sound, how one is bound to, and where queries go.

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
    """Where a publisher whose socket is ``path`` answers queries."""
    return path.with_name(path.name + _QUERY_SUFFIX)


def query_address(address: str, port: int) -> str:
    """Where the publisher at ``address`` answers queries, given the port it told."""
    parts = urlsplit(address)
    if parts.scheme == "ipc":
        return ipc_address(query_path(pathlib.Path(parts.path)))
    return tcp_address(parts.hostname or "", port)


def check_address(address: str) -> str:
    """Return ``address`` when a subscriber can listen to it.  Raises InvalidConfig with the reason otherwise."""
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
        f"{address!r} is nothing a ZeroMQ subscriber can listen to; write tcp://host:port or ipc:///path/of/socket"
    )


def check_path(path: pathlib.Path) -> None:
    """Raises InvalidConfig when the path, or that for queries beside it, cannot be a socket's."""
    longest = zmq.IPC_PATH_MAX_LEN - len(_QUERY_SUFFIX)
    if not path.is_absolute() or not path.name:
        raise InvalidConfig(f"the socket path {str(path)!r} is not absolute")
    if len(os.fsencode(path)) > longest:
        raise InvalidConfig(f"the socket path {str(path)!r} is longer than the {longest} bytes that the system allows")


def host_name(address: str) -> str:
    """The name in an address that has to be looked up before it can be used; empty when it has none."""
    host = "" if "[" in address else urlsplit(address).hostname or ""
    return "" if host in WILDCARD_HOSTS or host.replace(".", "").isdigit() else host


def uses_ipv6(address: str) -> bool:
    """IPv6 is switched on only where it is needed: with it, ``*`` would mean other interfaces than without, and a name
    that has addresses of both kinds, as ``localhost`` has, would mean the one that publishers seldom listen on.

    A host name is looked up, which blocks for as long as the system's resolver takes.
    """
    if not (name := host_name(address)):
        return "[" in address
    try:
        found = {family for family, *_ in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False  # unknown now; ZeroMQ looks it up again and again
    return found == {socket.AF_INET6}


def set_heartbeats(sock: Socket, link_timeout_s: float) -> None:
    """An idle link is tested six times in ``link_timeout``: five answers may be lost before it counts as lost."""
    timeout_ms = int(link_timeout_s * 1000)
    sock.set(zmq.HEARTBEAT_IVL, timeout_ms // 6)
    sock.set(zmq.HEARTBEAT_TIMEOUT, timeout_ms)


def bind_tcp(sock: Socket, host: str, port: int) -> None:
    """Bind, to a free port when ``port`` is 0: `bound_to` tells which.  Raises AddressInUse, InvalidConfig."""
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
    """ZeroMQ binds to numeric addresses and interface names; a host name is looked up for it."""
    if host in WILDCARD_HOSTS:
        return host
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidConfig(f"[pubsub] publisher_bind_address {host!r}: {error}") from error
    return str(found[0][4][0])


class SocketFile:
    """A socket file that this process has bound to.  ``remove`` takes it away, unless another process has it by now."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._identity = identity_of(path)

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError), socket_file.directory_locked(self._path):
            if identity_of(self._path) == self._identity:
                self._path.unlink()


def bind_ipc(sock: Socket, path: pathlib.Path) -> SocketFile:
    """Bind to a socket file that only this user may open.  Raises AddressInUse, InvalidConfig.

    ZeroMQ by itself would remove whatever file is there, a live publisher's too, and leave its mode to the umask.  So
    the listening socket is made here, and given to it.
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
        listener.detach()  # it is ZeroMQ's now, and closed by it
    except (OSError, zmq.ZMQError) as error:
        raise DriverError(f"{path} cannot be bound to: {error}") from error
    finally:
        listener.close()
    return owned
