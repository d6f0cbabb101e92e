"""Where a local cache hears of changes: from the bus, or from the database's own feed.

Both tell a `ChangeListener` the same two things: here is news, and here news may be missing.  The listener reads the
database itself.  Which source is used is the configuration's business; what the cache holds in the end is the same.
"""

from __future__ import annotations

import abc
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from nb_api.coordination.discovery import Directory
from nb_api.db_api import Change, DbApi
from nb_api.errors import RevisionGone, RevisionUnknown
from pubsub_api import Event, Reason, Resync, Session, Subscriber, SubscriberStatistics
from pubsub_api.runtime.plugins import without_password
from pubsub_api.runtime.shared_threads import SharedTask
from pubsub_api.runtime.threads import start_thread

LOG = logging.getLogger(__name__)

NO_BUS = "the bus is away"
PART_AWAY = "a publisher cannot be reached"
NO_FEED = "the database could not be read"
UNAPPLIED = "events were received and wait for a callback"
REFUSED = "frames were refused that may have told of changes"
FEED_WAIT_S = 0.2
"""How long the feed is waited for in one go: a topic that is added meanwhile waits as long."""


class ChangeListener(Protocol):
    """What a source tells, from a thread of its own or from within `ChangeSource.wait`."""

    @property
    def is_loaded(self) -> bool:
        """There was a snapshot."""

    @property
    def position(self) -> int:
        """Up to which revision everything is reflected."""

    def is_read(self) -> bool:
        """Everything was read from the database that had to be."""

    def on_events(self, events: Sequence[Event]) -> None: ...

    def on_feed(self, changes: Sequence[Change]) -> None:
        """The next changes of the feed, complete up to the last of them."""

    def need_snapshot(self, reason: str, *, is_awaited: bool = False, is_replacing: bool = False) -> None: ...

    def need_delta(self, reason: str) -> None: ...

    def need_topics(self, topics: Iterable[str]) -> None:
        """These filters are in effect: what they select has to be read."""


class ChangeSource(abc.ABC):
    """Calls the owner's ``step`` again and again, one call at a time.  Any thread may call the methods."""

    def __init__(self) -> None:
        self._awake = threading.Event()
        self.has_more: Callable[[], bool] = lambda: False
        """Asked while the listener is called: whether further news is there already, and follows at once."""

    @abc.abstractmethod
    def start(self, topics: Sequence[str]) -> None:
        """Begin to listen.  Raises what a subscriber raises."""

    @abc.abstractmethod
    def follow(self, step: Callable[[], float]) -> None:
        """Call ``step`` until `end`, each time after the seconds that it returned, or `wake`.  Raises LimitReached."""

    @abc.abstractmethod
    def end(self) -> None:
        """``step`` is not called again.  Waits for a call that is under way, unless it is the caller."""

    @abc.abstractmethod
    def add_topic(self, topic_filter: str) -> None:
        """Listen to a further filter; `ChangeListener.need_topics`, or a snapshot, follows when it is in effect."""

    @abc.abstractmethod
    def remove_topic(self, topic_filter: str) -> None: ...

    @abc.abstractmethod
    def wait(self, timeout_s: float) -> float:
        """For ``step``, when it has nothing to do for so long: look for news.  Returns for how long there is nothing to
        do.  May block for ``timeout_s``, until `wake` or until there was news.  Raises DbUnavailable."""

    @property
    def is_joining(self) -> bool:
        """A filter was added and is not in effect yet."""
        return False

    def unheard(self) -> str:
        """Why changes may have been published that cannot be heard now; empty when nothing suggests that."""
        return ""

    def wake(self) -> None:
        self._awake.set()

    def statistics(self) -> SubscriberStatistics | None:
        return None

    @abc.abstractmethod
    def close(self) -> None: ...

    def sleep(self, timeout_s: float) -> None:
        """Until `wake`, or the time is over."""
        self._awake.wait(min(timeout_s, threading.TIMEOUT_MAX))
        self._awake.clear()


class FeedSource(ChangeSource):
    """The database's feed.  It is in order and complete, so all that can go wrong is that it does not reach back, or
    that the database is away.  A copy that could not look for changes for a while does not pass for complete: it asks
    for them, and what is asked for and not read yet is what makes it incomplete.
    """

    def __init__(self, db: DbApi, listener: ChangeListener, *, portion: int, patience_s: float) -> None:
        """``patience_s``: when the feed could not be read for so long, by more than one attempt, a delta is needed."""
        super().__init__()
        self._db = db
        self._listener = listener
        self._portion = portion
        self._patience_s = patience_s
        self._unread_since: float | None = None
        self._thread: threading.Thread | None = None
        self._is_ended = False

    def start(self, topics: Sequence[str]) -> None:  # noqa: ARG002  the feed has all of them
        self._listener.need_snapshot("initial", is_awaited=True)

    def follow(self, step: Callable[[], float]) -> None:
        """In a thread of its own: most of the time it waits for the database."""

        def run() -> None:
            while not self._is_ended:
                pause_s = step()  # which may have slept, and then has taken the wake of `end`
                if pause_s and not self._is_ended:
                    self.sleep(pause_s)

        thread = threading.Thread(target=run, name="heliograph-local-cache", daemon=True)
        start_thread(thread)
        self._thread = thread

    def end(self) -> None:
        self._is_ended = True
        self.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def add_topic(self, topic_filter: str) -> None:
        self._listener.need_topics([topic_filter])

    def remove_topic(self, topic_filter: str) -> None:
        """The feed has everything anyway."""

    def wait(self, timeout_s: float) -> float:
        is_left_to_task = self._unread_since is not None and not self._listener.is_read()
        if not self._listener.is_loaded or is_left_to_task:  # what was asked for finds out when the database is back
            return timeout_s
        deadline = time.monotonic() + timeout_s
        position = self._listener.position
        while not self._awake.is_set() and (rest_s := deadline - time.monotonic()) > 0:
            try:
                changes = self._read(position, min(rest_s, FEED_WAIT_S))
            except RevisionGone as error:
                self._listener.need_snapshot(str(error), is_replacing=isinstance(error, RevisionUnknown))
                return 0.0
            if changes is not None:
                self._listener.on_feed(changes)
                return 0.0
        self._awake.clear()
        return 0.0

    def _read(self, position: int, timeout_s: float) -> list[Change] | None:
        """None: there was no change in that time.  Raises RevisionGone, DbUnavailable."""
        began = time.monotonic()
        try:
            is_news = self._db.wait(position, timeout_s=timeout_s)
            changes = self._db.changes(position, limit=self._portion) if is_news else None
        except RevisionGone:
            self._unread_since = None
            raise
        except Exception:
            self._failed(began)
            raise
        self._unread_since = None
        return changes

    def _failed(self, began: float) -> None:
        """An attempt that began then has failed.  One alone says little: a server may start again in a moment."""
        now = time.monotonic()
        if self._unread_since is None:
            self._unread_since = began
        elif now - self._unread_since > self._patience_s:
            LOG.warning(
                "LocalCache: the changes of %s could not be read for %.1f s, since %s. The copy does not count as "
                "complete until they are.",
                without_password(self._db.url.geturl()), now - self._unread_since,
                time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - (now - self._unread_since))),
            )  # fmt: skip
            self._unread_since = now  # a delta that succeeds meanwhile makes the copy complete: then it begins anew
            self._listener.need_delta(NO_FEED)

    def close(self) -> None:
        self.wake()


class BusSource(ChangeSource):
    """A subscriber on the bus.  It is made with the first topic, because without one there is nothing to hear.

    A bus that is away does not make the copy old: while a publisher or the broker cannot be reached, and when frames
    were refused, with a wrong signature for instance, the changes are read from the database now and then.
    """

    def __init__(
        self,
        session: Session,
        db: DbApi,
        listener: ChangeListener,
        addresses: Sequence[str] | None,
        *,
        patience_s: float,
    ) -> None:
        """Where publishers bind, the directory in the database is followed too, unless ``addresses`` are given.

        ``patience_s``: when a publisher or the broker could not be reached for so long, the database is read, and so
        it is after frames were refused.  0: never.
        """
        super().__init__()
        self._patience_s = patience_s
        self._unheard_since: float | None = None
        self._is_away = False
        self._refused = 0
        """Frames, when the database was read last for that."""
        self._session = session
        self._listener = listener
        self._addresses = addresses
        self._db = db if session.capabilities.bind_based and addresses is None else None
        self._directory: Directory | None = None
        self._subscriber: Subscriber | None = None
        self._waiting: set[str] = set()
        """Filters that are registered and not yet in effect."""
        self._task: SharedTask | None = None

    def follow(self, step: Callable[[], float]) -> None:
        """On threads that the process shares: there is something to do only now and then."""
        self._task = SharedTask(lambda: time.monotonic() + step())
        self._task.start()

    def wake(self) -> None:
        super().wake()
        if self._task is not None:
            self._task.wake()

    def end(self) -> None:
        self.wake()
        if self._task is not None:
            self._task.close()

    @property
    def is_joining(self) -> bool:
        return bool(self._waiting) and not self._is_away

    def unheard(self) -> str:
        statistics = self.statistics()
        if statistics is None:
            return ""
        return self._unheard(statistics, self._refused) or (UNAPPLIED if statistics.lag else "")

    def start(self, topics: Sequence[str]) -> None:
        if topics:
            self._subscribe(topics)

    def _subscribe(self, topics: Sequence[str]) -> None:
        self._waiting.update(topics)
        self._subscriber = self._session.subscriber(
            topics, on_events=self._listener.on_events, on_resync=self._on_resync, addresses=self._addresses
        )
        self.has_more = self._subscriber.has_more
        if self._db is not None:
            self._directory = Directory(self._db, self._subscriber).start()

    def add_topic(self, topic_filter: str) -> None:
        if self._subscriber is None:
            self._subscribe([topic_filter])
            return
        self._waiting.add(topic_filter)
        self._subscriber.subscribe(topic_filter)

    def remove_topic(self, topic_filter: str) -> None:
        self._waiting.discard(topic_filter)
        if self._subscriber is not None:
            self._subscriber.unsubscribe(topic_filter)

    def _on_resync(self, resync: Resync) -> None:
        """The subscriber's dispatcher says that events may be missing.  Jitter and distance are behind it already."""
        is_loaded = self._listener.is_loaded
        if not is_loaded:
            self._listener.need_snapshot(resync.reason.value, is_awaited=True)
        if Reason.SUBSCRIBED in resync.reasons:
            self._listener.need_topics(resync.topics)
        self._waiting.difference_update(resync.topics)
        if is_loaded and resync.reasons != {Reason.SUBSCRIBED}:  # a snapshot that begins now has the changes, too
            self._listener.need_delta(resync.reason.value)

    def wait(self, timeout_s: float) -> float:
        if not self._patience_s:
            return timeout_s
        if self._subscriber is not None:
            self._look_at_links(self._subscriber, time.monotonic())
        return min(timeout_s, self._patience_s / 4)

    def _look_at_links(self, subscriber: Subscriber, now: float) -> None:
        statistics = subscriber.statistics()
        refused = sum(statistics.bad_frames.values())
        reason = self._unheard(statistics, refused)
        self._is_away &= reason == NO_BUS
        if not reason:
            self._unheard_since = None
        elif self._unheard_since is None:
            self._unheard_since = now
        elif now - self._unheard_since > self._patience_s:
            self._unheard_since = now - random.uniform(0.0, 0.5) * self._patience_s  # not in step with others
            self._refused = refused
            self._is_away = reason == NO_BUS
            if self._listener.is_loaded:
                self._listener.need_delta(reason)
            elif self._is_away:
                self._listener.need_snapshot(reason, is_awaited=True)

    def _unheard(self, statistics: SubscriberStatistics, refused: int) -> str:
        """Why changes may have been published that cannot be heard here; empty when nothing suggests that."""
        if not statistics.links_up:
            return NO_BUS
        if statistics.links_down:
            return PART_AWAY
        return REFUSED if refused > self._refused else ""

    def statistics(self) -> SubscriberStatistics | None:
        return None if self._subscriber is None else self._subscriber.statistics()

    def close(self) -> None:
        if self._directory is not None:
            self._directory.close()
        if self._subscriber is not None:
            self._subscriber.close()
        self.wake()
