"""The connections that listening sockets of this process have accepted, found among its descriptors.

libzmq neither lists the connections of a socket nor closes a single one.  But they are descriptors of this process, and
the system knows for each its socket, the address at which it was accepted, how many bytes have arrived, and how many
the other end has acknowledged.  When a connection is shut down here, libzmq sees it as closed by its peer.

libzmq may close a descriptor at any moment, and the system may use its number for something else.  So a connection is
identified by the inode of its socket, which is compared before a descriptor is used.
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
"""Offset of ``tcpi_bytes_acked`` and ``tcpi_bytes_received`` in TCP_INFO."""
_NO_LINGER = struct.pack("ii", 1, 0)
_INFO_BYTES = _COUNTERS_AT + _COUNTERS.size


class AcceptedConnection:
    """An accepted connection.  Used by the thread that scans only."""

    __slots__ = ("_inode", "acked", "descriptor", "is_cut", "is_measured", "peer", "received")

    def __init__(self, descriptor: int, inode: int, peer: str, *, is_measured: bool) -> None:
        self._inode = inode
        self.descriptor = descriptor
        self.is_measured = is_measured
        """Whether the system counts its bytes, which it does for tcp, not for socket files."""
        self.peer = peer
        """The other end, for log lines."""
        self.received = 0
        """Bytes that have arrived, as of the last `measure`."""
        self.acked = 0
        """Bytes that the other end has acknowledged, as of the last `measure`."""
        self.is_cut = False
        """Whether `cut` has ended it; it exists until libzmq has noticed."""

    @property
    def is_same(self) -> bool:
        """Whether the descriptor still belongs to this connection."""
        try:
            return os.fstat(self.descriptor).st_ino == self._inode
        except OSError:
            return False

    def measure(self) -> None:
        """Read the counters.  They keep their values when the connection is gone."""
        if not self.is_measured:
            return
        with _borrowed(self.descriptor, self._inode) as sock:
            if sock is not None:
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
                if len(info) == _INFO_BYTES:
                    self.acked, self.received = _COUNTERS.unpack_from(info, _COUNTERS_AT)

    def cut(self) -> bool:
        """End the connection.  Returns False when it has ended already, or was cut before."""
        with _borrowed(self.descriptor, self._inode) as sock:
            if sock is None or self.is_cut:
                return False
            self.is_cut = True
            with contextlib.suppress(OSError):  # the peer has closed it at the same time
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)  # frees the unsent data, too
                sock.shutdown(socket.SHUT_RDWR)
            return True


class Connections:
    """The connections accepted at certain addresses.  One thread scans; any thread may add addresses."""

    def __init__(self) -> None:
        self._ports: dict[int, str] = {}
        self._paths: set[str] = set()
        self._known: dict[int, AcceptedConnection | None] = {}
        """Inode -> the connection; None for a socket that is no such connection."""
        self._watched: tuple[dict[int, str], set[str]] = ({}, set())
        """The addresses for which `_known` was found."""
        self.descriptors = 0
        """How many descriptors this process had at the last scan."""
        self.closing = 0
        """How many of these are connections that were cut, which libzmq will close soon."""

    def listen_on_port(self, port: int, host: str) -> None:
        """``host`` is empty when the socket listens on all interfaces."""
        self._ports = {**self._ports, port: host}

    def listen_on_path(self, path: str) -> None:
        self._paths = {*self._paths, path}

    def scan(self) -> list[AcceptedConnection]:
        """The present connections, without those that were cut.  Takes some microseconds for every descriptor of the
        process."""
        found: dict[int, AcceptedConnection | None] = {}
        self._apply_addresses()
        numbers = descriptors.in_use()
        self.descriptors = len(numbers)
        for number in numbers:
            inode = _inode_of(number)
            if inode:
                found[inode] = self._known[inode] if inode in self._known else self._examine(number, inode)
        self._known = found
        ours = [connection for connection in found.values() if connection is not None]
        left = [connection for connection in ours if not connection.is_cut]
        self.closing = len(ours) - len(left)
        return left

    def find(self, descriptor: int) -> AcceptedConnection | None:
        """The connection that has this descriptor now; None when there is none, or it was cut.  Does not scan."""
        self._apply_addresses()
        inode = _inode_of(descriptor)
        found = self._known.get(inode)
        if inode and (found is None or found.descriptor != descriptor):
            found = self._known[inode] = self._examine(descriptor, inode)
        return None if found is None or found.is_cut else found

    def _apply_addresses(self) -> None:
        watched = (self._ports, self._paths)
        if watched != self._watched:
            self._known, self._watched = {}, watched  # all sockets are examined again

    def _examine(self, descriptor: int, inode: int) -> AcceptedConnection | None:
        with _borrowed(descriptor, inode) as sock:
            if sock is None:
                return None
            try:
                local, peer = sock.getsockname(), sock.getpeername()
            except OSError:
                return None  # a listener, or a socket that is not connected
            if not self._is_watched(sock, local):
                return None
            is_file = sock.family == socket.AF_UNIX
            return AcceptedConnection(
                descriptor, inode, "a local process" if is_file else peer[0], is_measured=not is_file
            )

    def _is_watched(self, sock: socket.socket, local: object) -> bool:
        if sock.family == socket.AF_UNIX:
            return isinstance(local, str) and local in self._paths
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(local, tuple):
            return False
        host = self._ports.get(local[1])
        return host is not None and host in ("", local[0])


def _inode_of(descriptor: int) -> int:
    """The inode of the socket with this descriptor; 0 when there is none, or it is no socket."""
    try:
        target = os.readlink(f"{_DESCRIPTORS}/{descriptor}")
    except OSError:
        return 0  # closed meanwhile
    return int(target[len(_SOCKET) : -1]) if target.startswith(_SOCKET) else 0


@contextlib.contextmanager
def _borrowed(descriptor: int, inode: int) -> Iterator[socket.socket | None]:
    """The socket, by a copy of its descriptor, inside the ``with``; None when the descriptor has another socket now."""
    try:
        copy = os.dup(descriptor)
    except OSError as error:
        # Without a free descriptor libzmq's own is used, which libzmq may close between the check and the use.
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
