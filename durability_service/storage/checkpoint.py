"""Checkpoints: what lets durability services vouch for a database, up to a revision.

A service keeps what it has heard.  It does not know whether that is everything: objects may be older than the service,
and a change that was published late, by the process that publishes what a dead writer left, counts as the newest it has
heard.  So a process that has the database compares the two now and then, publishes what services lack, and leaves a
*checkpoint* with them: the names and versions of all objects as of one revision.  With it a reader knows of each object
whether what a service has is right, wherever that came from (`durability_service.clients.resync_source`).

A checkpoint is a set of pages, events of `TABLE` on `TOPIC`, kept by services like any others.  An object belongs to
the page of its hash.  Each page says which revision it is of, so pages of two checkpoints do no harm together.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from durability_service.client import DurabilityClient
from durability_service.core.sets.samples import InstanceKey, Sample
from durability_service.errors import DurabilityError, NoService
from durability_service.serving.sampling import event_of
from nb_api.core.events import events_of
from nb_api.core.own_tables import OWN_PREFIX, is_own
from nb_api.db_api import Change, DbApi, DbObject
from pubsub_api import Event, Publisher
from pubsub_api.core.durability import HistoryOutcome
from pubsub_api.core.topics import FilterSet
from pubsub_api.errors import WaitTimeout

TOPIC = "heliograph/checkpoint"
TABLE = f"{OWN_PREFIX}checkpoint"
PAGE_BYTES_MAX = 128 * 1024
_PORTION = 1000
"""Events published before services are asked whether they have them."""

ObjectKey = tuple[str, str]
"""Table and key."""


class CheckpointPage(msgspec.Struct, frozen=True):
    """A part of a checkpoint."""

    revision: int
    pages: int
    """How many there are."""
    objects: list[tuple[str, str, str, int]]
    """Topic, table, key and version."""


class Checkpoint:
    """A whole one, of pages that may be of several revisions."""

    def __init__(self, pages: Sequence[CheckpointPage]) -> None:
        """All of them, in order."""
        self._revisions = [page.revision for page in pages]
        self.revision = min(self._revisions)
        """Everything up to it is known."""
        self.versions = {
            (table, key): (version, topic) for page in pages for topic, table, key, version in page.objects
        }

    def revision_of(self, name: ObjectKey) -> int:
        """The revision of the page that this object belongs to."""
        return self._revisions[page_of(name, len(self._revisions))]


class CheckpointReport(NamedTuple):
    """What was done to make a checkpoint."""

    revision: int
    objects: int
    published: int
    """Objects that services did not have, or not that version of."""
    deleted: int
    """Objects that services had and the database has not."""
    pages: int


def page_of(name: ObjectKey, pages: int) -> int:
    """The same in every process and release."""
    return zlib.crc32("\0".join(name).encode()) % pages


def read_checkpoint(samples: Iterable[Sample]) -> Checkpoint | None:
    """From what services keep of `TOPIC`.  None when there is no whole one."""
    found: dict[int, CheckpointPage] = {}
    for sample in samples:
        if sample.table == TABLE and not sample.is_delete and sample.key.isdigit():
            try:
                found[int(sample.key)] = msgspec.convert(event_of(sample).value, CheckpointPage)
            except (msgspec.ValidationError, msgspec.DecodeError):
                return None
    if not found:
        return None
    pages = max(found.values(), key=lambda page: page.revision).pages
    if any(number not in found or found[number].pages != pages for number in range(pages)):
        return None  # another one is being written
    return Checkpoint([found[number] for number in range(pages)])


def write_checkpoint(
    publisher: Publisher,
    client: DurabilityClient,
    db: DbApi,
    *,
    topics: Sequence[str] = ("#",),
    services: Sequence[str] | None = None,
    timeout_s: float = 600.0,
) -> CheckpointReport:
    """Bring services up to the database and leave a checkpoint with them.  Blocks while both are read once.

    ``topics`` are those that services keep; what they lack of others is not published.  ``services`` are addresses, on
    a bind-based driver.  The names of all objects are held in memory meanwhile.  Controllers that hear what is
    published have it already, or need it.  Raises NoService, DurabilityError, DbError.
    """
    return _CheckpointWriter(publisher, client, FilterSet(topics), services, time.monotonic() + timeout_s).write(db)


class _CheckpointWriter:
    def __init__(
        self,
        publisher: Publisher,
        client: DurabilityClient,
        kept: FilterSet,
        services: Sequence[str] | None,
        deadline: float,
    ) -> None:
        self._publisher = publisher
        self._client = client
        self._kept = kept
        self._services = services
        self._deadline = deadline
        self._unconfirmed = 0

    def write(self, db: DbApi) -> CheckpointReport:
        held = self._held([*self._kept])
        old_pages = [sample.key for sample in held.values() if sample.table == TABLE] or self._old_pages()
        # Before the database is read: what is committed later is also published later, and so wins.
        stamp = time.time_ns()
        objects: list[tuple[str, str, str, int]] = []
        published = 0
        with db.snapshot() as snapshot:
            revision = snapshot.revision
            for row in snapshot:
                if is_own(row.table):
                    continue
                objects.append((row.topic, row.table, row.key, row.version))
                if self._kept.match(row.topic) and not _has(held.pop((row.topic, row.table, row.key), None), row):
                    published += 1
                    self._send(_event_of(row), stamp)
        deleted = self._delete(held.values(), objects, revision, stamp)
        self._confirm()
        pages = self._write_pages(objects, revision, old_pages)
        return CheckpointReport(revision, len(objects), published, deleted, pages)

    def _held(self, topics: Sequence[str]) -> dict[InstanceKey, Sample]:
        """The newest that services have of each object on each topic.  Raises NoService, DurabilityError."""
        outcome, samples = self._client.history(topics, timeout_s=self._left_s())
        if outcome is HistoryOutcome.NO_SERVICE:
            raise NoService("no durability service answered")
        if outcome is not HistoryOutcome.COMPLETE:
            raise DurabilityError("no durability service has a complete set yet")
        return {sample.instance: sample for sample in samples}  # oldest first

    def _old_pages(self) -> list[str]:
        return [sample.key for sample in self._held([TOPIC]).values() if sample.table == TABLE]

    def _delete(
        self, left: Iterable[Sample], objects: Iterable[tuple[str, str, str, int]], revision: int, stamp: int
    ) -> int:
        """What services have on a topic and the database has not there: it is gone, or it has moved."""
        present = {(table, key): (version, topic) for topic, table, key, version in objects}
        deleted = 0
        for sample in left:
            version = event_of(sample).version
            if sample.is_delete or is_own(sample.table) or not 0 < version <= revision:
                continue
            now = present.get((sample.table, sample.key))
            if now is None:
                event = events_of(Change(revision, "delete", sample.table, sample.key, sample.topic))[0]
            else:
                event = events_of(Change(now[0], "set", sample.table, sample.key, now[1], None, sample.topic))[1]
            deleted += 1
            self._send(event, stamp)
        return deleted

    def _write_pages(self, objects: Sequence[tuple[str, str, str, int]], revision: int, old: Iterable[str]) -> int:
        pages = _paged(objects, revision)
        for number, page in enumerate(pages):
            self._send(_page_event(str(number), "set", revision, msgspec.to_builtins(page)), 0)
        for key in old:
            if not key.isdigit() or int(key) >= len(pages):
                self._send(_page_event(key, "delete", revision), 0)
        self._confirm()
        return len(pages)

    def _send(self, event: Event, stamp: int) -> None:
        event.timestamp = stamp
        self._publisher.send_event(event)
        self._unconfirmed += 1
        if self._unconfirmed >= _PORTION:
            self._confirm()

    def _confirm(self) -> None:
        """Wait until a service has everything on disk.  Raises DurabilityError."""
        if not self._unconfirmed:
            return
        try:
            self._publisher.confirm(caches=1, timeout_s=self._left_s(), addresses=self._services)
        except WaitTimeout as error:
            raise DurabilityError(
                f"no service keeps what was published; its name-spaces must have the topics given, and {TOPIC}: {error}"
            ) from error
        self._unconfirmed = 0

    def _left_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())


def _has(sample: Sample | None, row: DbObject) -> bool:
    """Whether a service has this version, or heard of a later one."""
    if sample is None:
        return False
    version = event_of(sample).version
    return version > row.version or (version == row.version and not sample.is_delete)


def _event_of(row: DbObject) -> Event:
    return Event(topic=row.topic, table=row.table, key=row.key, action="set", value=row.value, version=row.version)


def _page_event(key: str, action: str, revision: int, value: object = None) -> Event:
    is_delete = action == "delete"
    return Event(
        topic=TOPIC, table=TABLE, key=key, action="delete" if is_delete else "set", value=value, version=revision
    )


def _paged(objects: Sequence[tuple[str, str, str, int]], revision: int) -> list[CheckpointPage]:
    """As few pages as none is too large; a number of them that is a power of two."""
    count = 1
    while True:
        pages = [CheckpointPage(revision, count, []) for _ in range(count)]
        for entry in objects:
            pages[page_of(entry[1:3], count)].objects.append(entry)
        if all(_size(page) <= PAGE_BYTES_MAX or len(page.objects) == 1 for page in pages):
            return pages
        count *= 2


def _size(page: CheckpointPage) -> int:
    return sum(len(topic) + len(table) + len(key) + 16 for topic, table, key, _ in page.objects)
