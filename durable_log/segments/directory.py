"""Sealed segments as files of a directory that every host of the log has mounted.

The name of a segment says its offsets and the log; ``.NAME.tmp`` is one that is not finished, or was committed by a
process that died before it could give the file its name.  The lock is one of the file system.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import secrets
import time
from collections.abc import Iterator

from durable_log.errors import SealingBusy
from durable_log.log_api import LogApi, Segment
from durable_log.segments.store import FoundSegment, SegmentName, SegmentStore, Version, corrupt, digest, parse_name
from pubsub_api.runtime.files import GROUP_READS, make_directory, make_private, open_private


class SegmentDirectory(SegmentStore):
    """Segments as files."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self.place = str(directory)

    @contextlib.contextmanager
    def lock(self, log: LogApi) -> Iterator[None]:  # noqa: ARG002  # the system keeps this lock, not the log
        make_directory(self._directory, mode=GROUP_READS)
        descriptor = open_private(self._directory / ".lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise SealingBusy(f"another process seals or compacts in {self.place} now") from error
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough: a process forked meanwhile has it open too
            os.close(descriptor)

    # -- small contents

    def read(self, name: str) -> tuple[bytes, Version] | None:
        try:
            return (self._directory / name).read_bytes(), None
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes, former: Version) -> Version:  # noqa: ARG002  # the lock is enough
        path = self._directory / f"{name}.tmp"
        with os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode=GROUP_READS), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        path.rename(self._directory / name)
        _sync_directory(self._directory)

    def remove(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)

    # -- segments

    @contextlib.contextmanager
    def new_file(self, shard: int) -> Iterator[pathlib.Path]:
        folder = make_directory(self._directory / f"{shard:04d}", mode=GROUP_READS)
        path = folder / f".{secrets.token_hex(8)}.tmp"
        make_private(path, mode=GROUP_READS)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def stage(self, file: pathlib.Path, shard: int, name: SegmentName, sha256: str) -> str:  # noqa: ARG002
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
        path = self.path_of(shard, str(name))
        file.rename(staged_path(path))
        _sync_directory(file.parent)
        return path

    def publish(self, segment: Segment) -> None:
        _publish(segment)

    def discard(self, segment: Segment) -> None:
        staged_path(segment.path).unlink(missing_ok=True)

    def delete(self, path: str) -> None:
        pathlib.Path(path).unlink(missing_ok=True)
        staged_path(path).unlink(missing_ok=True)  # it may have died, committed, before it got its name

    def set_aside(self, segment: Segment) -> str:
        path = pathlib.Path(segment.path)
        if not path.exists():
            return ""
        return str(path.rename(path.with_name(f"{path.name}.damaged")))

    def exists(self, segment: Segment) -> bool:
        return pathlib.Path(segment.path).exists() or staged_path(segment.path).exists()

    def published(self) -> Iterator[FoundSegment]:
        for folder in sorted(self._directory.glob("[0-9][0-9][0-9][0-9]")):
            for path in sorted(folder.iterdir()):
                name = parse_name(path.name)
                if name is not None:
                    yield FoundSegment(int(folder.name), name, str(path))

    def unpublished(self) -> Iterator[FoundSegment]:
        for path in sorted(self._directory.glob("[0-9][0-9][0-9][0-9]/.*.parquet.tmp")):
            name = parse_name(path.name.removeprefix(".").removesuffix(".tmp"))
            if name is not None:
                yield FoundSegment(int(path.parent.name), name, str(path.with_name(str(name))))

    def orphans(self, age_s: float) -> list[str]:
        before = time.time() - age_s
        return [str(path) for path in self._directory.glob("[0-9]*/.*.tmp") if path.stat().st_mtime < before]

    def check(self, segment: Segment) -> None:
        check_file(segment)

    @contextlib.contextmanager
    def opened(self, segment: Segment) -> Iterator[str]:
        path = pathlib.Path(segment.path)
        yield segment.path if path.exists() else str(staged_path(segment.path))


def staged_path(path: str) -> pathlib.Path:
    """Where a segment is until it gets its name.  Spark and its like pass over names that begin with a dot."""
    final = pathlib.Path(path)
    return final.with_name(f".{final.name}.tmp")


def check_file(segment: Segment) -> None:
    """Raises LogCorrupt when the file is missing or is not, byte for byte, the one that was sealed."""
    path = pathlib.Path(segment.path)
    try:
        if not path.exists():
            _publish(segment)  # the process that committed it may have died before it could
        size = path.stat().st_size
        if size != segment.bytes:
            raise corrupt(segment, f"has {size} bytes instead of {segment.bytes}")
        if digest(path) != segment.sha256:
            raise corrupt(segment, "has other content than was sealed: its SHA-256 differs")
    except FileNotFoundError as error:
        raise corrupt(segment, "is missing") from error
    except OSError as error:
        raise corrupt(segment, f"cannot be read: {error.strerror}") from error


def _publish(segment: Segment) -> None:
    with contextlib.suppress(FileNotFoundError):  # another was faster
        staged_path(segment.path).rename(segment.path)
        _sync_directory(pathlib.Path(segment.path).parent)


def _sync_directory(directory: pathlib.Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
