"""Dead letters: events that have used up their attempts, appended to the log under a topic of their own.

There they wait like all others: subscribe a group to that topic, look at them, put them right.  At least once: a member
that dies between the append and the acknowledgement leaves the event to be parked again.
"""

from __future__ import annotations

import os
import threading
import time

from durable_log.log_api import LogApi
from pubsub_api.core import frame as frames
from pubsub_api.core.events import Event, GroupEvent, encode_event, pack_body
from pubsub_api.core.frame import Kind
from pubsub_api.core.topics import check_topic


class DeadLetters:
    """The dead letters of one group, from one member.  May be used from any thread."""

    def __init__(self, log: LogApi, group: str, topic: str) -> None:
        """Raises InvalidTopic."""
        self.topic = check_topic(topic.replace("{group}", group))
        self._log = log
        self._group = group
        self._guid = os.urandom(frames.GUID_BYTES)
        self._lock = threading.Lock()
        self._last = 0

    def park(self, event: GroupEvent, reason: str) -> None:
        """Store an event; durable when it returns.  Raises LogError: then a second call may store it twice."""
        letter = Event(
            topic=self.topic, table=event.table, key=event.key, action=event.action, version=event.version,
            headers=event.headers,
            value={
                "group": self._group, "reason": reason, "attempts": event.attempt, "topic": event.topic,
                "stream": event.stream, "offset": event.offset, "value": event.value, "timestamp": event.timestamp,
            },
        )  # fmt: skip
        stamp = time.time_ns()
        with self._lock:
            # Used up, whatever comes of it: with the number of one that was perhaps stored, another would be taken for
            # it and dropped.
            number = self._last = self._last + 1
            frame = frames.pack(
                Kind.DATA, self._guid, self.topic, pack_body([encode_event(letter, stamp)]),
                first=number, after=number - 1, count=1, timestamp=stamp,
            )  # fmt: skip
            self._log.append([frame])
