"""A stand-alone reliability cache: it receives the frames of publishers, keeps them and answers queries for them.

With a cache near the subscribers, repair need not reach the publisher.  A publisher with little memory can run with
``with_cache = false``, and the cache keeps its frames instead.  The cache decodes no event, delivers nothing and orders
nothing.  Frames that are not in its memory may come from a store, such as a durable log.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from oslo_config import cfg

from pubsub_api import settings
from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.errors import FrameError, HeliographError, InvalidTopic
from pubsub_api.core.frame import Kind
from pubsub_api.core.sending.cache import FrameCache
from pubsub_api.core.sending.replies import Found, Responder, select
from pubsub_api.core.topics import FilterSet
from pubsub_api.driver import LinkReport, PubSubApi
from pubsub_api.driver_kit import counting
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.periodic import Failures, PeriodicThread
from pubsub_api.runtime.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

_EXPIRE_INTERVAL_S = 1.0


@dataclasses.dataclass(frozen=True)
class CacheStatistics:
    frames: int
    """Frames that are kept now."""
    bytes: int
    stored: int
    evicted: int
    duplicates: int
    unwanted: int
    queries: int
    bad_frames: int
    from_store: int
    """Frames in answers that came from the store."""
    store_errors: int
    receiver_errors: int
    """Calls of the driver in which the cache raised, which must not happen."""
    handler_errors: int
    """Queries on which the cache raised, which must not happen."""
    driver: dict[str, int]
    """What the driver dropped, refused or repeated, at both ends together, under names of the driver."""


class FrameStore(Protocol):
    """A store of frames that have left the memory of a cache.  Called from the threads that answer queries.

    Both methods may raise HeliographError, which is counted.
    """

    def find(self, want: messages.Want) -> Sequence[bytes]:
        """Frames with events of the range, oldest first."""

    def holds(self, want: messages.Want) -> bool:
        """Whether the store has every event of the range."""


class CacheNode(Closeable):
    """Keeps the frames of all publishers whose topics the filters select, and answers queries.  See `Session.cache`.

    On a bind-based driver, subscribers listen to its ``address`` as to that of a publisher.
    """

    def __init__(
        self,
        driver: PubSubApi,
        conf: cfg.ConfigOpts,
        topics: Sequence[str],
        *,
        name: str,
        addresses: Sequence[str],
        store: FrameStore | None = None,
    ) -> None:
        self._frame_store = store
        self._filters = FilterSet(topics)
        self._frame = settings.frame_settings(conf)
        cache_settings = settings.cache_settings(conf)
        self._cache = FrameCache(cache_settings)
        self._responder = Responder(
            guid=os.urandom(frames.GUID_BYTES),
            name=name,
            is_publisher=False,
            frame=self._frame,
            reply_bytes_max=cache_settings.reply_bytes_max,
        )
        self._name = name
        self._log_bad_query = RateLimitedLog(LOG)
        self._lock = threading.Lock()
        self._stored = self._duplicates = self._unwanted = self._queries = self._bad_frames = 0
        self._from_store = self._store_errors = 0
        self._is_closed = False
        self._serving_end = driver.get_publisher()
        self._listening_end = driver.get_subscriber()
        failures = Failures(LOG, f"Cache {name}: old frames could not be dropped")
        self._expiry = PeriodicThread(f"heliograph-cache-{name}", self._expire, failures, pause_s=_EXPIRE_INTERVAL_S)
        try:
            self._start(topics, addresses)
        except BaseException:
            self.close()
            raise

    def _start(self, topics: Sequence[str], addresses: Sequence[str]) -> None:
        self._serving_end.initialize(self.on_link)
        self._serving_end.serve(self._answer)
        self._listening_end.initialize(self)
        for topic_filter in topics:
            self._listening_end.register_topic(topic_filter)
        for address in addresses:
            self._listening_end.register_listen_address(address)
        self._listening_end.daemonize()
        self._expiry.start()

    @property
    def address(self) -> str:
        return self._serving_end.address

    def _about(self) -> str:
        return f"at {self.address}"

    # -- what the driver calls

    def on_frames(self, received: Sequence[bytes]) -> None:
        now = time.monotonic()
        with self._lock:
            for frame in received:
                self._store(frame, now)

    def on_foreign(self, topic: str, payload: bytes | None) -> None:
        """Ignored: a message without an envelope has no number, so no query can ask for it."""

    def on_link(self, report: LinkReport) -> None:
        LOG.info("Cache %s: %s", self._name, report)

    def _store(self, frame: bytes, now: float) -> None:
        try:
            header = frames.unpack(frame, bytes_max=self._frame.bytes_max, key=self._frame.key)
        except FrameError as error:
            self._bad_frames += 1
            LOG.debug("Cache %s refused a frame: %s", self._name, error)
            return
        if header.kind != Kind.DATA:
            return
        if not self._filters.match(header.topic):
            self._unwanted += 1
        elif self._cache.store(header, frame, now):
            self._stored += 1
        else:
            self._duplicates += 1

    def _answer(self, frame: bytes) -> Iterator[bytes]:
        try:
            header = frames.unpack(frame, bytes_max=self._frame.bytes_max, key=self._frame.key)
            query = messages.decode(messages.Query, frame, header)
            found = self._look_up(query, self._find(query))
        except (FrameError, InvalidTopic) as error:
            self._bad_frames += 1
            self._log_bad_query("Cache %s refused a query: %s", self._name, error)
            return iter(())
        return self._responder.pack(query.id, found, time.time_ns(), query.scope)

    def _find(self, query: messages.Query) -> Found:
        with self._lock:
            self._queries += 1
            if query.confirm:
                return Found(held=self._cache.held(query.wants))
            if query.wants:
                return Found(frames=self._cache.want(query.wants))
            known = self._cache.known_heads(query.guid)
        # Not under the lock: this looks at every stream, and receiving must not wait for a query.
        heads = select(known, query.topics)
        if not query.history:
            return Found(heads=heads)
        with self._lock:
            return Found(frames=self._cache.history(heads, query), heads=heads)

    def _look_up(self, query: messages.Query, found: Found) -> Found:
        """Add what the store has of the ranges that are not complete in memory.  Not under the lock: it may be slow."""
        if self._frame_store is None or not query.wants:
            return found
        with self._lock:
            in_memory = set(self._cache.held(query.wants))
        wants = [
            (position, want)
            for position, want in enumerate(query.wants)
            if position not in in_memory and self._filters.match(want.topic)
        ]
        try:
            if query.confirm:
                stored = [position for position, want in wants if self._frame_store.holds(want)]
                return dataclasses.replace(found, held=sorted({*found.held, *stored}))
            stored_frames = [frame for _, want in wants for frame in self._frame_store.find(want)]
        except HeliographError as error:
            self._store_errors += 1
            LOG.warning("Cache %s: its store could not be asked: %s", self._name, error)
            return found
        known = set(found.frames)
        stored_frames = [frame for frame in stored_frames if frame not in known]
        self._from_store += len(stored_frames)
        return dataclasses.replace(found, frames=[*stored_frames, *found.frames])

    def _expire(self) -> None:
        with self._lock:
            self._cache.expire(time.monotonic())

    def statistics(self) -> CacheStatistics:
        # Not under the lock: the driver may take a lock of its own.
        driver_counters = counting.total((self._listening_end.counters, self._serving_end.counters))
        with self._lock:
            return CacheStatistics(
                frames=self._cache.frames,
                bytes=self._cache.bytes,
                stored=self._stored,
                evicted=self._cache.evicted,
                duplicates=self._duplicates,
                unwanted=self._unwanted,
                queries=self._queries,
                bad_frames=self._bad_frames,
                from_store=self._from_store,
                store_errors=self._store_errors,
                receiver_errors=self._listening_end.receiver_errors,
                handler_errors=self._serving_end.handler_errors,
                driver=driver_counters,
            )

    def close(self) -> None:
        """Stop listening and serving.  Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._expiry.ask_to_stop()
        self._listening_end.close()
        self._serving_end.close()
        self._expiry.stop()
