"""The publisher as a program sees it: opened and closed, asked whether caches hold what it sent, looked at, forked.

How events become frames, and when those leave, is the business of `pubsub_api.publishing.batching`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from time import time_ns

from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.clock import HybridClock
from pubsub_api.core.errors import Closed, Forked, FrameError, InvalidTopic, NotSupported, UsageError
from pubsub_api.core.messages import Want
from pubsub_api.core.publisher import Predecessor, PublisherCore
from pubsub_api.core.replies import Head, select
from pubsub_api.core.settings import PublisherSettings
from pubsub_api.driver import Connected, Disconnected, LinkReport, PubSubApi, SendRefused
from pubsub_api.publishing.batching import Batcher
from pubsub_api.publishing.confirmation import Confirmer, Needed
from pubsub_api.runtime import forking
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.rare_logging import SeldomLog
from pubsub_api.runtime.threads import start_thread

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class PublisherStatistics:
    """Counters since the publisher was made."""

    name: str
    guid: str
    address: str
    events: int
    frames: int
    hellos: int
    streams: int
    backlog_bytes: int
    """Encoded events not yet handed to the transport."""
    send_failures: int
    """Frames the transport refused; they stay in the cache, and subscribers ask for them."""
    refused: int
    """Events that the transport refused for lack of permission; they are not kept."""
    resent: int
    """Frames sent again because too few caches held them."""
    queries: int
    bad_queries: int
    bad_replies: int
    """Answers about what caches hold that were refused, as `bad_frames` of a subscriber are."""
    handler_errors: int
    """Queries of the driver on which the publisher itself raised, which must not happen."""
    cached_frames: int
    cached_bytes: int
    cache_evictions: int
    driver: dict[str, int]
    """What the driver dropped, refused or did again, by the names that it gives it."""


class Publisher(Batcher, Closeable):
    """Sends events.  Every method may be called from any thread; made by `Session.publisher`.

    After ``fork()`` the child's copy is a new publisher, with a GUID and handles of its own, opened at its first event.
    On a bind-based driver that raises AddressInUse: forked workers need the publisher service there.
    """

    def __init__(
        self,
        driver: PubSubApi,
        settings: PublisherSettings,
        *,
        name: str = "",
        backlog_bytes_max: int,
        clock: HybridClock,
        predecessor: Predecessor | None = None,
        guid: bytes | None = None,
    ) -> None:
        super().__init__(settings, name=name or default_name(), backlog_bytes_max=backlog_bytes_max, clock=clock)
        self._driver = driver
        self._settings = settings
        self._must_reopen = False
        self._log_bad_query = SeldomLog(LOG)
        self._open(self._name, predecessor, guid)
        forking.register(self)

    def _open(self, name: str, predecessor: Predecessor | None, guid: bytes | None = None) -> None:
        """Fresh handles, a fresh GUID.  Raises what the driver's ``initialize`` raises."""
        self._start_afresh()
        self._queries = 0
        self._bad_queries = 0
        self._resent = 0
        self._confirmer: Confirmer | None = None
        self._confirmed: dict[str, int] = {}
        now = time.monotonic()
        self._core = PublisherCore(
            self._settings, guid=guid or os.urandom(frames.GUID_BYTES), name=name, now=now, predecessor=predecessor
        )
        self._end = self._driver.get_publisher()
        self._end.initialize(self._on_link)
        try:
            if self._driver.capabilities.queries:
                self._end.serve(self._answer)
            with self._lock:
                self._send_out(self._core.start(now, self._clock.tick(time_ns())))
            self._streams = self._core.streams
            self._must_reopen = self._is_unusable = False
            thread = threading.Thread(target=self._run, name=f"heliograph-publisher-{name}", daemon=True)
            start_thread(thread)
            self._thread = thread
        except BaseException:
            self._end.close()  # an address that is bound would stay so
            raise

    def confirm(
        self,
        *,
        caches: int = 1,
        services: int | None = None,
        timeout_s: float,
        addresses: Sequence[str] | None = None,
    ) -> None:
        """Return when that many stand-alone caches hold every event sent so far that was not confirmed before.

        Who keeps history counts as a cache.  ``services`` is how many of those must hold an event as well as its topic
        is to be kept, PERSISTENT ones on disk; by default ``[pubsub] min_services``.  What too few of them hold is sent
        again under the same numbers.  ``addresses`` says where they listen on a bind-based driver, by default where
        subscribers would.  Raises WaitTimeout naming a range, NotSupported when this publisher keeps no cache to send
        from or the driver has no queries, and UsageError.
        """
        self._check_usable()
        needed = Needed(caches, self._settings.min_services if services is None else services)
        if min(needed) < 0:
            raise UsageError(f"caches={caches} and services={services}: they cannot be fewer than none")
        if self._core.cache is None or not self._driver.capabilities.queries:
            raise NotSupported(f"publisher {self._name}: confirmation needs with_cache and a driver with queries")
        self._drain()
        with self._lock:
            heads = self._core.heads()
            if self._confirmer is None:
                self._confirmer = Confirmer(
                    self._driver.get_subscriber(),
                    self._settings,
                    addresses=self._driver.listen_addresses() if addresses is None else addresses,
                )
        wants = [
            Want(self.guid, topic, self._confirmed.get(topic, 0) + 1, head)
            for topic, head in heads.items()
            if head > self._confirmed.get(topic, 0)
        ]
        self._confirmer.confirm(wants, needed, timeout_s=timeout_s, resend=self._resend)
        self._confirmed.update(heads)

    def _resend(self, wants: Sequence[Want]) -> None:
        with self._lock:
            assert self._core.cache is not None
            out = [(want.topic, frame) for want in wants for frame in self._core.cache.want([want])]
            self._resent += len(out)
            self._send_out(out)

    # -- what the driver calls

    def _on_link(self, report: LinkReport) -> None:
        if isinstance(report, Connected):
            LOG.info("Publisher %s: link to %s is up.", self._name, report.address)
            self._is_link_news = True
            self._wake()
        elif isinstance(report, Disconnected):
            LOG.warning("Publisher %s: link to %s is down: %s", self._name, report.address, report.reason)
        elif isinstance(report, SendRefused):
            self._refusals.append(report)  # the driver may be in the middle of a call of ours, under the lock
            self._wake()

    def _answer(self, frame: bytes) -> Iterator[bytes]:
        try:
            header = frames.unpack(frame, bytes_max=self._settings.frame.bytes_max, key=self._settings.frame.key)
            query = messages.decode(messages.Query, frame, header)
            stamp = self._clock.tick(time_ns())
            known: list[Head] = []
            with self._lock:
                self._queries += 1
                self._take_refusals()
                if not query.wants:
                    known = self._core.known_heads(stamp)
            # Not under the lock: this looks at every stream, and senders must not wait for who asks.
            selected = select(known, query.topics)
            with self._lock:
                return self._core.answer(query, stamp, time.monotonic(), selected)
        except (FrameError, InvalidTopic) as error:
            with self._lock:  # a driver may ask on several threads
                self._bad_queries += 1
            self._log_bad_query("Publisher %s refused a query: %s", self._name, error)
            return iter(())

    # -- looking at it

    @property
    def name(self) -> str:
        return self._core.name

    @property
    def guid(self) -> bytes:
        return self._core.guid

    @property
    def address(self) -> str:
        """Where subscribers can listen to this publisher."""
        return self._end.address

    def heads(self) -> dict[str, int]:
        """Topic -> number of its last event.  Give it to a successor as `Predecessor` after `close`."""
        with self._lock:
            return self._core.heads()

    def statistics(self) -> PublisherStatistics:
        of_driver = dict(self._end.counters)  # not under our lock: a driver may have one of its own
        with self._lock:
            core = self._core
            cache = core.cache
            return PublisherStatistics(
                name=core.name,
                guid=core.guid.hex(),
                address=self._end.address,
                events=core.events,
                frames=core.frames,
                hellos=core.hellos,
                streams=len(core.streams),
                backlog_bytes=self._pending_bytes(),
                send_failures=self._send_failures,
                refused=self._events_refused,
                resent=self._resent,
                queries=self._queries,
                bad_queries=self._bad_queries,
                bad_replies=self._confirmer.bad_replies if self._confirmer else 0,
                handler_errors=self._end.handler_errors,
                cached_frames=cache.frames if cache else 0,
                cached_bytes=cache.bytes if cache else 0,
                cache_evictions=cache.evicted if cache else 0,
                driver=of_driver,
            )

    # -- ending

    def close(self) -> None:
        """Send what is pending, say goodbye with the final heads, release everything.  Idempotent.

        An event that another thread sends meanwhile is either among what is sent, or its call raises Closed.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._make_unusable()
        if self._must_reopen:
            return
        with self._lock:
            self._send_last()
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        if self._confirmer is not None:
            self._confirmer.close()
        self._end.close()

    # -- forking

    def after_fork_in_child(self) -> None:
        forking.set_aside((self._end, self._confirmer, self._thread, self._core, self._lock, self._wakeup))
        self._must_reopen = True
        self._make_unusable()
        self._lock = threading.Lock()

    def _reopen(self) -> None:
        if self._is_closed:
            raise Closed(f"publisher {self._name} is closed")
        if not self._driver.capabilities.fork_safe:
            raise Forked(
                f"publisher {self._name} was inherited through fork(), which this driver's library does not survive: "
                "publish through the publisher service, or start workers with 'spawn'"
            )
        with self._lock:
            if self._is_closed:
                raise Closed(f"publisher {self._name} is closed")
            if self._must_reopen:
                self._open(f"{self._name}/{os.getpid()}", None)


def default_name() -> str:
    """Host and program: the same again after a restart."""
    path = sys.argv[0] if sys.argv else ""
    if os.path.basename(path) == "__main__.py":  # python -m: the package has the name
        path = os.path.dirname(path)
    program = os.path.basename(path) or "python"
    return f"{socket.gethostname()}/{program}"
