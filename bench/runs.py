"""One run of one case: a publisher process, one or more subscriber processes, and what they measured.

The conversation: the publisher says where it is; the subscribers say that they are ready; the publisher is told to go
and says when it began; the subscribers say what they saw; only then the publisher reads its CPU clock, so that the work
its I/O threads did after the last call is counted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from bench import events
from bench.ends import Case, Receiver, Sender
from bench.sinks import NS_PER_S, Sink
from bench.workers import Worker, usage_now

RUN_TIMEOUT_S = 300.0
MakeSink = Callable[..., Sink]
"""A `Sink` class, or a partial of one: takes the number of events to expect and how to read a version."""


@dataclasses.dataclass(frozen=True)
class Load:
    """What is published, and to whom."""

    count: int
    topics: int = 1
    rate: float = 0.0
    """Events per second; 0 is as fast as possible."""
    stamped: bool = False
    """The version of an event is the time just before it is published, not its number."""
    subscribers: int = 1
    processes: int = 1
    """Subscribers are spread over that many processes."""

    @property
    def stride(self) -> int:
        """Of how many events the time of publishing is noted once.  Long against the topics, which raw senders encode
        each time, and whole batches."""
        return 1 if self.rate else 8 * max(1024, self.topics)


@dataclasses.dataclass(frozen=True)
class Run:
    """What one run measured."""

    case: str
    sent: int
    received: int
    """By the subscriber that received least."""
    seconds: float
    """From the first publish call to the last callback."""
    publisher_cpu_us: float
    """Per event published."""
    subscriber_cpu_us: float
    """Per event received, of one subscriber."""
    publisher_grown_bytes: int
    """By how much the process grew between the first event and the end."""
    subscriber_grown_bytes: int
    findings: list[dict[str, Any]]
    """What each sink saw."""
    sent_ns: array[int]
    """When each event was published, or in a flood the last of each ``stride`` events."""
    stride: int
    publisher: dict[str, Any]
    subscriber: dict[str, Any]
    """Statistics of the ends, where they have any."""

    @property
    def events_per_s(self) -> float:
        return self.received / self.seconds if self.seconds > 0 else 0.0

    def undetected(self) -> int:
        """Events that are missing and that no resync covers, as an `AuditSink` saw it.

        A resync covers what was published before it was told.  In a flood an event counts as published with the last of
        its stride, so that a few that are covered may count as missing.
        """
        return sum(
            last - first + 1
            for finding in self.findings
            for first, last in finding["holes"]
            if finding["resync_ns"] < self.sent_ns[(last - 1) // self.stride]
        )

    @property
    def lost(self) -> int:
        return self.sent - self.received


def run(case: Case, load: Load, make_sink: MakeSink = Sink) -> Run:
    """Raises WorkerFailed."""
    with contextlib.ExitStack() as stack:
        publisher = stack.enter_context(Worker(publish, case, load))
        address = publisher.hear()
        share, rest = divmod(load.subscribers, load.processes)
        sizes = [share + (position < rest) for position in range(load.processes)]
        subscribers = [
            stack.enter_context(Worker(subscribe, case, load, address=address, make_sink=make_sink, size=size))
            for size in sizes
        ]
        for subscriber in subscribers:
            subscriber.hear()
        publisher.tell("go")
        begun_ns, sent_ns = publisher.hear(RUN_TIMEOUT_S)
        reports = [subscriber.hear(RUN_TIMEOUT_S) for subscriber in subscribers]
        publisher.tell("stop")
        usage, publisher_statistics = publisher.hear()
        for worker in (publisher, *subscribers):
            worker.end()
    findings = [finding for report in reports for finding in report["findings"]]
    received = sum(finding["received"] for finding in findings)
    return Run(
        case=case.name,
        sent=load.count,
        received=min(finding["received"] for finding in findings),
        seconds=(max(finding["ended_ns"] for finding in findings) - begun_ns) / NS_PER_S,
        publisher_cpu_us=usage.cpu_s / load.count * 1e6,
        subscriber_cpu_us=sum(report["usage"].cpu_s for report in reports) / max(received, 1) * 1e6,
        publisher_grown_bytes=usage.resident_bytes,
        subscriber_grown_bytes=reports[0]["usage"].resident_bytes,
        findings=findings,
        sent_ns=sent_ns,
        stride=load.stride,
        publisher=publisher_statistics,
        subscriber=reports[0]["statistics"],
    )


# -- in the publisher's process


def publish(pipe: Connection, case: Case, load: Load) -> None:
    sender = case.open_sender()
    try:
        pipe.send(sender.address)
        pipe.recv()
        sender.wait_receivers(load.subscribers)
        topics = [events.topic(number) for number in range(load.topics)]
        before = usage_now()
        begun_ns = time.monotonic_ns()
        sent_ns = send_at_rate(sender.send, topics, load) if load.rate else _flood(sender, topics, load)
        sender.finish()
        pipe.send((begun_ns, sent_ns))
        pipe.recv()
        pipe.send((usage_now() - before, sender.statistics()))
    finally:
        sender.close()


def _flood(sender: Sender, topics: Sequence[str], load: Load) -> array[int]:
    sent_ns = array("q")
    for first in range(1, load.count + 1, load.stride):
        sender.flood(topics, range(first, min(first + load.stride, load.count + 1)))
        sent_ns.append(time.monotonic_ns())
    return sent_ns


def send_at_rate(send: Callable[[str, int], None], topics: Sequence[str], load: Load) -> array[int]:
    """Publish at a steady rate; after a stall what is due is sent at once, so that the rate holds on average."""
    sent_ns = array("q")
    clock = time.monotonic_ns
    begun_ns = clock()
    interval_ns = NS_PER_S / load.rate
    for number in range(1, load.count + 1):
        early_ns = begun_ns + number * interval_ns - clock()
        if early_ns > 50_000:
            time.sleep(early_ns / NS_PER_S)
        now_ns = clock()
        send(topics[number % len(topics)], now_ns if load.stamped else number)
        sent_ns.append(now_ns)
    return sent_ns


# -- in a subscriber's process


def subscribe(pipe: Connection, case: Case, load: Load, *, address: str, make_sink: MakeSink, size: int) -> None:
    sinks = [make_sink(load.count, case.receiver.version_of) for _ in range(size)]
    topic = events.topic() if load.topics == 1 else None
    with contextlib.ExitStack() as stack:
        receivers = []
        for sink in sinks:
            receivers.append(case.open_receiver(address, topic, sink))
            stack.callback(receivers[-1].close)
        for sink in sinks:
            sink.start()
        before = usage_now()
        pipe.send("ready")
        _run_all(receivers)
        pipe.send({
            "usage": usage_now() - before,
            "findings": [sink.findings() for sink in sinks],
            "statistics": receivers[0].statistics(),
        })  # fmt: skip


def _run_all(receivers: Sequence[Receiver]) -> None:
    """One receiver in this thread, as a program would; several in threads of their own."""
    if len(receivers) == 1:
        receivers[0].run()
        return
    with ThreadPoolExecutor(len(receivers)) as pool:
        for future in [pool.submit(receiver.run) for receiver in receivers]:
            future.result()
