"""The receiving end: a link per address in the event loop of the process, and one thread that calls the receiver."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Mapping

from heliograph_drivers.pubsub.longpoll.config import LongpollSettings, check_address
from heliograph_drivers.pubsub.longpoll.link import LongpollLink
from heliograph_drivers.pubsub.longpoll.process import PROCESS, in_loop, post
from pubsub_api.driver import Asked, Disconnected
from pubsub_api.driver_kit import DriverSubscriber, GuardedReceiver, Inbox, ResponderCount, Tally, total
from pubsub_api.errors import TransportUnavailable

_LOOP_TIMEOUT_S = 30.0
_COUNTED = ("failures", "forgotten", "resets", "duplicates", "outdated", "skipped")
"""The counters of a link about something that was dropped or repeated."""


def _counted(link: LongpollLink) -> dict[str, int]:
    return {name: getattr(link.counters, name) for name in _COUNTED}


class LongpollSubscriber(DriverSubscriber):
    """See `SubscriberApi`.  The loop passes registrations on to the links, in order."""

    def __init__(self, settings: LongpollSettings) -> None:
        # The tally counts the queries of all links, and has the counters of links that are closed.
        super().__init__(Tally("queries_dropped", "queries_failed", *_COUNTED), guard=PROCESS)
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._commands: deque[Callable[[], None]] = deque()
        self._is_posted = False
        # A link does not poll while the inbox is full: then frames wait in the publisher's mailbox, which has a policy.
        self._inbox = Inbox(settings.receive_queue_bytes_max, name="longpoll receiver", on_room=self._on_room)
        # Used in the loop only:
        self._links: dict[str, LongpollLink] = {}
        self._wanted: dict[str, None] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    # -- called from any thread

    def query(self, frame: bytes) -> int | None:
        """Hand the query to all links.  How many publishers answer queries is reported later, as `Asked`."""
        self._check_usable()
        if not any(link.is_up for link in tuple(self._links.values())):
            raise TransportUnavailable("no link is up that could carry the query")
        with self._usable():
            self._post(functools.partial(self._ask, frame))
        return None

    @property
    def counters(self) -> Mapping[str, int]:
        if PROCESS.is_child:  # in a child the lock may be held for ever
            return self._tally.counts()
        with self._lock:
            return total((self._tally.counts(), *map(_counted, self._links.values())))

    def _check_address(self, address: str) -> None:
        check_address(address)

    def _open(self, receiver: GuardedReceiver) -> None:
        self._loop = PROCESS.enter(self)
        self._inbox.start(receiver)

    def _is_alive(self) -> bool:
        return self._inbox.is_running

    def _add_filter(self, topic_filter: str) -> None:
        self._post(functools.partial(self._subscribe, topic_filter))

    def _remove_filter(self, topic_filter: str) -> None:
        self._post(functools.partial(self._unsubscribe, topic_filter))

    def _add_link(self, address: str) -> None:
        self._post(functools.partial(self._connect, address))

    def _remove_link(self, address: str) -> None:
        self._post(functools.partial(self._disconnect, address))

    def _close(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
        self._inbox.close()
        if loop is not None:
            try:
                in_loop(loop, self._close_links(), _LOOP_TIMEOUT_S)
            finally:
                self._inbox.join()
                PROCESS.leave(self)

    def _post(self, command: Callable[[], None]) -> None:
        """Have the loop run a command, in order.  The caller holds the lock.  No effect after ``close``."""
        if self._loop is None:
            return
        self._commands.append(command)
        if not self._is_posted:
            self._is_posted = post(self._loop, self._run_commands)

    def _on_room(self) -> None:
        with self._lock:
            self._post(self._resume_polls)

    # -- in the loop

    def _run_commands(self) -> None:
        with self._lock:
            self._is_posted = False
            commands = list(self._commands)
            self._commands.clear()
        for command in commands:
            command()

    def _subscribe(self, topic_filter: str) -> None:
        self._wanted[topic_filter] = None
        for link in self._links.values():
            link.subscribe(topic_filter)

    def _unsubscribe(self, topic_filter: str) -> None:
        self._wanted.pop(topic_filter, None)
        for link in self._links.values():
            link.unsubscribe(topic_filter)

    def _connect(self, address: str) -> None:
        link = self._links[address] = LongpollLink(
            self._settings, address, list(self._wanted), self._inbox, self._tally
        )
        link.start()

    def _disconnect(self, address: str) -> None:
        with self._lock:
            link = self._links.pop(address)
            self._keep_counts(link)
        was_up = link.is_up
        task = asyncio.get_running_loop().create_task(link.close())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        if was_up:
            self._inbox.put_report(Disconnected(address, "the address was unregistered"))

    def _keep_counts(self, link: LongpollLink) -> None:
        """Add the counters of a link that closes to the tally.  The caller holds the lock, so that no reader sees a
        smaller sum meanwhile."""
        for name, count in _counted(link).items():
            self._tally.add(name, count)

    def _resume_polls(self) -> None:
        for link in self._links.values():
            link.on_room()

    def _ask(self, frame: bytes) -> None:
        links = list(self._links.values())
        address = next(iter(self._links), "")
        responders = ResponderCount(len(links), lambda total: self._inbox.put_report(Asked(address, frame, total)))
        responders.ask(functools.partial(link.query, frame) for link in links)

    async def _close_links(self) -> None:
        with self._lock:
            links = list(self._links.values())
            self._links.clear()
            for link in links:
                self._keep_counts(link)
        await asyncio.gather(*(link.close() for link in links), *self._leaving, return_exceptions=True)
