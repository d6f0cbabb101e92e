"""Confirmed publication: making sure that stand-alone caches hold what was published.

Off unless asked for, so plain publishing has no acknowledgements.  A publisher that wants to be sure asks the caches
which of its ranges they hold, sends again, under the same numbers, what too few of them have, and asks again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.errors import FrameError, NotSupported, TransportUnavailable, UsageError, WaitTimeout
from pubsub_api.core.frame import Kind
from pubsub_api.core.messages import Query, Want
from pubsub_api.core.receiving.questions import WANTS_PER_QUERY_MAX
from pubsub_api.core.scopes import group
from pubsub_api.core.settings import PublisherSettings
from pubsub_api.core.topics import CONTROL_TOPIC
from pubsub_api.driver import LinkReport, PubSubApi, SubscriberApi
from pubsub_api.publishing.batching import Batcher
from pubsub_api.runtime.backoff import Backoff


class Needed(NamedTuple):
    """How many must hold a range."""

    caches: int
    services: int = 0
    """Of those, services that keep it durably."""

    def __str__(self) -> str:
        durably = f", {self.services} of them durably" if self.services else ""
        return f"{max(self.caches, self.services)} caches{durably}"


class Confirmer:
    """Asks caches what they hold.  Owns the receiving end it is given; one confirmation at a time."""

    def __init__(self, end: SubscriberApi, settings: PublisherSettings, *, addresses: Sequence[str]) -> None:
        self._end = end
        self._frame = settings.frame
        self._scopes_max = settings.scopes_max
        self._interval_s = settings.confirm_interval_s
        self._interval_max_s = settings.confirm_interval_max_s
        self.bad_replies = 0
        """Frames that came and were refused."""
        self._guid = os.urandom(frames.GUID_BYTES)
        self._one_at_a_time = threading.Lock()
        self._lock = threading.RLock()
        """Of the condition, and entered itself: an interrupt within `Condition.__enter__` would leave it held."""
        self._changed = threading.Condition(self._lock)
        self._holders: dict[int, set[bytes]] = {}
        """Query id * wants per query + position of a want -> the caches that hold it."""
        self._keepers: dict[int, set[bytes]] = {}
        """The same -> those that hold it durably."""
        self._next_id = 1
        end.initialize(self)
        self.listen_to(addresses)
        end.daemonize()

    def listen_to(self, addresses: Sequence[str]) -> None:
        """Ask there as well from now on: a cache that was started anew may have another address."""
        for address in addresses:
            self._end.register_listen_address(address)

    def confirm(
        self, wants: Sequence[Want], needed: Needed, *, timeout_s: float, resend: Callable[[Sequence[Want]], None]
    ) -> None:
        """Return when each range is held by that many.  Raises WaitTimeout naming the first that is not."""
        with self._one_at_a_time:
            deadline = time.monotonic() + timeout_s
            backoff = Backoff(self._interval_s, self._interval_max_s)
            open_wants = list(wants)
            while True:
                open_wants = self._ask(open_wants, needed, min(deadline, time.monotonic() + backoff.next_s()))
                if not open_wants:
                    return
                if time.monotonic() >= deadline:
                    first = open_wants[0]
                    raise WaitTimeout(
                        f"{len(open_wants)} ranges are not held by {needed} after {timeout_s} s, "
                        f"the first is {first.topic} {first.first}..{first.last}"
                    )
                resend(open_wants)

    def _ask(self, wants: list[Want], needed: Needed, until: float) -> list[Want]:
        """One round: returns the ranges that too few caches hold."""
        keys: list[tuple[int, Want]] = []
        with self._lock:
            self._holders.clear()
            self._keepers.clear()
        for query in self._questions(wants):
            keys += [(query.id * WANTS_PER_QUERY_MAX + position, want) for position, want in enumerate(query.wants)]
            with contextlib.suppress(TransportUnavailable):  # what cannot be asked does not count, and is asked again
                self._end.query(
                    frames.pack(Kind.QUERY, self._guid, query.scope, messages.encode(query), key=self._frame.key)
                )

        def still_open() -> list[Want]:
            return [
                want
                for key, want in keys
                if len(self._holders.get(key, ())) < needed.caches or len(self._keepers.get(key, ())) < needed.services
            ]

        with self._lock:
            self._changed.wait_for(lambda: not still_open(), timeout=max(0.0, until - time.monotonic()))
            return still_open()

    def _questions(self, wants: list[Want]) -> Iterator[Query]:
        scopes = group(((want.topic, want) for want in wants), self._scopes_max) if self._scopes_max else {}
        for scope, some in scopes.items() or ((CONTROL_TOPIC, wants),):
            for start in range(0, len(some), WANTS_PER_QUERY_MAX):
                part = some[start : start + WANTS_PER_QUERY_MAX]
                yield Query(id=self._next_id, wants=part, confirm=True, scope=scope)
                self._next_id += 1

    def on_frames(self, received: Sequence[bytes]) -> None:
        for frame in received:
            try:
                self._on_frame(frame)
            except FrameError:
                self.bad_replies += 1

    def _on_frame(self, frame: bytes) -> None:
        header = frames.unpack(frame, bytes_max=self._frame.bytes_max, key=self._frame.key)
        if header.kind != Kind.REPLY:
            return
        reply = messages.decode(messages.Reply, frame, header)
        with self._lock:
            for known, positions in ((self._holders, reply.held), (self._keepers, reply.durable)):
                for position in positions:
                    known.setdefault(reply.id * WANTS_PER_QUERY_MAX + position, set()).add(header.guid)
            self._changed.notify_all()

    def on_foreign(self, topic: str, payload: bytes | None) -> None:
        """Nothing without an envelope is an answer."""

    def on_link(self, report: LinkReport) -> None:
        """A cache that is out of reach simply does not answer."""

    def close(self) -> None:
        self._end.close()


class Confirmation:
    """What caches were found to hold of one publisher, and what was sent to them again."""

    def __init__(self, driver: PubSubApi, settings: PublisherSettings, name: str, batcher: Batcher) -> None:
        self._driver = driver
        self._settings = settings
        self._name = name
        self._batcher = batcher
        self._confirmer: Confirmer | None = None
        self._confirmed: dict[str, int] = {}
        self.resent = 0
        """Frames sent again because too few caches held them."""

    @property
    def bad_replies(self) -> int:
        return self._confirmer.bad_replies if self._confirmer else 0

    def confirm(self, needed: Needed, *, timeout_s: float, addresses: Sequence[str] | None) -> None:
        """Return when that many hold every event sent so far that was not confirmed before.

        Raises WaitTimeout naming a range, NotSupported, and UsageError.
        """
        if min(needed) < 0:
            raise UsageError(f"caches={needed.caches} and services={needed.services}: they cannot be fewer than none")
        core = self._batcher.core
        if core.cache is None or not self._driver.capabilities.queries:
            raise NotSupported(f"publisher {self._name}: confirmation needs with_cache and a driver with queries")
        self._batcher.drain()
        with self._batcher.lock:
            heads = core.heads()
            if self._confirmer is None:
                self._confirmer = Confirmer(
                    self._driver.get_subscriber(),
                    self._settings,
                    addresses=self._driver.listen_addresses() if addresses is None else addresses,
                )
        self._confirmer.listen_to(addresses or ())
        wants = [
            Want(core.guid, topic, self._confirmed.get(topic, 0) + 1, head)
            for topic, head in heads.items()
            if head > self._confirmed.get(topic, 0)
        ]
        self._confirmer.confirm(wants, needed, timeout_s=timeout_s, resend=self._resend)
        self._confirmed.update(heads)

    def _resend(self, wants: Sequence[Want]) -> None:
        with self._batcher.lock:
            cache = self._batcher.core.cache
            assert cache is not None
            out = [(want.topic, frame) for want in wants for frame in cache.want([want])]
            self.resent += len(out)
            self._batcher.sender.send(out)

    def close(self) -> None:
        if self._confirmer is not None:
            self._confirmer.close()
