"""Base classes of the two ends of a driver.  They remember what is registered, refuse wrong use, and count.

A driver derives its ends from them and implements the abstract methods, whose names begin with an underscore.  None of
these is called in a forked child, or after ``close``, except ``_close`` itself.
"""

from __future__ import annotations

import abc
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from pubsub_api.core.topics import check_filter
from pubsub_api.driver import PublisherApi, PublisherReport, QueryHandler, Receiver, SubscriberApi
from pubsub_api.driver_kit.counting import Tally
from pubsub_api.driver_kit.guarding import GuardedHandler, GuardedReceiver
from pubsub_api.errors import Closed, UsageError
from pubsub_api.runtime.forking import ForkGuard

Lock = contextlib.AbstractContextManager[object]
"""A ``threading.Lock``, or another lock that the driver shares with an end."""


class ProcessGuard(Protocol):
    """Which processes may use an end: a `pubsub_api.runtime.forking.ForkGuard`, or a class of the driver."""

    @property
    def is_child(self) -> bool:
        """This process was forked from one that had opened handles, so it must not use them."""

    def check(self) -> None:
        """Raises Forked where ``is_child``."""


class _DriverEnd(abc.ABC):
    """What both ends share.  ``lock`` guards the attributes of an end; a driver may use it for its own attributes."""

    def __init__(self, what: str, tally: Tally | None, guard: ProcessGuard | None, lock: Lock | None) -> None:
        self._tally = tally or Tally()
        self._guard = guard or ForkGuard(what)
        self._lock = lock or threading.Lock()
        self._is_closed = False

    @property
    def counters(self) -> Mapping[str, int]:
        return self._tally.counts()

    def close(self) -> None:
        if self._guard.is_child:
            return
        with self._lock:
            self._is_closed = True
        self._close()

    @abc.abstractmethod
    def _close(self) -> None:
        """Release everything and wait for every thread but the calling one.  Called without the lock by each ``close``:
        also again, and also when nothing was opened."""

    def _check_usable(self) -> None:
        """Raises Forked and Closed."""
        self._guard.check()
        if self._is_closed:
            raise Closed(f"the {self._name()} is closed")

    @abc.abstractmethod
    def _name(self) -> str:
        """For error messages."""

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        """Hold the lock while the end is used.  Raises Forked and Closed."""
        self._guard.check()  # before the lock, which might never be released in a child
        with self._lock:
            self._check_usable()
            yield


class DriverPublisher(_DriverEnd, PublisherApi):
    """The sending end.  ``_address`` is the one that subscribers should use; ``_open`` may change it."""

    def __init__(
        self, address: str, tally: Tally | None = None, *, guard: ProcessGuard | None = None, lock: Lock | None = None
    ) -> None:
        super().__init__("publisher", tally, guard, lock)
        self._address = address
        self._report: PublisherReport | None = None
        """Given by ``initialize``."""
        self._handler: GuardedHandler | None = None
        """Given by ``serve``."""

    @property
    def address(self) -> str:
        return self._address

    def initialize(self, report: PublisherReport) -> None:
        with self._usable():
            if self._report is not None:
                raise UsageError("initialize was called already")
            self._report = report
        try:
            self._open(report)
        except BaseException:
            self._report = None
            raise

    def serve(self, handler: QueryHandler) -> None:
        with self._usable():
            if self._report is None or self._handler is not None:
                raise UsageError("serve is called once, after initialize")
            guarded = self._handler = GuardedHandler(handler)
        try:
            self._serve(guarded)
        except BaseException:
            self._handler = None
            raise

    @property
    def handler_errors(self) -> int:
        handler = self._handler
        return handler.errors if handler is not None else 0

    def _name(self) -> str:
        return f"publisher of {self.address}"

    @abc.abstractmethod
    def _open(self, report: PublisherReport) -> None:
        """Bind or connect, as `PublisherApi.initialize` says.  Called without the lock.  Leaves nothing open when it
        raises."""

    @abc.abstractmethod
    def _serve(self, handler: GuardedHandler) -> None:
        """Begin to answer queries, as `PublisherApi.serve` says.  Called without the lock."""


class DriverSubscriber(_DriverEnd, SubscriberApi):
    """The receiving end.  It remembers filters and addresses, and passes them to the driver once it runs.

    ``daemonize`` calls ``_open``, then ``_add_filter`` for every registered filter, then ``_add_link`` for every
    registered address.  From then on each change calls one of them, or ``_remove_filter`` or ``_remove_link``.  All of
    these are called under the lock.
    """

    def __init__(
        self, tally: Tally | None = None, *, guard: ProcessGuard | None = None, lock: Lock | None = None
    ) -> None:
        super().__init__("subscriber", tally, guard, lock)
        self._receiver: GuardedReceiver | None = None
        self._filters: dict[str, None] = {}
        self._addresses: dict[str, None] = {}
        self._is_started = False

    def initialize(self, receiver: Receiver) -> None:
        self._check_usable()
        self._receiver = GuardedReceiver(receiver)

    def register_topic(self, topic_filter: str) -> bool:
        self._check_filter(topic_filter)
        return self._register(self._filters, topic_filter, self._add_filter)

    def unregister_topic(self, topic_filter: str) -> bool:
        return self._unregister(self._filters, topic_filter, self._remove_filter)

    def register_listen_address(self, address: str) -> bool:
        self._check_address(address)
        return self._register(self._addresses, address, self._add_link)

    def unregister_listen_address(self, address: str) -> bool:
        return self._unregister(self._addresses, address, self._remove_link)

    def daemonize(self) -> None:
        with self._usable():
            if self._receiver is None or self._is_started:
                raise UsageError("daemonize is called once, after initialize")
            self._open(self._receiver)
            self._is_started = True
            for topic_filter in self._filters:
                self._add_filter(topic_filter)
            for address in self._addresses:
                self._add_link(address)

    @property
    def is_running(self) -> bool:
        return self._is_started and not self._is_closed and not self._guard.is_child and self._is_alive()

    @property
    def receiver_errors(self) -> int:
        return self._receiver.errors if self._receiver is not None else 0

    def _register(self, registered: dict[str, None], name: str, add: Callable[[str], None]) -> bool:
        with self._usable():
            if name in registered:
                return False
            if self._is_started:
                add(name)
            registered[name] = None
            return True

    def _unregister(self, registered: dict[str, None], name: str, remove: Callable[[str], None]) -> bool:
        with self._usable():
            if name not in registered:
                return False
            del registered[name]
            if self._is_started:
                remove(name)
            return True

    def _name(self) -> str:
        return "subscriber"

    def _check_filter(self, topic_filter: str) -> None:
        """Raises InvalidTopic.  Names that begin with ``$`` are Heliograph's own and no filters."""
        if not topic_filter.startswith("$"):
            check_filter(topic_filter)

    @abc.abstractmethod
    def _check_address(self, address: str) -> None:
        """Raises InvalidConfig."""

    @abc.abstractmethod
    def _open(self, receiver: GuardedReceiver) -> None:
        """Start the threads.  Raises LimitReached, and leaves nothing open then."""

    @abc.abstractmethod
    def _is_alive(self) -> bool:
        """Whether the threads that ``_open`` and ``_add_link`` started are alive.  Called without the lock."""

    @abc.abstractmethod
    def _add_filter(self, topic_filter: str) -> None:
        """Subscribe on every link."""

    @abc.abstractmethod
    def _remove_filter(self, topic_filter: str) -> None:
        """Unsubscribe on every link."""

    @abc.abstractmethod
    def _add_link(self, address: str) -> None:
        """Connect, and subscribe to all filters that were added.  Does not block."""

    @abc.abstractmethod
    def _remove_link(self, address: str) -> None:
        """Disconnect, and report `Disconnected` if the link was up.  Does not wait for a thread."""
