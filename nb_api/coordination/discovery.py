"""Publishers say in the database where they are, and subscribers listen to those that they find.

A `Registration` is a publisher's entry in the directory, renewed by a thread; a `Directory` keeps a subscriber
listening to what is registered.  What is decided, `nb_api.core.directory` decides.  Addresses that are configured work
without either, and together with it: an address is listened to once, and a publisher that is reached at two addresses
is recognised by its GUID and its numbers.

Both use the caller's database object from another thread, a registration from one of its own, and read and write
nothing but their own small table, which is neither in the outbox nor in a cache that was not asked for it.
"""

from __future__ import annotations

import abc
import dataclasses
import logging
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

import msgspec

from nb_api.coordination.lease_config import PUBLISHERS_MAX, read_discovery
from nb_api.coordination.leases import REFUSED, TOPIC, lease_clock
from nb_api.core.directory import TABLE, CollectorCore, DirectoryCore, DirectoryEntry, normalise, read_entry
from nb_api.db_api import DbApi, DbObject
from nb_api.errors import ObjectExists, ObjectNotFound
from pubsub_api.errors import Forked, HeliographError, InvalidConfig
from pubsub_api.runtime import forking
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.periodic import Failures, PeriodicTask, PeriodicThread, with_jitter

LOG = logging.getLogger(__name__)

_GRACE_RENEWALS = 2
"""So many intervals of renewal an entry must be gone before subscribers stop listening to it."""

S = TypeVar("S", bound="_Service")


class Announced(Protocol):
    """What a registration needs of a publisher; `pubsub_api.Publisher` is one."""

    @property
    def name(self) -> str: ...
    @property
    def guid(self) -> bytes: ...
    @property
    def address(self) -> str: ...


class AddressListener(Protocol):
    """What a directory needs of a subscriber; `pubsub_api.Subscriber` is one."""

    def listen_to(self, address: str) -> bool: ...
    def stop_listening_to(self, address: str) -> bool: ...


class _Service(Closeable):
    """Does something now and then, and at once when it is woken."""

    def __init__(self, thread: PeriodicThread | PeriodicTask) -> None:
        """``thread`` calls `_work`."""
        self._is_inherited = self._is_closed = False
        self._thread = thread
        forking.register(self)

    @abc.abstractmethod
    def _work(self) -> None:
        """Do it.  Raises HeliographError when it could not be done."""

    def start(self: S) -> S:
        """Begin.  Does not wait for the database.  Raises LimitReached."""
        if self._is_inherited:
            raise Forked("it belongs to the process that made it; make one in this process")
        self._thread.start()
        return self

    def wake(self) -> None:
        """Do it now instead of later."""
        self._thread.wake()

    def wait_done(self, *, timeout_s: float) -> bool:
        """Block until it was done once; False when the time is over."""
        return self._thread.wait_done(timeout_s=timeout_s)

    def close(self) -> None:
        """End it.  Blocks while a call to the database is under way.  Idempotent."""
        self._is_closed = True
        self._thread.stop()

    def __enter__(self: S) -> S:
        return self.start()

    def after_fork_in_child(self) -> None:
        self._is_inherited = True


@dataclasses.dataclass
class RegistrationStatistics:
    renewals: int = 0
    registrations: int = 0
    """1, and one more for every time the entry was gone and put back."""
    collected: int = 0
    """Entries of others that were deleted because they showed no progress."""
    failures: int = 0
    """Renewals that the database did not take.  The next is tried a little later."""


class Registration(_Service):
    """The entry of a publisher in the directory, from ``start`` to ``close``, which takes it out.

    Meanwhile it also deletes the entries of publishers that are dead.  ``owns_address``: no other publisher can be at
    this address, as for drivers that bind to it, so another entry of the same name for it is an earlier incarnation.
    """

    def __init__(self, db: DbApi, publisher: Announced, *, owns_address: bool) -> None:
        settings = read_discovery(db.conf)
        self._statistics = RegistrationStatistics()
        failures = Failures(
            LOG, f"The entry of {publisher.name} in the directory could not be renewed", self._statistics
        )  # fmt: skip
        # A renewal that failed is tried again soon: there is room for several before the lease ends.
        interval_s = settings.renew_interval_s
        super().__init__(
            PeriodicThread(
                f"registration-{publisher.name}", self._work, failures, pause_s=interval_s, retry_s=interval_s / 4,
                at_once=True,
            )
        )  # fmt: skip
        self._db = db
        self._entry = DirectoryEntry(publisher.name, publisher.guid.hex(), publisher.address)
        self._owns_address = owns_address
        # Twice the interval: a look that is a little late still counts in full.
        self._collector = CollectorCore(lease_s=settings.lease_s, gap_max_s=2 * settings.renew_interval_s)

    def statistics(self) -> RegistrationStatistics:
        return dataclasses.replace(self._statistics)

    def close(self) -> None:
        """End the thread and take the entry out, if the database answers."""
        was_closed = self._is_closed
        super().close()
        if was_closed or not self._thread.is_started:
            return
        try:
            self._db.delete(TABLE, self._entry.guid)
        except HeliographError as error:
            LOG.info("The entry of %s stays in the directory until its lease ends: %s", self._entry.name, error)

    def _work(self) -> None:
        self._renew()
        with self._db.snapshot([TABLE]) as snapshot:
            found = list(snapshot)
        for dead in {one.key: one for one in [*self._earlier_incarnations(found), *self._others(found)]}.values():
            self._delete(dead)

    def _renew(self) -> None:
        """No other process writes this entry, except to delete it, so whatever is there is replaced."""
        self._statistics.renewals += 1
        value = msgspec.to_builtins(msgspec.structs.replace(self._entry, renewals=self._statistics.renewals))
        try:
            self._db.set(TABLE, self._entry.guid, value)
        except ObjectNotFound as missing:
            if missing.deleted_version is not None and self._statistics.registrations:
                LOG.warning("The entry of %s in the directory was deleted and is put back", self._entry.name)
            try:
                self._db.create(TABLE, self._entry.guid, value, topic=TOPIC)
            except ObjectExists:
                return  # an earlier attempt that was not answered
            self._statistics.registrations += 1

    def _earlier_incarnations(self, found: Iterable[DbObject]) -> list[DbObject]:
        if not self._owns_address:
            return []
        own = (self._entry.name, normalise(self._entry.address))
        others = [(one, read_entry(one)) for one in found if one.key != self._entry.guid]
        return [one for one, entry in others if entry and (entry.name, normalise(entry.address)) == own]

    def _others(self, found: Iterable[DbObject]) -> list[DbObject]:
        return self._collector.dead((one for one in found if one.key != self._entry.guid), lease_clock())

    def _delete(self, dead: DbObject) -> None:
        try:
            self._db.delete(TABLE, dead.key, expected_version=dead.version)
        except REFUSED:  # it was renewed, or another process has deleted it
            return
        self._statistics.collected += 1
        LOG.info("The publisher %s showed no progress and is out of the directory", dead.key)


@dataclasses.dataclass(frozen=True)
class DirectoryStatistics:
    publishers: int
    """Valid entries at the last look."""
    listening: int
    """Addresses that are listened to because of them."""
    added: int
    removed: int
    refused: int
    """Addresses that the subscriber cannot listen to."""
    invalid: int
    """Objects of the table that are no entries, at the last look."""
    ignored: int
    """Entries beyond `PUBLISHERS_MAX`, at the last look."""
    failures: int
    """Looks that the database did not answer.  Nothing changes then."""


class Directory(_Service):
    """Keeps a subscriber listening to the publishers in the directory, from ``start`` to ``close``.

    ``static`` are the addresses that the subscriber listens to anyway: it never stops listening to them.
    """

    def __init__(
        self,
        db: DbApi,
        subscriber: AddressListener,
        *,
        static: Sequence[str] = (),
    ) -> None:
        settings = read_discovery(db.conf)
        # Not in step: many subscribers start together when the power comes back.
        failures = Failures(LOG, "The directory of publishers cannot be read, nothing changes meanwhile")
        super().__init__(PeriodicTask(self._work, failures, pause_s=with_jitter(settings.refresh_interval_s)))
        self._db = db
        self._subscriber = subscriber
        self._core = DirectoryCore(
            static, grace_s=_GRACE_RENEWALS * settings.renew_interval_s, publishers_max=settings.publishers_max
        )
        self._listening: set[str] = set()
        self._added = self._removed = self._refused = 0

    def entries(self) -> list[DirectoryEntry]:
        """What the directory said at the last look."""
        return list(self._core.entries.values())

    def statistics(self) -> DirectoryStatistics:
        core = self._core
        return DirectoryStatistics(
            publishers=len(core.entries),
            listening=len(self._listening),
            added=self._added,
            removed=self._removed,
            refused=self._refused,
            invalid=core.invalid,
            ignored=core.ignored,
            failures=self._thread.failures.count,
        )

    def _work(self) -> None:
        with self._db.snapshot([TABLE]) as snapshot:
            found = list(snapshot)
        update = self._core.update(found, lease_clock())
        for address in update.added:
            self._listen(address)
        for address in update.removed:
            if address in self._listening:
                self._listening.discard(address)
                self._removed += self._subscriber.stop_listening_to(address)
        if self._core.ignored:
            LOG.warning(
                "%d publishers of the directory are ignored: a subscriber listens to %d",
                self._core.ignored,
                PUBLISHERS_MAX,
            )

    def _listen(self, address: str) -> None:
        try:
            is_new = self._subscriber.listen_to(address)
        except InvalidConfig as error:
            self._refused += 1
            LOG.warning("A publisher of the directory cannot be listened to: %s", error)
            return
        if is_new:  # else it is listened to for another reason, and stays
            self._listening.add(address)
            self._added += 1
