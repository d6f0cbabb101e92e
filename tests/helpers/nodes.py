"""Publishers and subscribers in processes of their own, for tests that kill, freeze and starve them.

A node speaks JSON lines with the test.  A subscriber keeps a log of what its user would have seen: event numbers by
topic and, between them, resyncs.  `unexplained` says what that log cannot account for: it is the delivery contract as
a function.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import pubsub_api
from pubsub_api.core.frame import Kind
from pubsub_api.errors import TransportUnavailable
from pubsub_api.testing.child import ChildProcess
from pubsub_api.testing.fast_conf import fast_conf
from pubsub_api.testing.faults import Faults
from pubsub_api.testing.faulty import FaultyPubSub

Log = list[tuple[str, int, int] | tuple[str, int] | tuple[str, str, int, int]]
"""(topic, number, when it was sent) of an event, (reason, when it was told) of a resync, after what it names as lost:
("lost", topic, first number, last number).  Times in ns, wall clock."""


class PublisherNode(ChildProcess):
    """Sends numbered events.  ``options`` are overrides of ``[pubsub]``."""

    def __init__(self, url: str, *, name: str = "node", **options: Any) -> None:
        super().__init__("publisher", url, json.dumps({"name": name, **options}), module="tests.helpers.nodes")
        self.address: str = self.receive()["address"]

    def send(self, topic: str, numbers: Iterable[int], *, rate: float = 0.0) -> None:
        """Send events with these numbers; returns when they are handed to the transport."""
        self.ask(do="send", topic=topic, numbers=list(numbers), rate=rate)

    def start_flood(self, topic: str, *, first: int, rate: float) -> None:
        """Send on and on in the background until `stop_flood`."""
        self.ask(do="flood", topic=topic, first=first, rate=rate)

    def stop_flood(self) -> int:
        """Number of the last event of the flood."""
        last = self.ask(do="stop")["last"]
        assert isinstance(last, int)
        return last

    def statistics(self) -> dict[str, Any]:
        return self.ask(do="statistics")

    def close(self) -> None:
        self.ask(do="close")


class SubscriberNode(ChildProcess):
    """Receives.  ``drop`` is the probability with which a frame, or with ``data_only`` a DATA frame, is lost before it
    is seen."""

    def __init__(
        self,
        url: str,
        addresses: Sequence[str] | None,
        topics: Sequence[str] = ("#",),
        *,
        drop: float = 0.0,
        data_only: bool = False,
        **options: Any,
    ) -> None:
        kinds = [int(Kind.DATA)] if data_only else None
        settings = {"addresses": addresses, "topics": list(topics), "drop": drop, "kinds": kinds, **options}
        super().__init__("subscriber", url, json.dumps(settings), module="tests.helpers.nodes")
        assert self.receive()["ready"]

    def log(self) -> Log:
        return [tuple(item) for item in self.ask(do="log")["log"]]

    def resyncs(self) -> list[str]:
        """The reasons of the resyncs told so far."""
        return [item[0] for item in self.log() if len(item) == 2]

    def numbers(self, topic: str) -> list[int]:
        """Numbers of the events seen on a topic so far."""
        return [item[1] for item in self.log() if len(item) == 3 and item[0] == topic]

    def last(self, topic: str) -> int:
        """Number of the last event seen on a topic."""
        return int(self.ask(do="last", topic=topic)["last"])

    def count(self, topic: str) -> int:
        """How many events were seen on a topic."""
        return int(self.ask(do="count", topic=topic)["count"])

    def statistics(self) -> dict[str, Any]:
        return self.ask(do="statistics")


def unexplained(log: Log, topic: str, sent: Sequence[int]) -> list[str]:
    """What is wrong with a subscriber's log of a topic, given what was sent after it was ready: nothing, ideally.

    Numbers must rise; a number that is missing must be covered by a resync told before the next event of that topic,
    and either after the event before the hole or at a time when the missing ones had been sent already: that is so when
    it names them, or was told after the event behind the hole was sent.
    """
    problems: list[str] = []
    seen: set[int] = set()
    named: set[int] = set()
    last, is_covered, told_at = sent[0] - 1 if sent else 0, False, 0
    for item in log:
        if len(item) == 4:
            named.update(range(item[2], item[3] + 1) if item[1] == topic else ())
        elif len(item) == 2:
            is_covered, told_at = True, item[1]
        elif item[0] == topic:
            if item[1] <= last:
                problems.append(f"{item[1]} after {last}")
            elif not (is_covered or told_at >= item[2] or named.issuperset(range(last + 1, item[1]))):
                problems.append(f"{last + 1}..{item[1] - 1} missing without a resync")
            seen.add(item[1])
            last, is_covered = max(last, item[1]), False
    if sent and not (is_covered or named.issuperset(range(last + 1, sent[-1] + 1))):
        problems.append(f"{last + 1}..{sent[-1]} missing at the end without a resync")
    problems += [f"{number} was never sent" for number in sorted(seen - set(sent))[:5]]
    return problems


def _say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _event(topic: str, number: int) -> pubsub_api.Event:
    return pubsub_api.Event(topic=topic, table="t", key=f"k{number % 100}", action="set", value=number, version=number)


class _Flood:
    """Sends at a steady rate from a thread, in ticks of a hundredth of a second."""

    def __init__(self, publisher: pubsub_api.Publisher, topic: str, first: int, rate: float) -> None:
        self.last = first - 1
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(publisher, topic, rate))
        self._thread.start()

    def _run(self, publisher: pubsub_api.Publisher, topic: str, rate: float) -> None:
        first, started = self.last + 1, time.monotonic()
        while not self._stop.wait(0.01):
            target = first + int((time.monotonic() - started) * rate)
            for number in range(self.last + 1, target):
                publisher.send_event(_event(topic, number))
                self.last = number

    def stop(self) -> int:
        self._stop.set()
        self._thread.join()
        return self.last


def _publisher(url: str, settings: dict[str, Any]) -> None:
    name = settings.pop("name")
    with pubsub_api.open(conf=fast_conf(url, **settings)) as session:
        publisher = session.publisher(name=name)
        _say(address=publisher.address)
        flood: _Flood | None = None
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "send":
                for number in command["numbers"]:
                    publisher.send_event(_event(command["topic"], number))
                with contextlib.suppress(TransportUnavailable):  # then the events wait in the cache
                    publisher.flush(timeout_s=60)
                _say(ok=True)
            elif command["do"] == "flood":
                flood = _Flood(publisher, command["topic"], command["first"], command["rate"])
                _say(ok=True)
            elif command["do"] == "stop":
                assert flood is not None
                _say(last=flood.stop())
            elif command["do"] == "statistics":
                _say(**dataclasses.asdict(publisher.statistics()))
            elif command["do"] == "close":
                publisher.close()
                _say(ok=True)


def _subscriber(url: str, settings: dict[str, Any]) -> None:
    addresses, topics = settings.pop("addresses"), settings.pop("topics")
    drop, kinds = settings.pop("drop"), settings.pop("kinds")
    faults = Faults(seed=7)
    log: Log = []
    last: dict[str, int] = {}
    count: collections.Counter[str] = collections.Counter()

    def on_event(event: pubsub_api.Event) -> None:
        log.append((event.topic, event.version, event.timestamp))
        last[event.topic] = event.version
        count[event.topic] += 1

    def on_resync(resync: pubsub_api.Resync) -> None:
        log.extend(("lost", lost.topic, lost.first, lost.last) for lost in resync.lost)
        log.append((resync.reason.value, time.time_ns()))

    conf = fast_conf(url, **{"ready_timeout": 20.0, **settings})
    session = pubsub_api.open(conf=conf, wrap_driver=lambda driver: FaultyPubSub(driver, faults))
    with session, session.subscriber(topics, on_event, on_resync=on_resync, addresses=addresses) as subscriber:
        subscriber.wait_ready(timeout_s=60)
        faults.set(drop=drop, kinds=kinds)
        _say(ready=True)
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "log":
                _say(log=list(log))
            elif command["do"] == "last":
                _say(last=last.get(command["topic"], 0))
            elif command["do"] == "count":
                _say(count=count[command["topic"]])
            elif command["do"] == "statistics":
                _say(**dataclasses.asdict(subscriber.statistics()))


if __name__ == "__main__":
    role, node_url, node_settings = sys.argv[1:]
    {"publisher": _publisher, "subscriber": _subscriber}[role](node_url, json.loads(node_settings))
