"""The receiving end: a link per address in the event loop of the process, and one thread that calls the receiver."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import threading
from collections import deque
from collections.abc import Callable, Mapping

from drivers.pubsub.longpoll.config import LongpollSettings, check_address
from drivers.pubsub.longpoll.core.actions import LinkCounters
from drivers.pubsub.longpoll.link import LongpollLink
from drivers.pubsub.longpoll.process import PROCESS, in_loop, post
from pubsub_api.core.topics import check_filter
from pubsub_api.driver import Asked, Disconnected, Receiver, SubscriberApi
from pubsub_api.driver_kit.counting import Tally, total
from pubsub_api.driver_kit.guarding import GuardedReceiver
from pubsub_api.driver_kit.inbox import Inbox
from pubsub_api.driver_kit.reach import Reach
from pubsub_api.errors import Closed, TransportUnavailable, UsageError

_LOOP_TIMEOUT_S = 30.0
_COUNTED = ("failures", "forgotten", "resets", "duplicates", "outdated", "skipped")
"""Those of a link's counters that tell of something dropped or done again."""


def _counted(link: LongpollLink) -> dict[str, int]:
    return {name: getattr(link.counters, name) for name in _COUNTED}


class LongpollSubscriber(SubscriberApi):
    """See `SubscriberApi`.  What is registered is kept under a lock; the links learn of it in order, in the loop."""

    def __init__(self, settings: LongpollSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._is_closed = False
        self._receiver: GuardedReceiver | None = None
        self._filters: dict[str, None] = {}
        self._addresses: dict[str, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._commands: deque[Callable[[], None]] = deque()
        self._is_posted = False
        # A link does not poll while there is no room: so frames wait where there is a policy for them, in the
        # publisher's mailbox.
        self._inbox = Inbox(settings.receive_queue_bytes_max, name="longpoll receiver", on_room=self._on_room)
        self._tally = Tally("queries_dropped", "queries_failed", *_COUNTED)
        """Of the queries of all links, and of links that are gone."""
        # The loop's own:
        self._links: dict[str, LongpollLink] = {}
        self._wanted: dict[str, None] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    # -- called from any thread

    def initialize(self, receiver: Receiver) -> None:
        self._check_usable()
        self._receiver = GuardedReceiver(receiver)

    def register_topic(self, topic_filter: str) -> bool:
        if not topic_filter.startswith("$"):
            check_filter(topic_filter)
        return self._register(self._filters, topic_filter, self._add_filter)

    def unregister_topic(self, topic_filter: str) -> bool:
        return self._unregister(self._filters, topic_filter, self._remove_filter)

    def register_listen_address(self, address: str) -> bool:
        check_address(address)
        return self._register(self._addresses, address, self._add_link)

    def unregister_listen_address(self, address: str) -> bool:
        return self._unregister(self._addresses, address, self._remove_link)

    def daemonize(self) -> None:
        self._check_usable()
        with self._lock:
            if self._receiver is None or self._loop is not None:
                raise UsageError("daemonize() is called once, after initialize()")
            self._loop = PROCESS.enter(self)
            self._inbox.start(self._receiver)
            for topic_filter in self._filters:
                self._post(functools.partial(self._add_filter, topic_filter))
            for address in self._addresses:
                self._post(functools.partial(self._add_link, address))

    @property
    def is_running(self) -> bool:
        return not PROCESS.is_forked and self._inbox.is_running

    @property
    def receiver_errors(self) -> int:
        return self._receiver.errors if self._receiver is not None else 0

    def query(self, frame: bytes) -> int | None:
        """How many serve is known when each has answered: `Asked` tells."""
        self._check_usable()
        if not any(link.is_up for link in tuple(self._links.values())):
            raise TransportUnavailable("no link is up that could carry the query")
        with self._lock:
            self._post(functools.partial(self._ask, frame))
        return None

    @property
    def counters(self) -> Mapping[str, int]:
        if PROCESS.is_forked:  # the lock may be held for ever
            return self._tally.counts()
        with self._lock:
            return total((self._tally.counts(), *map(_counted, self._links.values())))

    def statistics(self) -> dict[str, LinkCounters]:
        """What happened to each link so far, by address."""
        return {address: dataclasses.replace(link.counters) for address, link in tuple(self._links.items())}

    def close(self) -> None:
        if PROCESS.is_forked:
            return
        with self._lock:
            self._is_closed = True
            loop, self._loop = self._loop, None
        self._inbox.close()
        if loop is not None:
            try:
                in_loop(loop, self._close_links(), _LOOP_TIMEOUT_S)
            finally:
                self._inbox.join()
                PROCESS.leave(self)

    def _register(self, registered: dict[str, None], name: str, command: Callable[[str], None]) -> bool:
        self._check_usable()
        with self._lock:
            if name in registered:
                return False
            registered[name] = None
            self._post(functools.partial(command, name))
            return True

    def _unregister(self, registered: dict[str, None], name: str, command: Callable[[str], None]) -> bool:
        self._check_usable()
        with self._lock:
            if name not in registered:
                return False
            del registered[name]
            self._post(functools.partial(command, name))
            return True

    def _post(self, command: Callable[[], None]) -> None:
        """Have the loop do something, in order.  The caller holds the lock.  Before ``daemonize`` there is no need."""
        if self._loop is None:
            return
        self._commands.append(command)
        if not self._is_posted:
            self._is_posted = post(self._loop, self._run_commands)

    def _on_room(self) -> None:
        with self._lock:
            self._post(self._resume_polls)

    def _check_usable(self) -> None:
        PROCESS.check()
        if self._is_closed:
            raise Closed("the subscriber is closed")

    # -- in the loop

    def _run_commands(self) -> None:
        with self._lock:
            self._is_posted = False
            commands = list(self._commands)
            self._commands.clear()
        for command in commands:
            command()

    def _add_filter(self, topic_filter: str) -> None:
        self._wanted[topic_filter] = None
        for link in self._links.values():
            link.subscribe(topic_filter)

    def _remove_filter(self, topic_filter: str) -> None:
        self._wanted.pop(topic_filter, None)
        for link in self._links.values():
            link.unsubscribe(topic_filter)

    def _add_link(self, address: str) -> None:
        link = self._links[address] = LongpollLink(
            self._settings, address, list(self._wanted), self._inbox, self._tally
        )
        link.start()

    def _remove_link(self, address: str) -> None:
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
        """The caller holds the lock: no number may seem to shrink meanwhile."""
        for name, count in _counted(link).items():
            self._tally.add(name, count)

    def _resume_polls(self) -> None:
        for link in self._links.values():
            link.on_room()

    def _ask(self, frame: bytes) -> None:
        links = list(self._links.values())
        address = next(iter(self._links), "")
        reach = Reach(len(links), lambda total: self._inbox.put_report(Asked(address, frame, total)))
        reach.ask(functools.partial(link.query, frame) for link in links)

    async def _close_links(self) -> None:
        with self._lock:
            links = list(self._links.values())
            self._links.clear()
            for link in links:
                self._keep_counts(link)
        await asyncio.gather(*(link.close() for link in links), *self._leaving, return_exceptions=True)
