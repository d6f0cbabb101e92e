"""The socket file between workers and service: where it is, who may use it, and who owns it now.

The file can be opened by its user alone (0600, in a directory of 0700), and the kernel tells who is at the other end.
A lock file beside it is held by the service that owns it and is released by the kernel however that service ends; so a
file that is left behind is told from a living one, and two services that start at once do not get in each other's way.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import socket
import stat
import struct
from types import TracebackType
from typing import NamedTuple

from oslo_config import cfg

from pubsub_api.config import multiproc_socket
from pubsub_api.errors import AddressInUse, InvalidConfig

PATH_BYTES_MAX = 107
"""What the system allows, without the final NUL."""
HEALTH_SUFFIX = ".health"
_LONGEST_SUFFIX = len(HEALTH_SUFFIX)
_BACKLOG = 512
_CREDENTIALS = struct.Struct("3i")


class Credentials(NamedTuple):
    pid: int
    uid: int
    gid: int


def socket_path(conf: cfg.ConfigOpts) -> pathlib.Path:
    """The socket's path.  Raises InvalidConfig when it cannot be one."""
    path = multiproc_socket(conf).absolute()
    if len(os.fsencode(path)) + _LONGEST_SUFFIX > PATH_BYTES_MAX:
        raise InvalidConfig(
            f"[pubsub] publisher_multiproc_socket: {str(path)!r} is longer than the "
            f"{PATH_BYTES_MAX - _LONGEST_SUFFIX} bytes that the system leaves for it; choose a shorter path"
        )
    return path


def beside(path: pathlib.Path, suffix: str) -> pathlib.Path:
    return path.with_name(path.name + suffix)


def credentials(sock: socket.socket) -> Credentials:
    """Of the process at the other end, as the kernel knows them."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Credentials(*_CREDENTIALS.unpack(raw))


def is_trusted(peer: Credentials) -> bool:
    """Whether the other end is run by our own user, or by the one who may do anything anyway."""
    return peer.uid in (os.getuid(), 0)


def listen(path: pathlib.Path) -> socket.socket:
    """A non-blocking listener on a socket file that only this user may open.  Replaces a file that nobody listens on.

    Raises AddressInUse with the process that listens there, InvalidConfig when the file cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # On a socket that is not bound yet this sets the mode that the file is created with: no moment is it open.
        os.fchmod(listener.fileno(), 0o600)
        listener.setblocking(False)
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


def _remove_dead(path: pathlib.Path) -> None:
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise InvalidConfig(f"{path} exists and is no socket; it was left alone")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        outcome = probe.connect_ex(str(path))
        if outcome == 0:
            raise AddressInUse(f"{path} belongs to process {credentials(probe).pid}, which is alive")
    if outcome not in (errno.ECONNREFUSED, errno.ENOENT):
        raise AddressInUse(f"{path} cannot be taken over: {os.strerror(outcome)}")
    path.unlink(missing_ok=True)


class Ownership:
    """That this process, and no other, is the publisher service of a socket path.  Ends with the process."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = beside(path, ".lock")
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidConfig(f"the lock {self._path} cannot be made: {error}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._file, 32).decode("ascii", "replace").strip() or "another process"
            os.close(self._file)
            raise AddressInUse(
                f"{path} belongs to the publisher service that runs as process {holder}: one service per socket"
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Idempotent.  The file stays: removing it would let two hold a lock on what they think is one file."""
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Ownership:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
