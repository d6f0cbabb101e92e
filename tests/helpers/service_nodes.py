"""A publisher service and its workers in processes of their own, for tests that kill, freeze and fork them.

A host is a directory: the socket files, the journal and the configuration file are in there.  The bus is ZeroMQ over a
socket file, so that a service that comes back has the same address and no port can be taken by somebody else.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
from types import TracebackType
from typing import Any

from oslo_config import cfg

import pubsub_api
from publisher_service import health, ownership
from publisher_service.errors import WindowFull
from publisher_service.worker.publisher import WorkerPublisher
from pubsub_api.config import new_conf
from pubsub_api.testing.child import ChildProcess
from tests.helpers.nodes import SubscriberNode
from tests.helpers.waiting import wait_until

START_S = 90.0
"""How long a process may take to start on a machine that has other things to do."""
TICK_S = 0.01
CALM = {
    "max_idle_time": 20.0, "ready_timeout": 20.0,
    "repair_attempts_max": 12,
}  # fmt: skip
"""With these a restart that takes its time, on a machine that has other things to do, is neither silence nor loss."""


SWIFT_DB = {"retry_interval_max": 0.5}
"""A database that was away is soon tried again."""


class Host:
    """A place for one service and its workers.  Leaving the ``with`` kills whatever of it still runs."""

    def __init__(
        self,
        *,
        journal_bytes_max: int = 128 * 1024 * 1024,
        database: pathlib.Path | str | None = None,
        outbox_age: float = 0.3,
        **options: Any,
    ) -> None:
        """``database`` is the SQLite file, or the URL, whose changes are told on the bus; None for a host without."""
        self._database_url = f"sqlite://{database}" if isinstance(database, pathlib.Path) else database
        self._outbox_age = outbox_age
        self._directory = tempfile.TemporaryDirectory(prefix="hg-", ignore_cleanup_errors=True)
        self.path = pathlib.Path(self._directory.name)
        self.socket = self.path / "workers"
        self.config_file = self.path / "heliograph.conf"
        self.services: list[ServiceProcess] = []
        self.nodes: list[ChildProcess] = []
        self.configure(journal_bytes_max=journal_bytes_max, **options)

    def configure(self, **options: Any) -> None:
        """Write the configuration file.  ``options`` are of [publisher_service]."""
        pubsub = {
            "pub_sub_driver": "zmq", "publisher_transport": "ipc", "publisher_multiproc_socket": self.socket,
            "resync_jitter": 0.05, **CALM,
        }  # fmt: skip
        sections: dict[str, dict[str, Any]] = {
            "pubsub": pubsub, "zmq": {"ipc_path": self.path / "bus"}, "publisher_service": options,
        }  # fmt: skip
        if self._database_url is not None:
            pubsub["enable_df_pub_sub"] = True
            sections |= {
                "db": {"url": self._database_url, "outbox_age": self._outbox_age, **SWIFT_DB},
                # Whoever ends resigns; only a machine that stands still would make use of a shorter lease.
                "election": {"lease": 8.0},
                "discovery": {"lease": 30.0},
            }
        lines = [
            line
            for section, values in sections.items()
            for line in (f"[{section}]", *(f"{name} = {value}" for name, value in values.items()))
        ]
        self.config_file.write_text("\n".join(lines) + "\n")

    @property
    def url(self) -> str:
        return f"zmq://{self.path}/bus"

    def conf(self) -> cfg.ConfigOpts:
        return new_conf([self.config_file])

    def service(self, **environment: str) -> ServiceProcess:
        """Start the service; returns when it is ready."""
        service = ServiceProcess(self, environment)
        self.services.append(service)
        service.wait_ready()
        return service

    def worker(self) -> WorkerNode:
        node = WorkerNode(self)
        self.nodes.append(node)
        return node

    def subscriber(self, **options: Any) -> SubscriberNode:
        """Needs the service to be there, to become ready."""
        node = SubscriberNode(self.url, None, **{**CALM, **options})
        self.nodes.append(node)
        return node

    def __enter__(self) -> Host:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            node.kill()
        for service in self.services:
            service.kill()
        self._directory.cleanup()


class ServiceProcess:
    """``heliograph publisher-service`` as an operator runs it."""

    def __init__(self, host: Host, environment: dict[str, str]) -> None:
        self._host = host
        self._log = host.path / f"service-{len(host.services)}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "heliograph", "publisher-service", "--json", "--config-file", host.config_file],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)} | environment,
            )  # fmt: skip
        self.ready: dict[str, Any] = {}

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log()
        self.ready = json.loads(line)

    def log(self) -> str:
        return self._log.read_text()

    def report(self) -> dict[str, Any]:
        return health.ask(ownership.beside(self._host.socket, ownership.HEALTH_SUFFIX), timeout_s=START_S)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """At once, whatever it is doing."""
        self.process.kill()
        self._reap()

    def stop(self) -> int:
        """In good order; returns the exit code."""
        self.signal(signal.SIGTERM)
        self.process.wait(START_S)
        return self._reap()

    def _reap(self) -> int:
        code = self.process.wait(START_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


class WorkerNode(ChildProcess):
    """A worker process.  Its events are numbered by version, from 1, on the topic of its choice."""

    def __init__(self, host: Host) -> None:
        super().__init__("worker", str(host.config_file), module="tests.helpers.service_nodes")
        self.pid: int = self.receive()["pid"]

    def send(self, topic: str, first: int, last: int) -> dict[str, Any]:
        """Send events with these numbers; ``{"last": ..., "error": ...}`` says how far it came."""
        return self.ask(do="send", topic=topic, first=first, last=last)

    def start_flood(self, topic: str, rate: float) -> None:
        """Send on and on, from 1, until `stop_flood`."""
        self.ask(do="flood", topic=topic, rate=rate)

    def stop_flood(self) -> int:
        """Number of the last event."""
        return int(self.ask(do="stop")["last"])

    def flush(self, timeout_s: float = START_S) -> str:
        """Empty when all is acknowledged, else the error."""
        return str(self.ask(do="flush", timeout_s=timeout_s)["error"])

    def statistics(self) -> dict[str, Any]:
        return self.ask(do="statistics")

    def close(self) -> None:
        self.ask(do="close")


def wait_connected(worker: WorkerNode) -> None:
    wait_until(lambda: worker.statistics()["is_connected"], START_S, "the worker to connect")


def event(topic: str, number: int) -> pubsub_api.Event:
    return pubsub_api.Event(topic=topic, table="t", key=f"k{number % 100}", action="set", value=number, version=number)


class Flood:
    """Sends at a steady rate from a thread.  What could not be sent while nobody took it is not made up for later: a
    machine that is slow to restart a service would drown it then."""

    def __init__(self, publisher: WorkerPublisher, topic: str, rate: float) -> None:
        self.last = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(publisher, topic, max(1, int(rate * TICK_S))), daemon=True
        )
        self._thread.start()

    def _run(self, publisher: WorkerPublisher, topic: str, at_once: int) -> None:
        while not self._stop.wait(TICK_S):
            try:
                for _ in range(at_once):
                    publisher.send_event(event(topic, self.last + 1))
                    self.last += 1
            except WindowFull:  # which is what it is there for: try again
                continue

    def stop(self) -> int:
        self._stop.set()
        self._thread.join()
        return self.last


def _say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _send(publisher: WorkerPublisher, command: dict[str, Any]) -> dict[str, Any]:
    last, error = 0, ""
    try:
        for number in range(command["first"], command["last"] + 1):
            publisher.send_event(event(command["topic"], number))
            last = number
    except pubsub_api.errors.HeliographError as problem:
        error = type(problem).__name__
    return {"last": last, "error": error}


def _flush(publisher: WorkerPublisher, timeout_s: float) -> str:
    try:
        publisher.flush(timeout_s=timeout_s)
    except pubsub_api.errors.WaitTimeout as problem:
        return str(problem)
    return ""


def _worker(config_file: str) -> None:
    publisher = WorkerPublisher(new_conf([config_file]))
    _say(pid=os.getpid())
    flood: Flood | None = None
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "send":
            _say(**_send(publisher, command))
        elif command["do"] == "flood":
            flood = Flood(publisher, command["topic"], command["rate"])
            _say(ok=True)
        elif command["do"] == "stop":
            assert flood is not None
            _say(last=flood.stop())
        elif command["do"] == "flush":
            _say(error=_flush(publisher, command["timeout_s"]))
        elif command["do"] == "statistics":
            _say(**dataclasses.asdict(publisher.statistics()))
        elif command["do"] == "close":
            publisher.close()
            _say(ok=True)


if __name__ == "__main__":
    _worker(sys.argv[2])
