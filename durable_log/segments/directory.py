"""The directory of sealed segments: where it is, whose it is, and what the names of its files say.

A file ``.log.json`` in it says to which log it belongs.  A directory of another log is refused, and so is one that has
more than the log knows of: the store was emptied, an older copy of it was restored, or two logs were given one
directory.  A process that went on would use offsets again that the files have already, and never find the files again.

Two copies of one store have one identity.  So the file also has a token, made by chance before each change of the
directory, and the store has the same: a store that has another one is not the store that changed the directory last.

The name of a segment says its offsets and the log; ``.NAME.tmp`` is one that is not finished, or was committed by a
process that died before it could give the file its name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import re
import secrets
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from durable_log.errors import LogCorrupt, LogUnavailable, SegmentsRefused
from durable_log.storage.identity import Lineage, short
from pubsub_api.errors import InvalidConfig
from pubsub_api.runtime.files import GROUP_READS, make_directory, open_private

MARK = ".log.json"
MOVED = ".moved-frames"
"""Frames that a repair has yet to append; there as long as it runs, or when it died."""
_FORMAT = 1
_NAME = re.compile(r"(\d{15})-(\d{15})-([0-9a-f]{8})-([0-9a-f]{8})\.parquet")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_WAYS_OUT = (
    "If the store was lost or is an older copy, restore the right one, or let 'heliograph log repair' list the files "
    "again; else name another [log] segment_directory. Nothing was changed"
)

Ends = Callable[[], dict[int, int]]
"""Where each shard of the log ends."""


class _Mark(msgspec.Struct):
    format: int
    identity: str
    shards: int
    """How many the log has: one that is made anew for these segments has to have as many."""
    ancestors: list[str]
    token: str = ""
    """Of the last change of the directory; the store that made it has the same."""
    next_token: str = ""
    """That the store has instead, if the process that changed the directory died before it could say that the store has
    it."""


class FileName(NamedTuple):
    """What the name of a segment says."""

    first: int
    end: int
    log: str
    """`short` identity."""
    token: str

    @classmethod
    def new(cls, first: int, end: int, identity: str) -> FileName:
        return cls(first, end, short(identity), secrets.token_hex(4))

    def __str__(self) -> str:
        return f"{self.first:015d}-{self.end:015d}-{self.log}-{self.token}.parquet"


def parse_name(name: str) -> FileName | None:
    """None when this is not the name of a segment."""
    found = _NAME.fullmatch(name)
    return None if found is None else FileName(int(found[1]), int(found[2]), found[3], found[4])


def staged_path(path: pathlib.Path) -> pathlib.Path:
    """Where a segment is until it gets its name.  Spark and its like pass over names that begin with a dot."""
    return path.with_name(f".{path.name}.tmp")


def shard_folder(directory: pathlib.Path, shard: int) -> pathlib.Path:
    return directory / f"{shard:04d}"


def directory_of(configured: str, default: pathlib.Path | None) -> pathlib.Path:
    """Where segments are.  Raises InvalidConfig when no option says so, or it names no directory."""
    if _SCHEME.match(configured):
        raise InvalidConfig(
            f"[log] segment_directory = {configured}: this is the URL of an object store or the like, and segments are "
            "kept in a directory of this host: give its path, without a scheme"
        )
    if not configured and default is None:
        raise InvalidConfig(
            "this log has no place for sealed segments: set [log] segment_directory to a directory that every host "
            "of the log has mounted"
        )
    return (pathlib.Path(configured) if configured else default or pathlib.Path()).absolute()


def published(directory: pathlib.Path) -> Iterator[tuple[int, FileName, pathlib.Path]]:
    """Every segment that has its name, with its shard, of whichever log."""
    for folder in sorted(directory.glob("[0-9][0-9][0-9][0-9]")):
        for path in sorted(folder.iterdir()):
            name = parse_name(path.name)
            if name is not None:
                yield int(folder.name), name, path


def unpublished(directory: pathlib.Path) -> Iterator[tuple[int, FileName, pathlib.Path]]:
    """Every segment that was written and has not got its name; the path that it would have."""
    for path in sorted(directory.glob("[0-9][0-9][0-9][0-9]/.*.parquet.tmp")):
        name = parse_name(path.name.removeprefix(".").removesuffix(".tmp"))
        if name is not None:
            yield int(path.parent.name), name, path.with_name(str(name))


@contextlib.contextmanager
def directory_lock(directory: pathlib.Path) -> Iterator[None]:
    """Hold the lock of the directory, which is made when it is missing.  Raises LogUnavailable when another has it."""
    make_directory(directory, mode=GROUP_READS)
    descriptor = open_private(directory / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise LogUnavailable(f"another process seals or compacts in {directory} now") from error
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough: a process forked meanwhile has it open too
        os.close(descriptor)


def check_owner(directory: pathlib.Path, lineage: Lineage) -> None:
    """Raises SegmentsRefused when the directory belongs to another log.  One without a mark belongs to its files."""
    mark = read_mark(directory)
    if mark is not None:
        owners = [] if lineage.owns(mark.identity) else [mark.identity]
    else:
        owners = sorted({name.log for _, name, _ in published(directory) if not lineage.owns(name.log)})
    if owners:
        raise SegmentsRefused(
            f"{directory} has the segments of the log {', '.join(owners)}, and this is the log {lineage.identity}. "
            f"{_WAYS_OUT}",
            identity=lineage.identity, found=owners[0],
        )  # fmt: skip


def check_not_newer(directory: pathlib.Path, lineage: Lineage, ends: Ends) -> None:
    """Raises SegmentsRefused when the directory has offsets that the log has never reached."""
    found = [(shard, name) for shard, name, _ in published(directory) if lineage.owns(name.log)]
    known = ends() if found else {}
    for shard, name in found:
        if name.end > known.get(shard, 0):
            raise SegmentsRefused(
                f"{directory} is of a later state of the log {lineage.identity} than its store: shard {shard} has "
                f"segments up to offset {name.end} of the log {name.log}..., and ends at {known.get(shard, 0)} in the "
                f"store. {_WAYS_OUT}",
                identity=lineage.identity, found=lineage.identity,
            )  # fmt: skip


def check_last(directory: pathlib.Path, lineage: Lineage, token: Callable[[], str]) -> None:
    """Raises SegmentsRefused when another store than the one that has this token changed the directory last."""
    while not is_last(mark := read_mark(directory), token()):
        if mark == read_mark(directory):  # else another process of this log changes it just now
            raise SegmentsRefused(
                f"{directory} was changed last by another copy of the store of the log {lineage.identity}: either two "
                "copies of it are in use, and one of them must not be, or this one is older than the directory. "
                f"{_WAYS_OUT}",
                identity=lineage.identity, found=lineage.identity,
            )  # fmt: skip


def is_last(mark: _Mark | None, token: str) -> bool:
    """Whether the store that has this token changed the directory last."""
    if mark is None or not mark.token:
        return True
    return token == mark.token or (token == mark.next_token != "")


def read_mark(directory: pathlib.Path) -> _Mark | None:
    """Raises LogCorrupt when the file cannot be understood."""
    path = directory / MARK
    try:
        mark = msgspec.json.decode(path.read_bytes(), type=_Mark)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise LogCorrupt(f"{path}, which says whose segments these are, cannot be read: {error}") from error
    if mark.format != _FORMAT:
        raise LogCorrupt(f"{path} has format {mark.format}; this release reads {_FORMAT}")
    return mark


def write_mark(directory: pathlib.Path, lineage: Lineage, shards: int, token: str, next_token: str = "") -> None:
    """Say, durably, whose directory it is.  Call it with the directory's lock held."""
    mark = _Mark(_FORMAT, lineage.identity, shards, sorted(lineage.ancestors), token, next_token)
    _write(directory, MARK, msgspec.json.encode(mark))


def keep_frames(directory: pathlib.Path, frames: list[bytes]) -> None:
    """Keep frames that are about to leave the store, durably, with those of a repair that died before."""
    if frames:
        _write(directory, MOVED, msgspec.msgpack.encode([*kept_frames(directory), *frames]))


def kept_frames(directory: pathlib.Path) -> list[bytes]:
    """What `keep_frames` has kept.  Raises LogCorrupt when it cannot be read."""
    path = directory / MOVED
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=list[bytes])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        raise LogCorrupt(f"{path}, with frames that a repair has to append, cannot be read: {error}") from error


def forget_frames(directory: pathlib.Path) -> None:
    """They are in the log again."""
    (directory / MOVED).unlink(missing_ok=True)


def _write(directory: pathlib.Path, name: str, content: bytes) -> None:
    """Write a file as a whole or not at all, durably."""
    path = directory / f"{name}.tmp"
    with os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode=GROUP_READS), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    path.rename(directory / name)
    sync_directory(directory)


def sync_directory(directory: pathlib.Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
