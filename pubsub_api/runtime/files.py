"""Files that only this user may read or replace: the one place that makes and opens them.

What Heliograph keeps (journals, locks, stores, databases, segments, snapshots, sockets) holds everything that was ever
published, and a user who can replace such a file can make a service believe anything.  So, wherever a file is made:

* it gets its mode when it is made, whatever the umask says: 0600, or 0640 where the group is meant to read it;
* a symbolic link in its place is refused, and so is a file of another user;
* its directory must not let other users replace files: one that everybody may write without the sticky bit, or that
  belongs to another user (root excepted), is refused.

A directory that its group may write is accepted: the members of the group are the administrator's choice.
"""

from __future__ import annotations

import errno
import os
import pathlib
import stat

from pubsub_api.errors import UnsafeFile

PRIVATE = 0o600
GROUP_READS = 0o640
"""For files that other programs of the same group are meant to read, such as Parquet files."""
_DIRECTORY_MODES = {PRIVATE: 0o700, GROUP_READS: 0o750}
_TOO_OPEN = {PRIVATE: 0o077, GROUP_READS: 0o027}
_BLOCK_BYTES = 1 << 20

Path = str | os.PathLike[str]


def make_directory(path: Path, *, mode: int = PRIVATE) -> pathlib.Path:
    """Make a directory for files of that mode, parents included, when it is missing; check it when it is there.

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
            f"the directory {path} belongs to user {found.st_uid}, who could replace the files in it: use one that "
            f"belongs to user {os.geteuid()}"
        )


def check_not_open_to_all(path: Path) -> None:
    """Raises UnsafeFile when everybody may write the directory and remove the files of others in it."""
    mode = os.stat(path).st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise UnsafeFile(f"everybody may replace files in the directory {path}: chmod o-w it")


def open_private(path: Path, flags: int, *, mode: int = PRIVATE) -> int:
    """A descriptor of the file, as ``os.open`` gives it; not for SQLite files (`make_private`).

    An older file of ours that is open to more users than ``mode`` says is closed to them.  Raises UnsafeFile, and
    OSError.
    """
    check_directory(pathlib.Path(path).parent)
    try:
        # Cut only after the look at it; and not to wait for the other end of a pipe.
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
    """Make an empty file when it is missing, for a library to open by its name.

    The file is never opened here: to close any descriptor of an SQLite file releases all locks that this process has on
    it.  An older file of ours that is open to more users than ``mode`` says is closed to them, unless it
    ``may_be_shared``.  Root may use a file of another user in that user's directory.  Raises UnsafeFile, and OSError.
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
    """Write a file, durably: it appears whole or not at all.  Raises UnsafeFile, and OSError."""
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
    """Device and inode of the file that the path leads to now, or that a descriptor has open.  Raises OSError.

    A file that was removed or replaced lives on for who has it open, and nobody else sees what is written there: who
    keeps one open compares this with what it was.
    """
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _make(path: Path, mode: int) -> None:
    try:
        # A process that is faster makes the same file with the same mode; a link or a stranger's file is not taken for
        # it.
        os.mknod(path, stat.S_IFREG | mode)
    except FileExistsError:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            raise UnsafeFile(f"{path} is a symbolic link; it was not followed") from None
        _check_file(path, found)


def _check_file(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UnsafeFile(f"{path} is no regular file")
    if found.st_uid not in (os.geteuid(), 0):
        raise UnsafeFile(f"{path} belongs to user {found.st_uid}, not to user {os.geteuid()} who runs this")
    if found.st_uid != os.geteuid() and found.st_mode & stat.S_IWOTH:
        raise UnsafeFile(f"everybody may write {path}")
