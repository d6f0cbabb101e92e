"""The socket file between workers and service: where it is, and which service owns it now.

A lock file beside it is held by the service that owns it and is released by the kernel however that service ends; so
two services that start at once do not get in each other's way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from types import TracebackType

from oslo_config import cfg

from pubsub_api.config import multiproc_socket
from pubsub_api.errors import AddressInUse, InvalidConfig
from pubsub_api.runtime import files

PATH_BYTES_MAX = 107
"""What the system allows, without the final NUL."""
HEALTH_SUFFIX = ".health"
_LONGEST_SUFFIX = len(HEALTH_SUFFIX)


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


class Ownership:
    """That this process, and no other, is the publisher service of a socket path.  Ends with the process."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = beside(path, ".lock")
        try:
            self._file = files.open_private(self._path, os.O_RDWR | os.O_CREAT)
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

    @property
    def place(self) -> str:
        """The lock, which no other process can have at the same time as long as this machine is up.  Empty when
        unknown."""
        try:
            boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return ""
        device, inode = files.identity_of(self._file)
        return f"{boot}:{device}:{inode}"

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
