"""Sealed segments as objects: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``.

A segment is uploaded whole, under a key that no other has, by a write that fails when there is an object; then it is
read back and compared.  It cannot be renamed when it is committed, so a second, empty object beside it, with
``.sealed`` behind its name, says that it was.  What has none and is not in the manifest is an orphan.

The lock is a lease in the log (`durable_log.segments.lease`), and ``.log.json`` is only ever replaced by a write that
names the version it replaces.  Readers fetch an object once, compare it with the manifest, and keep it for a while in a
file without a name, which is gone with the process.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import pathlib
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import BinaryIO

from durable_log import config
from durable_log.core.fence import Fence
from durable_log.errors import LogUnavailable
from durable_log.log_api import LogApi, Segment
from durable_log.segments.lease import SealingLease
from durable_log.segments.object_client import KeyTaken, ObjectChanged, ObjectClient, StoredObject
from durable_log.segments.store import FoundSegment, SegmentName, SegmentStore, Version, corrupt, digest, parse_name
from pubsub_api.runtime.backoff import Backoff

LOG = logging.getLogger(__name__)

SCHEMES = ("s3", "gs", "az")
SEALED = ".sealed"
"""Behind the key of a segment: the object that says that it was committed."""

_WRITE_ATTEMPTS = 3
"""A write with a condition is not repeated by obstore: its outcome has to be looked at first."""
_PAUSE_S = 0.2
_PAUSE_MAX_S = 2.0
_CACHED_FILES_MAX = 64


class ObjectSegments(SegmentStore):
    """Segments as objects."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        """Makes no request.  Raises InvalidConfig, DriverDependencyMissing."""
        self.place = url.partition("?")[0].rstrip("/")
        self._client = ObjectClient(url, timeout_s=timeout_s)
        self.storage_options = self._client.options
        self._lease = SealingLease(self.place)
        self._cache = _FileCache(config.OBJECT_CACHE_BYTES)
        self._is_checked = False
        self._keeps_listing = False
        self._listing: list[StoredObject] | None = None
        """What there is, as long as the lock is held and nothing was changed: to list is the dearest request."""

    @contextlib.contextmanager
    def lock(self, log: LogApi) -> Iterator[None]:
        if not self._is_checked:
            self.check_usable()
        with self._lease.held(log):
            self._listing, self._keeps_listing = None, True
            try:
                yield
            finally:
                self._keeps_listing = False

    def fence(self) -> Fence:
        return self._lease.fence()

    def check_usable(self) -> None:
        self._client.check_conditions()
        self._is_checked = True

    # -- small contents

    def read(self, name: str) -> tuple[bytes, Version] | None:
        return self._client.get(name)

    def write(self, name: str, content: bytes, former: Version) -> Version:
        pauses = Backoff(_PAUSE_S, _PAUSE_MAX_S)
        for attempt in range(_WRITE_ATTEMPTS):
            error = None
            try:
                if former is None:
                    return self._client.create(name, content)
                return self._client.replace(name, content, former)
            except (KeyTaken, ObjectChanged):
                pass
            except LogUnavailable as caught:
                error = caught
            found, version = self._client.get(name) or (None, None)
            if found == content:
                return version  # it was our own write, whose answer was lost
            if error is None or version != former:
                break
            if attempt + 1 == _WRITE_ATTEMPTS:
                raise error
            time.sleep(pauses.next_s())
        raise LogUnavailable(f"{self.place}/{name} was changed by another process meanwhile")

    def remove(self, name: str) -> None:
        self._client.delete(name)

    # -- segments

    @contextlib.contextmanager
    def new_file(self, shard: int) -> Iterator[pathlib.Path]:  # noqa: ARG002  # all are in one place
        with tempfile.TemporaryFile() as file:
            yield pathlib.Path(_path(file.fileno()))

    def stage(self, file: pathlib.Path, shard: int, name: SegmentName, sha256: str) -> str:
        path = self.path_of(shard, str(name))
        key, content = self.relative(path), file.read_bytes()
        self._listing = None
        self._upload(key, content)
        with self._fetched(key) as (fetched, size):
            if size != len(content) or digest(_path(fetched.fileno())) != sha256:
                raise LogUnavailable(
                    f"{path} has other content than was uploaded: it is not used, and its events stay where they are"
                )
        return path

    def _upload(self, key: str, content: bytes) -> None:
        """No other process has the key, so an object that is there is our own, whatever the server answered."""
        pauses = Backoff(_PAUSE_S, _PAUSE_MAX_S)
        for attempt in range(_WRITE_ATTEMPTS):
            try:
                self._client.create(key, content)
            except KeyTaken:
                return
            except LogUnavailable as error:
                if self._client.size(key) is not None:
                    return
                if attempt + 1 == _WRITE_ATTEMPTS:
                    raise
                LOG.info("The upload of a segment is tried again: %s", error)
                time.sleep(pauses.next_s())
            else:
                return

    def publish(self, segment: Segment) -> None:
        self._listing = None
        self._upload(self.relative(segment.path) + SEALED, b"")

    def discard(self, segment: Segment) -> None:
        self._listing = None
        try:
            self._client.delete(self.relative(segment.path))
        except LogUnavailable as error:
            LOG.info("A segment that was not committed stays until it is old: %s", error)

    def delete(self, path: str) -> None:
        self._listing = None
        key = self.relative(path)
        self._client.delete(key + SEALED)  # first: when the process dies here, the other one is an orphan
        self._client.delete(key)

    def set_aside(self, segment: Segment) -> str:
        """It stays where it is: it is published and not in the manifest, so only retention removes it."""
        return segment.path if self.exists(segment) else ""

    def exists(self, segment: Segment) -> bool:
        return self._client.size(self.relative(segment.path)) is not None

    def published(self) -> Iterator[FoundSegment]:
        return (found for found, _, is_sealed in self._segments() if is_sealed)

    def unpublished(self) -> Iterator[FoundSegment]:
        return (found for found, _, is_sealed in self._segments() if not is_sealed)

    def orphans(self, age_s: float) -> list[str]:
        """By the clocks of the server and of this host, which may differ: that they are not in the manifest, and that
        no process may add them, is what makes it safe to remove them."""
        before = time.time() - age_s
        return [
            found.path for found, stored, is_sealed in self._segments() if not is_sealed and stored.modified_s < before
        ]

    def _segments(self) -> Iterator[tuple[FoundSegment, StoredObject, bool]]:
        """Each with whether it is published."""
        listing = self._listing if self._keeps_listing else None
        if listing is None:
            listing = self._listing = self._client.list()
        objects = {one.key: one for one in listing}
        for key, stored in objects.items():
            folder, _, file = key.partition("/")
            name = parse_name(file)
            if name is not None and len(folder) == 4 and folder.isdecimal():
                shard = int(folder)
                yield FoundSegment(shard, name, self.path_of(shard, file)), stored, key + SEALED in objects

    # -- reading

    def check(self, segment: Segment) -> None:
        self._cache.forget(segment.path)
        with self.opened(segment):
            pass

    @contextlib.contextmanager
    def opened(self, segment: Segment) -> Iterator[str]:
        file = self._cache.get(segment.path)
        if file is None:
            file = self._fetch(segment)
        yield _path(file.descriptor)

    def _fetch(self, segment: Segment) -> _CachedFile:
        """Raises LogCorrupt.  What is fetched to be described has no SHA-256 yet, and is not kept."""
        try:
            with self._fetched(self.relative(segment.path)) as (file, size):
                is_known = bool(segment.sha256)
                if is_known and size != segment.bytes:
                    raise corrupt(segment, f"has {size} bytes instead of {segment.bytes}")
                if is_known and digest(_path(file.fileno())) != segment.sha256:
                    raise corrupt(segment, "has other content than was sealed: its SHA-256 differs")
                cached = _CachedFile(os.dup(file.fileno()), size)
        except FileNotFoundError as error:
            raise corrupt(segment, "is missing") from error
        if is_known:
            self._cache.add(segment.path, cached)
        return cached

    @contextlib.contextmanager
    def _fetched(self, key: str) -> Iterator[tuple[BinaryIO, int]]:
        """A file without a name that has the object, and its size.  Raises FileNotFoundError."""
        size = self._client.size(key)
        if size is None:
            raise FileNotFoundError(key)
        with tempfile.TemporaryFile() as file:
            self._client.fetch(key, size, file)
            file.flush()
            yield file, size


class _CachedFile:
    """Open as long as anything refers to it, so that it may leave the cache while it is read."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self.size = size

    def __del__(self) -> None:
        os.close(self.descriptor)


class _FileCache:
    """Files of objects that were fetched, by path, the last used ones, within bounds.  For any thread."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._files: collections.OrderedDict[str, _CachedFile] = collections.OrderedDict()

    def get(self, path: str) -> _CachedFile | None:
        with self._lock:
            if path in self._files:
                self._files.move_to_end(path)
            return self._files.get(path)

    def add(self, path: str, file: _CachedFile) -> None:
        with self._lock:
            self._files[path] = file
            while len(self._files) > 1 and (
                len(self._files) > _CACHED_FILES_MAX or sum(one.size for one in self._files.values()) > self._bytes_max
            ):
                self._files.popitem(last=False)

    def forget(self, path: str) -> None:
        with self._lock:
            self._files.pop(path, None)


def _path(descriptor: int) -> str:
    """By which a file without a name is opened once more, with a position of its own."""
    return f"/proc/self/fd/{descriptor}"
