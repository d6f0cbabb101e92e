"""Files that only this user may read or replace: the one place that makes and opens them.

The files of Heliograph (journals, locks, stores, databases, segments, snapshots, sockets) hold everything that was ever
published.  Another user that could replace such a file could give false data to a service.  So, for every file:

* it gets its mode when it is made, independent of the umask: 0600, or 0640 where its group may read it;
* a symbolic link in its place is refused, and so is a file of another user;
* its directory must not let other users replace files: a directory that all users may write and that has no sticky bit
  is refused, and so is a directory of another user, except root.

A directory that its group may write is accepted: the administrator chooses the members of the group.
"""

from __future__ import annotations

import errno
import os
import pathlib
import stat

from pubsub_api.errors import UnsafeFile

PRIVATE = 0o600
GROUP_READS = 0o640
"""For files that programs of the same group may read, such as Parquet files."""
_DIRECTORY_MODES = {PRIVATE: 0o700, GROUP_READS: 0o750}
_TOO_OPEN = {PRIVATE: 0o077, GROUP_READS: 0o027}
_BLOCK_BYTES = 1 << 20

Path = str | os.PathLike[str]


def make_directory(path: Path, *, mode: int = PRIVATE) -> pathlib.Path:
    """Make a directory for files of that mode, with its parents, if it is missing; then `check_directory`.

    Raises UnsafeFile, and OSError when it cannot be made.
    """
    directory = pathlib.Path(path)
    directory.mkdir(mode=_DIRECTORY_MODES[mode], parents=True, exist_ok=True)
    check_directory(directory)
    return directory


def check_directory(path: Path) -> None:
    """Raises UnsafeFile when another user could replace files there, and OSError when it does not exist."""
    found = os.stat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeFile(f"{path} is not a directory")
    check_not_open_to_all(path)
    if found.st_uid not in (os.geteuid(), 0):
        raise UnsafeFile(
            f"the directory {path} belongs to user {found.st_uid}, which could replace the files in it: use a "
            f"directory that belongs to user {os.geteuid()}"
        )


def check_not_open_to_all(path: Path) -> None:
    """Raises UnsafeFile when all users may write the directory and remove files of other users there."""
    mode = os.stat(path).st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise UnsafeFile(f"all users may replace files in the directory {path}: chmod o-w it")


def open_private(path: Path, flags: int, *, mode: int = PRIVATE) -> int:
    """Open the file as ``os.open`` does and return its descriptor.  Not for SQLite files: see `make_private`.

    If this user owns the file and its mode permits more than ``mode``, its mode is changed to ``mode``.  Raises
    UnsafeFile, and OSError.
    """
    check_directory(pathlib.Path(path).parent)
    try:
        # O_TRUNC would truncate a file before it is checked.  O_NONBLOCK: a pipe in its place must not block the open.
        descriptor = os.open(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnsafeFile(f"{path} is a symbolic link; it was not followed") from error
        raise
    try:
        found = os.fstat(descriptor)
        _check_file(path, found)
        if found.st_mode & _TOO_OPEN[mode] and found.st_uid == os.geteuid():
            os.fchmod(descriptor, mode)
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_private(path: Path, *, mode: int = PRIVATE, may_be_shared: bool = False) -> None:
    """Make an empty file if it is missing, and check it, for a library that opens it by its name.

    The file is never opened here: closing any descriptor of an SQLite file releases all locks of this process on it.
    If this user owns the file and its mode permits more than ``mode``, its mode is changed, unless ``may_be_shared``.
    Root may use a file of another user in that user's directory.  Raises UnsafeFile, and OSError.
    """
    parent = pathlib.Path(path).parent
    check_not_open_to_all(parent)
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        check_directory(parent)
        _make(path, mode)
        return
    if stat.S_ISLNK(found.st_mode):
        raise UnsafeFile(f"{path} is a symbolic link; it was not followed")
    if os.geteuid():
        check_directory(parent)
        _check_file(path, found)
    if found.st_mode & _TOO_OPEN[mode] and found.st_uid == os.geteuid() and not may_be_shared:
        os.chmod(path, mode)


def replace_private(path: Path, content: bytes, *, mode: int = PRIVATE) -> None:
    """Write a file durably and atomically: it is there complete, or not at all.  Raises UnsafeFile, and OSError."""
    final = pathlib.Path(path)
    new = final.with_name(f"{final.name}.new")
    descriptor = open_private(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode=mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    os.replace(new, final)


def read_private(path: Path) -> bytes:
    """The whole file.  Raises UnsafeFile, and OSError."""
    with os.fdopen(open_private(path, os.O_RDONLY), "rb", _BLOCK_BYTES) as file:
        return file.read()


def identity_of(path: Path | int) -> tuple[int, int]:
    """Device and inode of the file at this path now, or of an open descriptor.  Raises OSError.

    A process that has a file open does not notice that the file was removed or replaced, and no other process sees
    what it writes from then on.  So a process that keeps a file open compares the identities of both.
    """
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _make(path: Path, mode: int) -> None:
    try:
        os.mknod(path, stat.S_IFREG | mode)
    except FileExistsError:  # another process was faster: check that its file is the same
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            raise UnsafeFile(f"{path} is a symbolic link; it was not followed") from None
        _check_file(path, found)


def _check_file(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UnsafeFile(f"{path} is no regular file")
    if found.st_uid not in (os.geteuid(), 0):
        raise UnsafeFile(f"{path} belongs to user {found.st_uid}, and this process is run by user {os.geteuid()}")
    if found.st_uid != os.geteuid() and found.st_mode & stat.S_IWOTH:
        raise UnsafeFile(f"all users may write {path}")
