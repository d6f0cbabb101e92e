"""The connections that listening sockets of this process have accepted, found where the system keeps them.

libzmq neither tells which connections a socket has nor closes a single one.  But they are descriptors of this process,
and the system knows of each which socket it is, which address it was accepted at, how many bytes have come and how many
have been taken by the other end.  A connection that is shut down here looks to libzmq as if its peer had closed it.

A descriptor may be closed by libzmq, and its number given to something else, at any moment.  So a connection is known
by the number of its socket in the system, its inode, and nothing is done by a descriptor before that was compared.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterator

from heliograph_drivers.pubsub.zmq.access import descriptors

_DESCRIPTORS = "/proc/self/fd"
_SOCKET = "socket:["
_COUNTERS = struct.Struct("=QQ")
_COUNTERS_AT = 120
"""Of ``tcpi_bytes_acked`` and ``tcpi_bytes_received`` in what TCP_INFO tells."""
_NO_LINGER = struct.pack("ii", 1, 0)
_INFO_BYTES = _COUNTERS_AT + _COUNTERS.size


class AcceptedConnection:
    """One of them.  For the thread that scans."""

    __slots__ = ("_inode", "acked", "descriptor", "is_cut", "is_measured", "peer", "received")

    def __init__(self, descriptor: int, inode: int, peer: str, *, is_measured: bool) -> None:
        self._inode = inode
        self.descriptor = descriptor
        self.is_measured = is_measured
        """The system counts the bytes of it: not those through a socket file."""
        self.peer = peer
        """Who is at the other end, to be read by people."""
        self.received = 0
        """Bytes that have come, as of the last `measure`."""
        self.acked = 0
        """Bytes that the other end has taken."""
        self.is_cut = False
        """It has been ended here, and is there until libzmq has noticed."""

    @property
    def is_same(self) -> bool:
        """The descriptor is still that of this connection."""
        try:
            return os.fstat(self.descriptor).st_ino == self._inode
        except OSError:
            return False

    def measure(self) -> None:
        """Read the counters anew.  They stay when the connection is gone."""
        if not self.is_measured:
            return
        with _borrowed(self.descriptor, self._inode) as sock:
            if sock is not None:
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
                if len(info) == _INFO_BYTES:
                    self.acked, self.received = _COUNTERS.unpack_from(info, _COUNTERS_AT)

    def cut(self) -> bool:
        """End it.  False when it has gone already, or was cut before."""
        with _borrowed(self.descriptor, self._inode) as sock:
            if sock is None or self.is_cut:
                return False
            self.is_cut = True
            with contextlib.suppress(OSError):  # the peer was faster
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)  # nor does the system keep its data
                sock.shutdown(socket.SHUT_RDWR)
            return True


class Connections:
    """Those that were accepted at certain addresses.  One thread scans; any may add addresses."""

    def __init__(self) -> None:
        self._ports: dict[int, str] = {}
        self._paths: set[str] = set()
        self._known: dict[int, AcceptedConnection | None] = {}
        """By inode; None: a socket that is something else."""
        self._watched: tuple[dict[int, str], set[str]] = ({}, set())
        """The addresses that this was found for."""
        self.descriptors = 0
        """How many this process had when they were counted last."""
        self.closing = 0
        """How many of these are connections that were cut: libzmq is about to close them."""

    def listen_on_port(self, port: int, host: str) -> None:
        """``host`` is empty when the socket listens on all interfaces."""
        self._ports = {**self._ports, port: host}

    def listen_on_path(self, path: str) -> None:
        self._paths = {*self._paths, path}

    def scan(self) -> list[AcceptedConnection]:
        """Those that there are now, but for those that were cut.  Takes some microseconds for every descriptor of the
        process."""
        found: dict[int, AcceptedConnection | None] = {}
        self._heed_addresses()
        numbers = descriptors.in_use()
        self.descriptors = len(numbers)
        for number in numbers:
            inode = _inode_of(number)
            if inode:
                found[inode] = self._known[inode] if inode in self._known else self._look(number, inode)
        self._known = found
        ours = [connection for connection in found.values() if connection is not None]
        left = [connection for connection in ours if not connection.is_cut]
        self.closing = len(ours) - len(left)
        return left

    def find(self, descriptor: int) -> AcceptedConnection | None:
        """The one that has this descriptor now; None when there is none, or it was cut.  Looks at no other."""
        self._heed_addresses()
        inode = _inode_of(descriptor)
        found = self._known.get(inode)
        if inode and (found is None or found.descriptor != descriptor):
            found = self._known[inode] = self._look(descriptor, inode)
        return None if found is None or found.is_cut else found

    def _heed_addresses(self) -> None:
        watched = (self._ports, self._paths)
        if watched != self._watched:
            self._known, self._watched = {}, watched  # what was something else may be one of ours now

    def _look(self, descriptor: int, inode: int) -> AcceptedConnection | None:
        with _borrowed(descriptor, inode) as sock:
            if sock is None:
                return None
            try:
                local, peer = sock.getsockname(), sock.getpeername()
            except OSError:
                return None  # a listener, or one that is not connected
            if not self._is_ours(sock, local):
                return None
            is_file = sock.family == socket.AF_UNIX
            return AcceptedConnection(
                descriptor, inode, "a local process" if is_file else peer[0], is_measured=not is_file
            )

    def _is_ours(self, sock: socket.socket, local: object) -> bool:
        if sock.family == socket.AF_UNIX:
            return isinstance(local, str) and local in self._paths
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(local, tuple):
            return False
        host = self._ports.get(local[1])
        return host is not None and host in ("", local[0])


def _inode_of(descriptor: int) -> int:
    """Of the socket that has this descriptor; 0 when there is none, or it is no socket."""
    try:
        target = os.readlink(f"{_DESCRIPTORS}/{descriptor}")
    except OSError:
        return 0  # closed since
    return int(target[len(_SOCKET) : -1]) if target.startswith(_SOCKET) else 0


@contextlib.contextmanager
def _borrowed(descriptor: int, inode: int) -> Iterator[socket.socket | None]:
    """The socket, by a descriptor of our own for as long as the block runs; None when it is another one by now."""
    try:
        copy = os.dup(descriptor)
    except OSError as error:
        # Without a free descriptor there is only libzmq's own, and a moment in which it may become another.
        copy = descriptor if error.errno == errno.EMFILE else -1
    try:
        is_same = os.fstat(copy).st_ino == inode
        sock = socket.socket(fileno=copy) if is_same else None
    except OSError:
        sock = None
    try:
        yield sock
    finally:
        if sock is not None:
            sock.detach()
        if copy not in (-1, descriptor):
            os.close(copy)
