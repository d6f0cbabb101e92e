"""How a forked worker publishes when one process per host owns the address: through the publisher service.

On a bind-based driver the workers of a host cannot each bind.  They hand their events, encoded, to the publisher
service over a hop that is numbered, acknowledged and bounded.  This module holds the worker's side of the contract and
finds the implementation that ``[pubsub] pub_sub_multiproc_driver`` names; it knows nothing of sockets.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable

from oslo_config import cfg

from pubsub_api import config, tracing
from pubsub_api.core.events import Event
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.plugins import Plugins

NAMESPACE = "heliograph.multiproc_driver"


@dataclasses.dataclass(frozen=True)
class WorkerWindowStatistics:
    """What a worker has sent and the service has not acknowledged."""

    waiting_events: int
    waiting_bytes: int
    blocked_sends: int
    """How often a send had to wait because the window was full."""
    timeouts: int
    """How often it waited in vain and raised."""


@dataclasses.dataclass(frozen=True)
class WorkerLinkStatistics:
    """The connection of a worker to the service."""

    connects: int
    disconnects: int
    refusals: int
    """Connections that the service, or the system, refused."""
    resent_batches: int
    """Sent again after a connection was lost; the service drops those it had taken."""


@dataclasses.dataclass(frozen=True)
class WorkerStatistics:
    """Counters of one worker process since its first event: at the top what one watches, below it by what counts."""

    name: str
    guid: str
    """Of this process: a forked child has one of its own."""
    is_connected: bool
    events: int
    batches: int
    acknowledged_events: int
    refused_events: int
    """Acknowledged, yet not published: the service could not."""
    refused_reason: str
    """Why, for the newest of them; empty when there are none."""
    window: WorkerWindowStatistics
    link: WorkerLinkStatistics


class WorkerPublisherApi(Closeable):
    """Sends events to the publisher service of this host.  Every method may be called from any thread.

    Opens nothing until the first event, and needs no service to be there yet: events wait in a bounded window and
    are sent when it comes, in order, each once, across restarts of the service.  What is in the window when this
    process dies is lost with it; a program that cannot afford that has an outbox.

    After ``fork()`` the child's copy is a new worker with a GUID and a connection of its own, made at its first event.
    What the parent has not sent yet stays with the parent.
    """

    @abc.abstractmethod
    def send_event(self, event: Event) -> int:
        """Queue one event.  Returns its position among the events of this process, 1, 2, 3, ...

        Blocks only while the window is full, at most ``[publisher_service] send_timeout`` seconds.  Raises
        InvalidEvent, InvalidTopic, Closed, LimitReached when there is no thread or descriptor for the connection, and a
        retriable TransportUnavailable when the window stayed full: then the event was not taken.
        """

    @abc.abstractmethod
    def send_events(self, events: Iterable[Event]) -> int:
        """Queue many, in order.  Returns the position of the last, 0 when there was none before and none now.

        As `send_event` for each: what precedes a bad one is sent.
        """

    @abc.abstractmethod
    def flush(self, *, timeout_s: float | None = None) -> None:
        """Return when the service has acknowledged everything sent before, that is: taken it over, so that not even
        the service's sudden death loses it.  Raises WaitTimeout, Closed."""

    @property
    @abc.abstractmethod
    def acknowledged(self) -> int:
        """Position of the last event that the service has taken over, with all before it.  Rises."""

    @abc.abstractmethod
    def wait_acknowledged(self, position: int, *, timeout_s: float | None = None) -> bool:
        """Block until `acknowledged` has reached a position, or the time is over.  True when it has."""

    @property
    @abc.abstractmethod
    def guid(self) -> bytes:
        """Of this worker process."""

    @abc.abstractmethod
    def statistics(self) -> WorkerStatistics:
        """Counters of this process."""

    @abc.abstractmethod
    def close(self, *, timeout_s: float = 5.0) -> None:
        """Flush for at most that long, say goodbye, end the thread.  What could not be flushed is counted and logged.
        Idempotent; in a forked child it leaves the parent's connection alone."""


class MultiprocDriver(abc.ABC):
    """What an entry point of ``heliograph.multiproc_driver`` names: makes workers' publishers under one ``conf``."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.conf = conf

    @abc.abstractmethod
    def worker_publisher(self, *, name: str = "") -> WorkerPublisherApi:
        """A new publisher for this process and, after ``fork()``, for its children.  Raises InvalidConfig."""


_PLUGINS = Plugins(NAMESPACE, MultiprocDriver, "multiproc driver")  # type: ignore[type-abstract]


def worker_publisher(conf: cfg.ConfigOpts, *, name: str = "") -> WorkerPublisherApi:
    """A publisher that sends through the publisher service that ``conf`` names.  Opens nothing yet.

    ``conf`` may be any parsed oslo.config object: what it lacks is registered on it.  ``name`` stands in logs, by
    default host and program.  Raises DriverNotFound with the names that exist, and InvalidConfig.
    """
    conf.register_opts(config.PUBSUB_OPTIONS, group=config.GROUP)
    driver_class = _PLUGINS.load(conf[config.GROUP].pub_sub_multiproc_driver)
    publisher = driver_class(conf).worker_publisher(name=name)
    if tracing.active is not None:
        tracing.active.trace_publisher(publisher, has_batches=False)
    return publisher
