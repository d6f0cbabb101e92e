"""One run through the publisher service: workers, the service and a listener, each in a process of its own.

The conversation is that of `bench.runs`, with two kinds of publishing processes.  The service is the real one, with its
journal and without a database.  The listener is a plain subscriber, or a controller whose copy must hold every change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from oslo_config import cfg

from bench import events
from bench.ends import OPEN_TIMEOUT_S, Case, wait_while_it_comes
from bench.ours import QUIET_S
from bench.runs import RUN_TIMEOUT_S, Load, MakeSink, send_at_rate, subscribe
from bench.sinks import NS_PER_S, Sink
from bench.workers import Worker, usage_now
from nb_api import LocalCache, NbApi, Resynced, notify_config
from nb_api.core.copy.differences import CacheChange
from publisher_service.service import PublisherService
from publisher_service.worker.publisher import WorkerPublisher
from pubsub_api import loading
from pubsub_api.config import GROUP


@dataclasses.dataclass(frozen=True)
class ServiceRun:
    """What one run measured.  CPU is per event, in microseconds."""

    sent: int
    received: int
    seconds: float
    worker_cpu_us: float
    service_cpu_us: float
    subscriber_cpu_us: float
    events_per_batch: float
    finding: dict[str, Any]

    @property
    def events_per_s(self) -> float:
        return self.received / self.seconds if self.seconds > 0 else 0.0

    @property
    def lost(self) -> int:
        return self.sent - self.received


def run(case: Case, load: Load, workers: int, make_sink: MakeSink = Sink, *, is_copied: bool = False) -> ServiceRun:
    """``load.count`` events from that many workers, each on a topic of its own.  Raises WorkerFailed.

    ``is_copied``: the listener is a controller, and what counts is a change in its copy, told to its callback.
    """
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="heliograph-bench-"))
        service = stack.enter_context(Worker(serve, case.server, directory))
        address = service.hear()
        # Workers connect with their first event.  They do so before the listener joins, which then does not see it.
        senders = [stack.enter_context(Worker(work, case.server, directory, load, workers, n)) for n in range(workers)]
        for sender in senders:
            sender.hear()
        all_topics = dataclasses.replace(load, topics=workers)
        if is_copied:
            listener = Worker(control, case.server, directory, load.count, address)
        else:
            listener = Worker(subscribe, case, all_topics, address=address, make_sink=make_sink, size=1)
        subscriber = stack.enter_context(listener)
        subscriber.hear()
        for sender in senders:
            sender.tell("go")
        begun_ns = min(sender.hear(RUN_TIMEOUT_S) for sender in senders)
        seen = subscriber.hear(RUN_TIMEOUT_S)
        ended = [sender.hear(RUN_TIMEOUT_S) for sender in senders]
        service.tell("stop")
        usage = service.hear()
        for process in (service, subscriber, *senders):
            process.end()
    finding = seen["findings"][0]
    return ServiceRun(
        sent=load.count,
        received=finding["received"],
        seconds=(finding["ended_ns"] - begun_ns) / NS_PER_S,
        worker_cpu_us=sum(spent.cpu_s for spent, _ in ended) / load.count * 1e6,
        service_cpu_us=usage.cpu_s / load.count * 1e6,
        subscriber_cpu_us=seen["usage"].cpu_s / max(finding["received"], 1) * 1e6,
        events_per_batch=load.count / max(1, sum(statistics.batches for _, statistics in ended)),
        finding=finding,
    )


def service_conf(url: str, directory: str) -> cfg.ConfigOpts:
    conf = loading.conf_from_url(url)
    conf.set_override("publisher_multiproc_socket", f"{directory}/socket", group=GROUP)
    return conf


def serve(pipe: Connection, url: str, directory: str) -> None:
    with PublisherService(service_conf(url, directory)) as service:
        pipe.send(service.publisher.address)
        before = usage_now()
        pipe.recv()
        pipe.send(usage_now() - before)


class _CopySink(Sink):
    """Counts the changes that a copy tells."""

    def on_changes(self, changes: Sequence[CacheChange]) -> None:
        self.received += len(changes) - sum(isinstance(change, Resynced) for change in changes)
        if self.received >= self.expected:
            self.finish()


def control(pipe: Connection, url: str, directory: str, count: int, address: str) -> None:
    """Keep a copy of everything.  The database is empty, stays so, and is not asked whether it knows the versions."""
    conf = service_conf(url, directory)
    conf.set_override("enable_df_pub_sub", True, group=GROUP)
    notify_config.register(conf)
    for option in ("verify_interval", "snapshot_slots"):
        conf.set_override(option, 0, group=notify_config.CACHE_GROUP)
    sink = _CopySink(count, int)
    with (
        NbApi.open(conf=conf, url=f"sqlite://{directory}/objects.db") as nb,
        LocalCache(nb, addresses=[address], on_changes=sink.on_changes) as cache,
    ):
        cache.wait_synced(timeout_s=OPEN_TIMEOUT_S)
        sink.received = 0
        before = usage_now()
        pipe.send("ready")
        wait_while_it_comes(sink, QUIET_S)
        news = cache.statistics().news
        assert news.created + news.updated == sink.received, "a copy tells what it did"
        pipe.send({"usage": usage_now() - before, "findings": [sink.findings()]})


def work(pipe: Connection, url: str, directory: str, load: Load, workers: int, position: int) -> None:
    """Publish this worker's share, then say when it began, and at the end what it took."""
    topic = events.topic(position)
    numbers = range(position + 1, load.count + 1, workers)
    with WorkerPublisher(service_conf(url, directory)) as publisher:
        publisher.send_event(events.event(0, topic))
        publisher.flush(timeout_s=OPEN_TIMEOUT_S)
        pipe.send("ready")
        pipe.recv()
        before = usage_now()
        pipe.send(time.monotonic_ns())
        send = publisher.send_event
        if load.rate:
            own = dataclasses.replace(load, count=len(numbers), rate=load.rate / workers)
            send_at_rate(lambda topic, version: send(events.event(version, topic)), [topic], own)
        else:
            for number in numbers:
                send(events.event(number, topic))
        publisher.flush(timeout_s=OPEN_TIMEOUT_S)
        pipe.send((usage_now() - before, publisher.statistics()))
