"""Where everything that the service publishes passes, in one order: first into the journal, then into the streams.

The numbers of events follow from this order, which is why no other part may use the service's publisher.
"""

from __future__ import annotations

import dataclasses
import logging
import operator
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from publisher_service.core import messages
from publisher_service.core.messages import Group, WorkerBatch
from publisher_service.errors import JournalError
from publisher_service.journal import Journal
from pubsub_api.core.topics import check_topic
from pubsub_api.errors import InvalidTopic, LimitReached, NotPermitted, TransportUnavailable
from pubsub_api.publishing.publisher import Publisher

LOG = logging.getLogger(__name__)

_TOPIC = operator.itemgetter(0)
"""Of a group."""

_WORKERS, _OWN = "workers", "own"
"""What is told of refusals."""
_NO_REFUSAL = (0, "")


@dataclasses.dataclass
class SequencerCounters:
    refused_events: int = 0
    """Taken over and impossible to publish: bad topic, too large for a frame, too many streams, not permitted."""
    transport_failures: int = 0
    """Times when the transport refused frames; subscribers get them by repair."""
    journal_failures: int = 0
    """The journal could not be written, and is off since then."""


class Sequencer:
    """Thread-safe: workers' batches and the service's own events may come from different threads."""

    def __init__(
        self, publisher: Publisher, journal: Journal | None, *, event_bytes_max: int, streams_max: int
    ) -> None:
        self._publisher = publisher
        self._journal = journal
        self._event_bytes_max = event_bytes_max
        self._streams_max = streams_max
        self._topics: set[str] = set()
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        """Guards what follows: no thread returns before the refusals that another one waits for are known."""
        self._has_new_topics = False
        self._is_flush_due = False
        """Something was left for `flush` to send.  Set after it was queued, and cleared before it is sent."""
        self._not_permitted = 0
        """What of the publisher's refused events is in the counters already."""
        self._untold: dict[str, tuple[int, str]] = {}
        """Refusals that workers, or the service itself, have not been told of: each is told of all."""
        self.counters = SequencerCounters()
        self.published_at: float | None = None
        """When something was published last, by the monotonic clock."""

    @property
    def has_journal(self) -> bool:
        return self._journal is not None

    def publish(self, groups: Iterable[Group]) -> tuple[int, str]:
        """Publish events of the service's own, which it would find again by itself after a restart.  Returns how many
        events were refused, and why."""
        own = list(groups)
        payload = messages.encode(WorkerBatch(0, own))
        with self._lock:
            refused, reason = self._publish(b"\0" * messages.GUID_BYTES, 0, own, payload)
        later, why = self.flush(of=_OWN)
        return refused + later, reason or why

    def take(self, worker: bytes, number: int, groups: Sequence[Group], payload: bytes | memoryview) -> tuple[int, str]:
        """Publish a worker's batch.  Returns how many of its events cannot be, and why.  `flush` must follow."""
        with self._lock:
            return self._publish(worker, number, groups, payload)

    def forget(self, worker: bytes) -> None:
        """A worker ended in good order."""
        with self._lock:
            if self._journal is not None:
                self._journal.forget(worker)

    def refuse(self, worker: bytes, events: int) -> None:
        """A worker is about to be told that so many more of its events could not be published."""
        with self._lock:
            self._write_down(lambda journal: journal.refuse(worker, events))

    def flush(self, *, of: str = _WORKERS) -> tuple[int, str]:
        """Return when everything taken so far is handed to the transport, or refused by it and kept for repair.

        What the transport does not permit is neither: it is dropped, and its topic refused from then on for a while.
        Returns how many events that are, of all workers, and why: once to the workers' side, and once to the
        service's own.  Only for the first events of a topic it waits
        until the transport has said so, since most would wait in vain; a permission that is withdrawn later is told by
        one of the next calls.
        """
        with self._flushing:
            if self._is_flush_due or self._publisher.has_untold:
                self._is_flush_due = False
                has_new_topics, self._has_new_topics = self._has_new_topics, False
                try:
                    self._publisher.flush(awaits_refusals=has_new_topics)
                except TransportUnavailable:
                    self.counters.transport_failures += 1
                except NotPermitted as error:
                    self._on_not_permitted(str(error))
            self.published_at = time.monotonic()
            return self._untold.pop(of, _NO_REFUSAL) if self._untold else _NO_REFUSAL

    def _on_not_permitted(self, reason: str) -> None:
        total = self._publisher.statistics().refused
        refused = max(1, total - self._not_permitted)
        self._not_permitted = total
        self.counters.refused_events += refused
        for of in (_WORKERS, _OWN):
            self._untold[of] = (self._untold.get(of, (0, ""))[0] + refused, reason)
        with self._lock:
            self._topics.clear()  # which of them is barred now is not known: all count as new again

    def _publish(
        self, worker: bytes, number: int, groups: Sequence[Group], payload: bytes | memoryview
    ) -> tuple[int, str]:
        good, refused, reason = groups, 0, ""
        if len(payload) > self._event_bytes_max or not self._topics.issuperset(map(_TOPIC, groups)):
            good, refused, reason = self._sort_out(groups)
        if refused:
            self.counters.refused_events += refused
            LOG.error("%d events of a worker cannot be published: %s", refused, reason)
            payload = messages.encode(WorkerBatch(number, list(good)))
            if number:
                self._write_down(lambda journal: journal.refuse(worker, refused))
        if self._journal is not None:
            try:
                self._journal.append(worker, number, time.time_ns(), good, payload)
            except JournalError as error:
                self._give_up_journal(self._journal, error)
        if len(good) == 1 and not self._has_new_topics:
            topic, encoded = good[0]
            if len(encoded) == 1 and self._publisher.send_encoded_alone(topic, encoded[0]):
                return refused, reason
        refused_later = 0
        for topic, encoded in good:
            try:
                self._publisher.send_encoded(topic, encoded, is_flush_next=True)
            except (LimitReached, NotPermitted) as error:
                refused_later, reason = refused_later + len(encoded), str(error)
        self._is_flush_due = True
        if refused_later:
            self.counters.refused_events += refused_later
            if number:
                self._write_down(lambda journal: journal.refuse(worker, refused_later))
        return refused + refused_later, reason

    def _sort_out(self, groups: Sequence[Group]) -> tuple[list[Group], int, str]:
        """The groups that can be published, how many events cannot, and why."""
        good: list[Group] = []
        refused, reason = 0, ""
        for topic, encoded in groups:
            problems = [self._problem(topic, len(event)) for event in encoded]
            fit = [event for event, problem in zip(encoded, problems, strict=True) if not problem]
            refused += len(encoded) - len(fit)
            reason = next(filter(None, problems), reason)
            if fit:
                good.append((topic, fit))
        return good, refused, reason

    def problem(self, topic: str, size: int) -> str:
        """Why an event of so many bytes cannot be published; empty when it can."""
        with self._lock:
            return self._problem(topic, size)

    def _problem(self, topic: str, size: int) -> str:
        if size > self._event_bytes_max:
            return f"an event of topic {topic!r} takes {size} bytes, more than frame_bytes_max allows"
        if topic not in self._topics:
            try:
                check_topic(topic)
            except InvalidTopic as error:
                return str(error)
            if len(self._topics) >= self._streams_max:
                return f"topic {topic!r} would be one stream too many: streams_max is reached"
            self._topics.add(topic)
            self._has_new_topics = True
        return ""

    def _write_down(self, write: Callable[[Journal], None]) -> None:
        if self._journal is None:
            return
        try:
            write(self._journal)
        except JournalError as error:
            self._give_up_journal(self._journal, error)

    def _give_up_journal(self, journal: Journal, error: JournalError) -> None:
        LOG.warning("%s. Going on without a journal: subscribers resync should this service die.", error)
        self.counters.journal_failures += 1
        # What it says is true no longer from here on, so the next service must not find it.
        journal.discard()
        self._journal = None
