"""Telling the bus what was committed: through a publisher of this process, or through the publisher service.

Connect-based drivers let every process publish.  With a bind-based driver one process per host owns the address, so
with ``[pubsub] pub_sub_use_multiproc`` the changes go through the publisher service of the host, found by the entry
point that ``[pubsub] pub_sub_multiproc_driver`` names.
"""

from __future__ import annotations

import abc
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from nb_api.coordination.discovery import Registration
from nb_api.core.events import event_of, events_of
from nb_api.db_api import Change, DbApi
from pubsub_api import Event, Publisher, Session
from pubsub_api.config import GROUP
from pubsub_api.errors import InvalidEvent, InvalidTopic, LimitReached, NotPermitted
from pubsub_api.publishing import multiproc
from pubsub_api.publishing.multiproc import WorkerPublisherApi
from pubsub_api.runtime import forking


class PublishRefusal(NamedTuple):
    """A change that cannot be published: no event can carry it, or a limit is reached.  It stays in the outbox."""

    revision: int
    table: str
    key: str
    reason: str

    def __str__(self) -> str:
        return f"revision {self.revision} of {self.table} {self.key!r}: {self.reason}"


REFUSALS = (InvalidEvent, InvalidTopic, LimitReached, NotPermitted)
"""What is wrong with one change and says nothing about others."""


class ChangePublisher(abc.ABC):
    """Takes changes and sees to it that they are told.  Every method may be called from any thread.

    Fork-safe: a child's copy has handles of its own, made at its first change.
    """

    @abc.abstractmethod
    def publish(self, changes: Sequence[Change]) -> list[PublishRefusal]:
        """Send the changes, in order, without waiting for a subscriber; returns those that cannot be sent, for a
        reason of their own.  May block for a bounded time while too much is waiting.  Raises HeliographError: which of
        them were sent is then not known."""

    @abc.abstractmethod
    def flush(self, *, timeout_s: float) -> None:
        """Return when everything published before has left this process's responsibility, so that its death does not
        lose it.  Raises WaitTimeout, TransportUnavailable, and LimitReached when some of it was refused later: which,
        is then not known, and all of it has to be published again."""

    @abc.abstractmethod
    def close(self) -> None:
        """Send what is pending, for a bounded time, and release everything.  Idempotent."""


class DirectPublisher(ChangePublisher):
    """A publisher of this process, made by ``make`` when it is first needed and closed with this object.

    ``directory``: the database in which it is registered, so that subscribers find it.
    """

    def __init__(self, make: Callable[[], Publisher], *, directory: DbApi | None = None) -> None:
        self._make = make
        self._directory = directory
        self._registration: Registration | None = None
        self._lock = threading.Lock()
        self._publisher: Publisher | None = None
        self._flushing = threading.Lock()
        self._refusals: list[NotPermitted] = []
        """The newest one, if any, guarded by that lock.  The publisher tells it once; here each thread is told."""
        self._told = threading.local()
        forking.register(self)

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        self._flushing = threading.Lock()

    @property
    def publisher(self) -> Publisher:
        """Raises AddressInUse on a bind-based driver whose address is taken, and LimitReached."""
        with self._lock:
            if self._publisher is None:
                publisher = self._make()
                try:
                    if self._directory is not None:
                        self._registration = Registration(self._directory, publisher, owns_address=True).start()
                except LimitReached:
                    publisher.close()  # no other thread would find it
                    raise
                self._publisher = publisher
            return self._publisher

    def publish(self, changes: Sequence[Change]) -> list[PublishRefusal]:
        publisher = self._publisher or self.publisher
        try:
            if len(changes) == 1 and changes[0].left_topic is None:
                publisher.send_event(event_of(changes[0]), is_sound=True)  # a lone event has a shorter way
            else:
                events = list(itertools.chain.from_iterable(map(events_of, changes)))
                publisher.send_events(events, is_sound=True)
        except REFUSALS:
            # One by one it shows which.  What was sent together with it is sent again, and recognised by its version.
            return send_each(publisher.send_event, changes)
        return []

    def flush(self, *, timeout_s: float) -> None:
        publisher = self.publisher
        with self._flushing:
            try:
                publisher.flush(timeout_s=timeout_s)
            except NotPermitted as error:
                self._refusals = [error]
            refusals = self._refusals
        if refusals and getattr(self._told, "refusals", None) is not refusals:
            self._told.refusals = refusals
            raise refusals[0]

    def close(self) -> None:
        if self._registration is not None:
            self._registration.close()
        if self._publisher is not None:
            self._publisher.close()


class ServicePublisher(ChangePublisher):
    """Through the publisher service of this host: numbered, acknowledged, bounded."""

    def __init__(self, worker: WorkerPublisherApi) -> None:
        self._worker = worker
        self._told = (b"", 0)
        """GUID of the worker, which a fork changes, and how many of its events were refused as far as `flush` told."""
        self._is_held_up = False
        """The last flush was not done in time."""

    def publish(self, changes: Sequence[Change]) -> list[PublishRefusal]:
        return send_each(self._worker.send_event, changes)

    def flush(self, *, timeout_s: float) -> None:
        self._is_held_up = True
        self._worker.flush(timeout_s=timeout_s)
        self._is_held_up = False
        statistics = self._worker.statistics()
        guid, told = self._told
        refused = statistics.refused_events - (told if guid == self._worker.guid else 0)
        self._told = (self._worker.guid, statistics.refused_events)
        if refused > 0:
            raise LimitReached(f"the publisher service refused {refused} events: {statistics.refused_reason}")

    def close(self) -> None:
        if self._is_held_up:
            self._worker.close(timeout_s=0.0)  # it was waited for; the outbox has what the service did not take
        else:
            self._worker.close()


def send_each(send: Callable[[Event], object], changes: Iterable[Change]) -> list[PublishRefusal]:
    """Send what tells of the changes; returns those of which not everything can be sent."""
    refused: list[PublishRefusal] = []
    for change in changes:
        try:
            for event in events_of(change):
                send(event)
        except REFUSALS as error:
            refused.append(PublishRefusal(change.revision, change.table, change.key, str(error)))
    return refused


def uses_service(session: Session) -> bool:
    """Whether the processes of this host publish through the publisher service."""
    return bool(session.conf[GROUP].pub_sub_use_multiproc) and session.capabilities.bind_based


def change_publisher(session: Session, db: DbApi) -> ChangePublisher:
    """The publisher that the configuration asks for.  Opens nothing yet.  Raises DriverNotFound, InvalidConfig.

    One that binds an address of its own says in the database where it is.
    """
    if uses_service(session):
        return ServicePublisher(multiproc.worker_publisher(session.conf))
    return DirectPublisher(session.publisher, directory=db if session.capabilities.bind_based else None)
