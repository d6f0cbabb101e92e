"""The filters that a subscriber wants, and with which command each came into effect at the publisher."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pubsub_api.core.frame import read_stamp
from pubsub_api.core.topics import is_wildcard, matches


class Wanted:
    """A set of filters, each with the number of its command; 0 until the command has a number."""

    def __init__(self, filters: Iterable[str]) -> None:
        self._since: dict[str, int] = dict.fromkeys(filters, 0)
        self._wildcards = {name for name in self._since if is_wildcard(name)}

    def __iter__(self) -> Iterator[str]:
        return iter(self._since)

    def add(self, topic_filter: str) -> None:
        """Add a filter; one that was there before starts again without a number."""
        self._since[topic_filter] = 0
        if is_wildcard(topic_filter):
            self._wildcards.add(topic_filter)

    def discard(self, topic_filter: str) -> None:
        self._since.pop(topic_filter, None)
        self._wildcards.discard(topic_filter)

    def number(self, topic_filter: str, command: int) -> None:
        """Note the number of a filter's command.  No effect when the filter is not wanted any more."""
        if topic_filter in self._since:
            self._since[topic_filter] = command

    def has(self, topic_filter: str, command: int) -> bool:
        """Whether the filter is wanted because of exactly this command."""
        return self._since.get(topic_filter) == command

    def reset(self) -> None:
        """Forget all numbers, for a new session."""
        self._since = dict.fromkeys(self._since, 0)

    def selects(self, frame: bytes, as_of: int) -> bool:
        """Whether the frame matches a wanted filter that was in effect after command ``as_of``."""
        stamp = read_stamp(frame)
        if stamp is None:
            return True  # it is no frame, so it has no topic: the layer above counts it
        topic = stamp.stream[1].decode(errors="replace")
        if 0 < self._since.get(topic, 0) <= as_of:
            return True
        return any(0 < self._since[name] <= as_of and matches(name, topic) for name in self._wildcards)
