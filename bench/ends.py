"""What a case consists of: a sender in one process, a receiver in another, and a sink that the receiver calls.

Each raw case writes its loops out in full, as a program that uses that library directly would, because a call per event
more or less is what is being measured.
"""

from __future__ import annotations

import abc
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bench.sinks import Sink

QUIET_S = 5.0
"""A raw receiver that hears nothing for this long has lost what is missing."""
OPEN_TIMEOUT_S = 60.0


class Sender(abc.ABC):
    """The publishing end.  Opened by its constructor."""

    address: str
    """Where receivers find it."""

    @abc.abstractmethod
    def __init__(self, server: str, **options: Any) -> None: ...

    def wait_receivers(self, count: int) -> None:  # noqa: B027  most transports learn it at the receiver's side
        """Return when that many receivers are subscribed, as far as the sender has to see to that."""

    @abc.abstractmethod
    def flood(self, topics: Sequence[str], numbers: range) -> None:
        """Publish events of these numbers, the topics in turn, as fast as possible, one call per event."""

    @abc.abstractmethod
    def send(self, topic: str, number: int) -> None:
        """Publish one event with this number as its version."""

    def finish(self) -> None:  # noqa: B027  a raw library has nothing to flush
        """Hand everything over to the transport."""

    def statistics(self) -> dict[str, Any]:
        return {}

    @abc.abstractmethod
    def close(self) -> None: ...


class Receiver(abc.ABC):
    """The subscribing end.  Its constructor returns when the subscription is in effect.

    ``topic`` is the one topic it listens to, None for all of them.
    """

    @abc.abstractmethod
    def __init__(self, server: str, address: str, topic: str | None, sink: Sink, **options: Any) -> None: ...

    @staticmethod
    def version_of(event: Any) -> int:
        """Reads the version of an event in the form in which this receiver gives it to the sink."""
        return int(event.version)

    @abc.abstractmethod
    def run(self) -> None:
        """Give events to the sink until it has all, or until nothing came for `QUIET_S`."""

    def statistics(self) -> dict[str, Any]:
        return {}

    @abc.abstractmethod
    def close(self) -> None: ...


def wait_while_it_comes(sink: Sink, quiet_s: float = QUIET_S) -> None:
    """`Receiver.run` where threads of the library call the sink: wait until it has all, or until nothing more comes."""
    received, heard_at = -1, time.monotonic()
    while not sink.wait(0.2):
        if sink.received != received:
            received, heard_at = sink.received, time.monotonic()
        elif time.monotonic() - heard_at > quiet_s:
            sink.give_up(quiet_s)
            return


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to move events.  Picklable: workers are given the classes by reference."""

    name: str
    driver: str
    sender: type[Sender]
    receiver: type[Receiver]
    server: str = ""
    """The broker's address, or the URL of the session."""
    share: float = 1.0
    """Of the events of a run: slow cases publish fewer, fast ones more, so that all take about as long."""
    sender_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    receiver_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def open_sender(self) -> Sender:
        return self.sender(self.server, **self.sender_options)

    def open_receiver(self, address: str, topic: str | None, sink: Sink) -> Receiver:
        return self.receiver(self.server, address, topic, sink, **self.receiver_options)

    def count(self, base: int) -> int:
        """How many events this case publishes in a run of ``base``."""
        return max(1, int(base * self.share))
