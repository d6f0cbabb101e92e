"""Socket files: only their user may open them, and they are replaced only when no process listens on them any more."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import socket
import stat
import struct
from collections.abc import Iterator
from typing import NamedTuple

from pubsub_api.errors import AddressInUse, InvalidConfig
from pubsub_api.runtime import files

_BACKLOG = 512
_CREDENTIALS = struct.Struct("3i")


class Credentials(NamedTuple):
    pid: int
    uid: int
    gid: int


def credentials(sock: socket.socket) -> Credentials:
    """The credentials of the process at the other end, from the kernel."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Credentials(*_CREDENTIALS.unpack(raw))


def is_trusted(peer: Credentials) -> bool:
    """Whether the process at the other end belongs to our own user, or to root."""
    return peer.uid in (os.getuid(), 0)


def listen(path: pathlib.Path) -> socket.socket:
    """A non-blocking listener on a socket file that only this user may open.  Replaces a file that no process listens
    on.

    Raises AddressInUse with the process that listens there, InvalidConfig when the file cannot be made, UnsafeFile when
    another user could put a socket in its place.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Before bind() this sets the mode with which the file is created, so that other users can never open it.
        os.fchmod(listener.fileno(), 0o600)
        listener.setblocking(False)
        files.check_directory(path.parent)
        with directory_locked(path):
            _remove_dead(path)
            listener.bind(str(path))
            listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise InvalidConfig(f"the socket {path} cannot be made: {error}") from error
    except BaseException:
        listener.close()
        raise
    return listener


@contextlib.contextmanager
def directory_locked(path: pathlib.Path) -> Iterator[None]:
    """Hold a lock, so that one process at a time checks and replaces the file.  It ends with block or process."""
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough: a child forked meanwhile has the file open, too
        os.close(descriptor)


def _remove_dead(path: pathlib.Path) -> None:
    """Remove the socket file if its process has ended.  Raises AddressInUse if it runs, InvalidConfig for no socket."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise InvalidConfig(f"{path} exists and is no socket; it was not changed")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        outcome = probe.connect_ex(str(path))
        if outcome == 0:
            raise AddressInUse(f"{path} belongs to process {credentials(probe).pid}, which is alive")
    if outcome not in (errno.ECONNREFUSED, errno.ENOENT):
        raise AddressInUse(f"{path} cannot be taken over: {os.strerror(outcome)}")
    path.unlink(missing_ok=True)
