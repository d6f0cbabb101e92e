"""Heliograph, with ``send_event`` called for every event, on whatever driver the URL names."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pubsub_api
from bench import events
from bench.ends import OPEN_TIMEOUT_S, Receiver, Sender, wait_while_it_comes
from bench.sinks import Sink
from pubsub_api import PubSubApi, Resync, Session, loading
from pubsub_api.config import GROUP
from pubsub_api.core import frame as frames
from pubsub_api.core.frame import Kind
from pubsub_api.testing.faults import Faults
from pubsub_api.testing.faulty import FaultyPubSub

QUIET_S = 40.0
"""Longer than it takes to notice that the last event is missing, and to repair that or give up."""

Settings = Mapping[str, Mapping[str, Any]]
"""Group -> option -> value: what differs from the defaults."""


def open_session(url: str, settings: Settings, wrap: Callable[[PubSubApi], PubSubApi] | None = None) -> Session:
    conf = loading.conf_from_url(url)
    for group, options in settings.items():
        for name, value in options.items():
            conf.set_override(name, value, group=group)
    return pubsub_api.open(conf=conf, wrap_driver=wrap)


class OurSender(Sender):
    def __init__(self, server: str, *, settings: Settings | None = None) -> None:
        self._session = open_session(server, settings or {})
        self._publisher = self._session.publisher(name="bench")
        self.address = self._publisher.address

    def flood(self, topics: Sequence[str], numbers: range) -> None:
        send = self._publisher.send_event
        for number in numbers:
            send(events.event(number, topics[number % len(topics)]))

    def send(self, topic: str, number: int) -> None:
        self._publisher.send_event(events.event(number, topic))

    def finish(self) -> None:
        self._publisher.flush(timeout_s=OPEN_TIMEOUT_S)

    def statistics(self) -> dict[str, Any]:
        statistics = self._publisher.statistics()
        paths = ("events", "frames", "hellos", "questions.queries", "send_failures")
        return {path.rpartition(".")[2]: operator.attrgetter(path)(statistics) for path in paths}

    def close(self) -> None:
        self._session.close()


class OurReceiver(Receiver):
    """``drop`` is the part of the frames that is lost on the way in: of every kind, or with ``data_only`` of one."""

    def __init__(
        self,
        server: str,
        address: str,
        topic: str | None,
        sink: Sink,
        *,
        settings: Settings | None = None,
        drop: float = 0.0,
        data_only: bool = False,
    ) -> None:
        self._sink = sink
        self._faults = Faults(seed=1, on_drop=self._on_drop, kinds={Kind.DATA} if data_only else None)
        self._dropped_ranges: list[tuple[int, int]] = []
        wrap = (lambda driver: FaultyPubSub(driver, self._faults)) if drop else None
        self._session = open_session(server, settings or {}, wrap)
        self._subscriber = self._session.subscriber(
            [topic or "#"], sink.on_event, on_resync=self._on_resync,
            addresses=[address] if self._session.capabilities.bind_based else None,
        )  # fmt: skip
        self._subscriber.wait_ready(timeout_s=OPEN_TIMEOUT_S)
        self._faults.set(drop=drop)

    def _on_resync(self, _resync: Resync) -> None:
        self._sink.on_resync()

    def _on_drop(self, frame: bytes) -> None:
        header = frames.unpack(frame, bytes_max=len(frame))
        if header.kind == Kind.DATA:
            self._dropped_ranges.append((header.first, header.last))

    def run(self) -> None:
        wait_while_it_comes(self._sink, QUIET_S)

    def statistics(self) -> dict[str, Any]:
        """With the numbers of the events whose frames were dropped; of several topics one cannot tell which."""
        statistics = self._subscriber.statistics()
        dropped = {"dropped": self._faults.counts().dropped, "dropped_ranges": self._dropped_ranges}
        paths = (
            "frames", "repair.gaps", "repair.repaired", "lost", "intake.duplicates", "discarded", "repair.unparked",
            "repair.queries", "resyncs",
        )  # fmt: skip
        return {path.rpartition(".")[2]: operator.attrgetter(path)(statistics) for path in paths} | dropped

    def close(self) -> None:
        self._session.close()


__all__ = ["GROUP", "OurReceiver", "OurSender", "open_session"]
